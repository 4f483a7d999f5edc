//! The process that is killed. It opens the memory, runs transactions on it in every possible way, and
//! reports which returned. As a judge it only opens the memory and writes its contents to files.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use netram_heap::Heap;
use netram_process::die_with_parent;
use netram_proto::port::Durability;
use netram_rvm::Region;
use netram_store::{JournalSettings, JournaledRvm, OpenStore, Store, StoreSettings};
use serde::{Deserialize, Serialize};

use super::blocks::encode;
use super::model::{AREAS, SplitMix64, StressPlan, ThreadArea};
use super::player_message::PlayerMessage;
use super::thread_blocks::ThreadBlocks;
use super::worker::{MappedPiece, PlayerState, StressWorker, ThreadMemory, say};

/// Size of the window in bytes: small, so that it fills up now and then.
pub(super) const WINDOW_BYTES: u64 = 128 * 1024;
/// Regions begin at multiples of this.
const PAGE_BYTES: usize = 4096;

/// Job of a child of `netram-lab bash`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct StressPlayer {
    pub(super) plan: StressPlan,
    /// Path of the log.
    pub(super) log: PathBuf,
    /// Directory of the segments.
    pub(super) directory: PathBuf,
    pub(super) lenders: Vec<String>,
    pub(super) members: usize,
    pub(super) key_file: Option<PathBuf>,
    /// Seed of the choices that leave no trace in memory.
    pub(super) choices: u64,
    pub(super) task: PlayerTask,
}

/// Task of the child.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum PlayerTask {
    /// Runs transactions for this time, then ends in this way.
    Play { span: Duration, ending: PlayerEnding },
    /// Writes the recovered memory to one file, and the contents of the heap's blocks to another.
    Judge { image: PathBuf, blocks: PathBuf },
}

/// Way in which a player ends, unless it is killed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum PlayerEnding {
    /// The player does not end by itself.
    Killed,
    /// A thread kills the process in the middle of a transaction.
    Crash,
    /// Flushes and closes.
    Close,
}

/// Number of the heap's segment, after those with areas.
pub(super) const HEAP_SEGMENT: usize = AREAS.len();

/// Path of a segment.
pub(super) fn segment_path(directory: &Path, segment: usize) -> PathBuf {
    directory.join(format!("segment-{segment}"))
}

impl StressPlayer {
    /// Runs the task; reports errors for the parent to judge.
    pub(crate) fn run(&self) -> Result<()> {
        die_with_parent()?;
        if let Err(error) = self.play() {
            say(&PlayerMessage::Wrong(netram_cli::output::sentence(&error)))?;
        }
        Ok(())
    }

    pub(super) fn settings(&self) -> Result<StoreSettings> {
        let lenders = self
            .lenders
            .iter()
            .map(|text| text.parse().map_err(|error| anyhow!("{text}: {error}")));
        Ok(StoreSettings {
            journal: JournalSettings {
                lenders: lenders.collect::<Result<_>>()?,
                key_file: self.key_file.clone().filter(|_| !self.lenders.is_empty()),
                insecure: self.key_file.is_none(),
                members: Some(self.members),
                one_domain: true,
                window_bytes: Some(WINDOW_BYTES),
                ..JournalSettings::default()
            },
            ..StoreSettings::default()
        })
    }

    fn play(&self) -> Result<()> {
        let home = Store::at(&self.log);
        let OpenStore { memory, .. } = home.open(&self.settings()?).context("opening the memory")?;
        let path = segment_path(&self.directory, HEAP_SEGMENT);
        let heap = memory.map(path.to_str().context("the directory's name is not UTF-8")?, 0, 0)?;
        let heap = Heap::open(heap).context("opening the heap")?;
        let seats = (0..self.plan.threads).map(|thread| self.thread_memory(&memory, &heap, thread));
        let seats = seats
            .collect::<Result<Vec<_>>>()
            .context("looking at what was recovered")?;
        let counts = seats.iter().map(|seat| seat.area.count).collect();
        match &self.task {
            PlayerTask::Judge { image, blocks } => {
                let images = seats.iter().flat_map(|seat| &seat.area.images).map(Vec::as_slice);
                let what = "writing down what was recovered";
                std::fs::write(image, images.collect::<Vec<_>>().concat()).context(what)?;
                let all = seats.iter().map(|seat| seat.area.blocks.as_slice());
                std::fs::write(blocks, encode(all)).context(what)?;
                say(&PlayerMessage::Opened(counts))?;
                drop(seats);
            }
            PlayerTask::Play { span, ending } => {
                say(&PlayerMessage::Opened(counts))?;
                self.perform(&memory, seats, *span, *ending)?;
            }
        }
        drop(heap);
        let closed = memory.close().map_err(|(error, _)| error);
        let journal = closed.context("closing the memory")?;
        journal.close().context("closing the journal")?;
        say(&PlayerMessage::Closed)
    }

    /// A thread's regions and blocks, with their contents.
    fn thread_memory<'h>(
        &self,
        memory: &JournaledRvm,
        heap: &'h Heap,
        thread: usize,
    ) -> Result<ThreadMemory<'h>> {
        let pieces = self.pieces(memory, thread)?;
        let shelf = ThreadBlocks::of(heap, thread)?;
        let mut images = AREAS.map(|bytes| vec![0; bytes]);
        for piece in &pieces {
            let image = &mut images[piece.segment];
            image[piece.start..piece.start + piece.length].copy_from_slice(&piece.region.read());
        }
        let area = ThreadArea::found(thread, images, shelf.contents()?);
        Ok(ThreadMemory {
            area,
            pieces,
            blocks: shelf,
        })
    }

    /// A thread's regions: two of the first and of the last segment, one of the other.
    fn pieces(&self, memory: &JournaledRvm, thread: usize) -> Result<Vec<MappedPiece>> {
        let mut pieces = Vec::new();
        for (segment, &bytes) in AREAS.iter().enumerate() {
            let parts = if segment == 1 { 1 } else { 2 };
            let length = bytes / parts;
            for part in 0..parts {
                let start = part * length;
                let region = self.map(memory, thread, segment, start, length)?;
                pieces.push(MappedPiece {
                    segment,
                    start,
                    length,
                    region,
                });
            }
        }
        Ok(pieces)
    }

    pub(super) fn map(
        &self,
        memory: &JournaledRvm,
        thread: usize,
        segment: usize,
        start: usize,
        length: usize,
    ) -> Result<Region> {
        let path = segment_path(&self.directory, segment);
        let path = path.to_str().context("the directory's name is not UTF-8")?;
        let offset = thread * AREAS[segment] + start;
        assert_eq!(offset % PAGE_BYTES, 0);
        Ok(memory.map(path, offset as u64, length as u64)?)
    }

    fn perform(
        &self,
        memory: &JournaledRvm,
        seats: Vec<ThreadMemory<'_>>,
        span: Duration,
        ending: PlayerEnding,
    ) -> Result<()> {
        let shared = PlayerState {
            player: self,
            memory,
            returned: seats.iter().map(|seat| AtomicU64::new(seat.area.count)).collect(),
            stop: AtomicBool::new(false),
            crash: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            let shared = &shared;
            let mut tellers = Vec::new();
            for (thread, seat) in seats.into_iter().enumerate() {
                let random = SplitMix64(self.choices ^ (thread as u64 + 1));
                let teller = StressWorker {
                    state: shared,
                    thread,
                    memory: seat,
                    random,
                };
                tellers.push(scope.spawn(move || teller.run()));
            }
            match ending {
                PlayerEnding::Killed => (),
                PlayerEnding::Crash | PlayerEnding::Close => {
                    std::thread::sleep(span);
                    let flag = if ending == PlayerEnding::Close {
                        &shared.stop
                    } else {
                        &shared.crash
                    };
                    flag.store(true, Ordering::SeqCst);
                }
            }
            for teller in tellers {
                teller.join().map_err(|_| anyhow!("a thread panicked"))??;
            }
            anyhow::Ok(())
        })?;
        let counts = shared.returned();
        memory.flush(Durability::Disk).context("the last flush")?;
        say(&PlayerMessage::Flushed(counts))
    }
}
