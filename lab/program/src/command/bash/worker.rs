//! One thread of a player: it runs the plan's transactions one after the other, and other operations in
//! between.

use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result, anyhow};
use netram_proto::port::Durability;
use netram_rvm::{Region, RestoreMode};
use netram_store::JournaledRvm;
use rustix::process::{Signal, getpid, kill_process};

use super::blocks::SLOTS;
use super::model::{AreaChange, SplitMix64, ThreadArea, TransactionOps};
use super::player::StressPlayer;
use super::player_message::PlayerMessage;
use super::thread_blocks::ThreadBlocks;

/// Size of the spool for lazy commits, in bytes, while there is one.
const SPOOL_BYTES: usize = 16 * 1024;
/// Maximum number of bytes that an aborted transaction overwrites.
const SCRIBBLE_BYTES_MAX: u64 = 2000;

/// State shared by the threads of a player.
pub(super) struct PlayerState<'p> {
    pub(super) player: &'p StressPlayer,
    pub(super) memory: &'p JournaledRvm,
    /// The newest transaction of each thread that has returned.
    pub(super) returned: Vec<AtomicU64>,
    pub(super) stop: AtomicBool,
    pub(super) crash: AtomicBool,
}

/// A mapped part of a thread's area.
pub(super) struct MappedPiece {
    pub(super) segment: usize,
    /// Offset from the area's beginning.
    pub(super) start: usize,
    pub(super) length: usize,
    pub(super) region: Region,
}

/// A thread's regions, and their expected contents.
pub(super) struct ThreadMemory<'h> {
    pub(super) area: ThreadArea,
    pub(super) pieces: Vec<MappedPiece>,
    pub(super) blocks: ThreadBlocks<'h>,
}

/// One thread.
pub(super) struct StressWorker<'s> {
    pub(super) state: &'s PlayerState<'s>,
    pub(super) thread: usize,
    pub(super) memory: ThreadMemory<'s>,
    pub(super) random: SplitMix64,
}

impl PlayerState<'_> {
    /// Progress of each thread. Transactions up to it precede those that begin now.
    pub(super) fn returned(&self) -> Vec<u64> {
        self.returned
            .iter()
            .map(|count| count.load(Ordering::SeqCst))
            .collect()
    }
}

impl StressWorker<'_> {
    pub(super) fn run(mut self) -> Result<()> {
        while !self.state.stop.load(Ordering::SeqCst) {
            let done = self.do_other_work().and_then(|()| self.transact());
            if let Err(error) = done {
                self.state.stop.store(true, Ordering::SeqCst);
                let place = format!("thread {}, transaction {}", self.thread, self.memory.area.count);
                return Err(error.context(place));
            }
        }
        Ok(())
    }

    /// Operations other than commits, which leave no trace.
    fn do_other_work(&mut self) -> Result<()> {
        let memory = self.state.memory;
        if self.random.once_in(8) {
            self.abort()?;
        }
        if self.random.once_in(40) {
            self.remap()?;
        }
        if self.random.once_in(60) {
            let durability = self.waiting();
            let floors = self.state.returned();
            memory.flush(durability).context("a flush")?;
            say(&PlayerMessage::Flushed(floors))?;
        }
        if self.random.once_in(100) {
            self.compare().context("memory, in the middle of the run")?;
        }
        if self.random.once_in(200) {
            // Off, on, or so small that it is full at once.
            memory.set_spool_bytes([0, 512, SPOOL_BYTES][self.random.below(3) as usize]);
        }
        if self.random.once_in(300) {
            memory.truncate().context("a truncation")?;
        }
        Ok(())
    }

    /// Runs the plan's next transaction.
    fn transact(&mut self) -> Result<()> {
        let TransactionOps { changes, block } = self.memory.area.advance(&self.state.player.plan);
        let (thread, count) = (self.thread, self.memory.area.count);
        let mode = match self.random.once_in(2) {
            true => RestoreMode::Restore,
            false => RestoreMode::NoRestore,
        };
        let steps = changes.len();
        let moment = self.random.below(4 + steps as u64) as usize;
        let mut transaction = self.state.memory.begin(mode);
        for (index, change) in changes.iter().enumerate() {
            self.crash_at(moment, index);
            self.apply(&mut transaction, change)?;
        }
        self.crash_at(moment, steps);
        if let Some(change) = &block {
            self.memory
                .blocks
                .apply(&mut transaction, change)
                .context("the heap")?;
        }
        self.crash_at(moment, steps + 1);
        let durability = match self.random.below(8) {
            0..=3 => Durability::Lazy,
            _ => self.waiting(),
        };
        let floors = self.state.returned();
        transaction.commit(durability)?;
        self.crash_at(moment, steps + 2);
        self.state.returned[thread].store(count, Ordering::SeqCst);
        say(&match durability {
            Durability::Lazy => PlayerMessage::Lazy { thread, count },
            _ => PlayerMessage::Acknowledged {
                thread,
                count,
                floors,
            },
        })?;
        self.crash_at(moment, steps + 3);
        Ok(())
    }

    /// A durability with a wait.
    fn waiting(&mut self) -> Durability {
        match self.random.below(8) {
            0 | 1 => Durability::Disk,
            // Without lenders it could never be satisfied.
            2 if !self.state.player.lenders.is_empty() => Durability::Both,
            _ => Durability::Remote,
        }
    }

    /// Declares a change and makes it, in one of the possible ways.
    fn apply(
        &mut self,
        transaction: &mut netram_store::JournaledTransaction,
        change: &AreaChange,
    ) -> Result<()> {
        let (first, last) = (change.offset, change.offset + change.bytes.len());
        for piece in self
            .memory
            .pieces
            .iter()
            .filter(|piece| piece.segment == change.segment)
        {
            let (from, to) = (first.max(piece.start), last.min(piece.start + piece.length));
            if from >= to {
                continue;
            }
            let bytes = &change.bytes[from - first..to - first];
            let (at, region) = (from - piece.start, &piece.region);
            match self.random.below(4) {
                0 => transaction
                    .edit(region)
                    .range_mut(at, bytes.len())?
                    .copy_from_slice(bytes),
                1 => {
                    // Declared twice, and more than is changed.
                    let before = at.min(16);
                    transaction.set_range(region, at - before, bytes.len() + before)?;
                    transaction.write(region, at, bytes)?;
                }
                2 => {
                    let middle = bytes.len() / 2;
                    transaction.write(region, at + middle, &bytes[middle..])?;
                    transaction.write(region, at, &bytes[..middle])?;
                }
                _ => transaction.write(region, at, bytes)?,
            }
        }
        Ok(())
    }

    /// A transaction that overwrites bytes and is aborted: nothing of it may ever be seen.
    fn abort(&mut self) -> Result<()> {
        let mut transaction = self.state.memory.begin(RestoreMode::Restore);
        for _ in 0..1 + self.random.below(4) {
            let piece = &self.memory.pieces[self.random.below(self.memory.pieces.len() as u64) as usize];
            let length = self.random.below(SCRIBBLE_BYTES_MAX) as usize;
            let at = self.random.below((piece.length - length) as u64) as usize;
            transaction.write(&piece.region, at, &vec![0xaa; length])?;
        }
        if self.random.once_in(2) {
            let slot = self.random.below(SLOTS as u64) as usize;
            let length = 1 + self.random.below(SCRIBBLE_BYTES_MAX) as usize;
            let scribbled = self.memory.blocks.scribble(&mut transaction, slot, length);
            scribbled.context("the heap, in what is given up")?;
        }
        transaction.abort();
        say(&PlayerMessage::Aborted)
    }

    /// Unmaps one region and maps it again; it must show every commit.
    fn remap(&mut self) -> Result<()> {
        let index = self.random.below(self.memory.pieces.len() as u64) as usize;
        let MappedPiece {
            segment,
            start,
            length,
            region,
        } = self.memory.pieces.swap_remove(index);
        region.unmap().map_err(|(error, _)| error).context("unmapping")?;
        let shared = self.state;
        let region = shared
            .player
            .map(shared.memory, self.thread, segment, start, length);
        let piece = MappedPiece {
            segment,
            start,
            length,
            region: region.context("mapping again")?,
        };
        self.memory.pieces.push(piece);
        self.compare().context("memory that was mapped again")
    }

    fn compare(&self) -> Result<()> {
        for piece in &self.memory.pieces {
            let expected = &self.memory.area.images[piece.segment][piece.start..piece.start + piece.length];
            let found = piece.region.read();
            if let Some(at) = (0..piece.length).find(|&at| expected[at] != found[at]) {
                let (segment, at) = (piece.segment, piece.start + at);
                return Err(anyhow!(
                    "segment {segment}, byte {at} of the area is not what was written"
                ));
            }
        }
        let blocks = self.memory.blocks.contents()?;
        match (0..SLOTS).find(|&slot| blocks[slot] != self.memory.area.blocks[slot]) {
            Some(slot) => Err(anyhow!("block {slot} in the heap is not what was written")),
            None => Ok(()),
        }
    }

    /// Kills the process here, if `moment` says so.
    fn crash_at(&self, moment: usize, here: usize) {
        if moment == here && self.state.crash.load(Ordering::SeqCst) {
            // Nothing of this process runs after the call.
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}

/// Writes one line to the parent at once.
pub(super) fn say(said: &PlayerMessage) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(said.line().as_bytes())
        .and_then(|()| out.flush())
        .context("telling the parent")
}
