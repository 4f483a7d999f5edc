//! The process that is there to be killed: it opens the memory, runs transactions on it by all ways there are, and says
//! what returned. As a judge it only opens the memory and writes down what is in it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use netram_heap::Heap;
use netram_process::die_with_parent;
use netram_proto::port::Durability;
use netram_rvm::Region;
use netram_store::{Home, Memory, Opened, Settings};
use serde::{Deserialize, Serialize};

use super::blocks::encode;
use super::model::{AREAS, Area, Plan, Random};
use super::shelf::Shelf;
use super::teller::{Piece, Seat, Shared, Teller, say};
use super::told::Said;

/// Bytes of the window: small, so that it fills up now and then.
pub(super) const WINDOW_BYTES: u64 = 128 * 1024;
/// Regions begin at multiples of this.
const PAGE_BYTES: usize = 4096;

/// What a child of `netram-lab bash` is asked to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Player {
    pub(super) plan: Plan,
    /// The log.
    pub(super) log: PathBuf,
    /// Where the segments are.
    pub(super) folder: PathBuf,
    pub(super) lenders: Vec<String>,
    pub(super) members: usize,
    pub(super) key_file: Option<PathBuf>,
    /// Where the choices begin that leave no trace in memory.
    pub(super) choices: u64,
    pub(super) task: Task,
}

/// Play, or judge.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Runs transactions for so long, then ends like this.
    Play { span: Duration, ending: Ending },
    /// Writes all of the recovered memory to one file, what is in the heap's blocks to another.
    Judge { image: PathBuf, blocks: PathBuf },
}

/// How a player ends, unless somebody ends it before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ending {
    /// Never by itself.
    Killed,
    /// A thread kills the process in the middle of a transaction.
    Crash,
    /// Flushes and closes.
    Close,
}

/// The number of the segment with the heap, after those with areas.
pub(super) const HEAP_SEGMENT: usize = AREAS.len();

/// The file of a segment.
pub(super) fn segment_path(folder: &Path, segment: usize) -> PathBuf {
    folder.join(format!("segment-{segment}"))
}

impl Player {
    /// Does what is asked; what goes wrong is said, for the parent to judge.
    pub(crate) fn run(&self) -> Result<()> {
        die_with_parent()?;
        if let Err(error) = self.play() {
            say(&Said::Wrong(netram_cli::output::sentence(&error)))?;
        }
        Ok(())
    }

    pub(super) fn settings(&self) -> Result<Settings> {
        let lenders = self
            .lenders
            .iter()
            .map(|text| text.parse().map_err(|error| anyhow!("{text}: {error}")));
        Ok(Settings {
            lenders: lenders.collect::<Result<_>>()?,
            key_file: self.key_file.clone().filter(|_| !self.lenders.is_empty()),
            insecure: self.key_file.is_none(),
            members: Some(self.members),
            one_domain: true,
            window_bytes: Some(WINDOW_BYTES),
            ..Settings::default()
        })
    }

    fn play(&self) -> Result<()> {
        let home = Home::at(&self.log);
        let Opened { memory, .. } = home.open(&self.settings()?).context("opening the memory")?;
        let path = segment_path(&self.folder, HEAP_SEGMENT);
        let heap = memory.map(path.to_str().context("the folder's name is not UTF-8")?, 0, 0)?;
        let heap = Heap::open(heap).context("opening the heap")?;
        let seats = (0..self.plan.threads).map(|thread| self.seat(&memory, &heap, thread));
        let seats = seats
            .collect::<Result<Vec<_>>>()
            .context("looking at what was recovered")?;
        let counts = seats.iter().map(|seat| seat.area.count).collect();
        match &self.task {
            Task::Judge { image, blocks } => {
                let images = seats.iter().flat_map(|seat| &seat.area.images).map(Vec::as_slice);
                let what = "writing down what was recovered";
                std::fs::write(image, images.collect::<Vec<_>>().concat()).context(what)?;
                let all = seats.iter().map(|seat| seat.area.blocks.as_slice());
                std::fs::write(blocks, encode(all)).context(what)?;
                say(&Said::Opened(counts))?;
                drop(seats);
            }
            Task::Play { span, ending } => {
                say(&Said::Opened(counts))?;
                self.perform(&memory, seats, *span, *ending)?;
            }
        }
        drop(heap);
        let closed = memory.close().map_err(|(error, _)| error);
        let journal = closed.context("closing the memory")?;
        journal.close().context("closing the journal")?;
        say(&Said::Closed)
    }

    /// A thread's regions and blocks, and what is in them.
    fn seat<'h>(&self, memory: &Memory, heap: &'h Heap, thread: usize) -> Result<Seat<'h>> {
        let pieces = self.pieces(memory, thread)?;
        let shelf = Shelf::of(heap, thread)?;
        let mut images = AREAS.map(|bytes| vec![0; bytes]);
        for piece in &pieces {
            let image = &mut images[piece.segment];
            image[piece.start..piece.start + piece.length].copy_from_slice(&piece.region.read());
        }
        let area = Area::found(thread, images, shelf.contents()?);
        Ok(Seat { area, pieces, shelf })
    }

    /// A thread's regions: two of the first and of the last segment, one of the other.
    fn pieces(&self, memory: &Memory, thread: usize) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        for (segment, &bytes) in AREAS.iter().enumerate() {
            let parts = if segment == 1 { 1 } else { 2 };
            let length = bytes / parts;
            for part in 0..parts {
                let start = part * length;
                let region = self.map(memory, thread, segment, start, length)?;
                pieces.push(Piece {
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
        memory: &Memory,
        thread: usize,
        segment: usize,
        start: usize,
        length: usize,
    ) -> Result<Region> {
        let path = segment_path(&self.folder, segment);
        let path = path.to_str().context("the folder's name is not UTF-8")?;
        let offset = thread * AREAS[segment] + start;
        assert_eq!(offset % PAGE_BYTES, 0);
        Ok(memory.map(path, offset as u64, length as u64)?)
    }

    fn perform(&self, memory: &Memory, seats: Vec<Seat<'_>>, span: Duration, ending: Ending) -> Result<()> {
        let shared = Shared {
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
                let random = Random(self.choices ^ (thread as u64 + 1));
                let teller = Teller {
                    shared,
                    thread,
                    seat,
                    random,
                };
                tellers.push(scope.spawn(move || teller.run()));
            }
            match ending {
                Ending::Killed => (),
                Ending::Crash | Ending::Close => {
                    std::thread::sleep(span);
                    let flag = if ending == Ending::Close {
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
        say(&Said::Flushed(counts))
    }
}
