//! A volume and its copy on two machines, and the connection between them, step by step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use netram_block::{
    ApplyProgress, BLOCK_BYTES, BlockFetch, Disk, DiskOpenError, FetchError, ResyncRun, VolumeRestore, digest,
};
use netram_proto::id::Lsn;
use netram_proto::port::RecordLog;

use super::{BLOCK, JOURNAL, Machine, MachineFile, TestDisk, VOLUME};

/// Blocks of one frame.
const FRAME_BLOCKS: u64 = 3;

pub(crate) type ClientDisk = Disk<Machine, MachineFile, TestCopy>;
type Hook = Box<dyn FnOnce() + Send>;

/// The client's connection to its data lender's blocks.
#[derive(Clone)]
pub(crate) struct TestCopy(Arc<CopyPath>);

struct CopyPath {
    away: AtomicBool,
    client: Machine,
    machine: Machine,
    disk: Mutex<Arc<TestDisk>>,
    hook: Mutex<Option<Hook>>,
}

impl TestCopy {
    pub(crate) fn leave(&self) {
        self.0.away.store(true, Ordering::Relaxed);
    }

    pub(crate) fn come_back(&self) {
        self.0.away.store(false, Ordering::Relaxed);
    }

    /// Runs `hook` before the next answer arrives.
    pub(crate) fn after_next_answer(&self, hook: impl FnOnce() + Send + 'static) {
        *self.0.hook.lock().unwrap() = Some(Box::new(hook));
    }
}

impl BlockFetch for TestCopy {
    fn fetch(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError> {
        let way = &self.0;
        if way.away.load(Ordering::Relaxed) {
            return Err(FetchError::Unreachable);
        }
        let disk = Arc::clone(&way.disk.lock().unwrap());
        // The thread that transfers the journal continues in the meantime.
        way.client.ship(&way.machine, usize::MAX);
        let _ = follow(&disk);
        let answer = disk.answer(first, at_least, into);
        let hook = way.hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        answer
    }
}

/// One of the machines crashed.
#[derive(Debug)]
pub(crate) struct Broken;

fn broken<E>(_: E) -> Broken {
    Broken
}

/// Reads everything in the copy's journal into its stages.
fn follow(disk: &TestDisk) -> Result<(), Broken> {
    loop {
        let end = disk.follow().map_err(broken)?;
        if end == disk.log().state().stable {
            return Ok(());
        }
        while disk.apply_step().map_err(broken)? != ApplyProgress::Idle {}
    }
}

/// Result of a resync.
pub(crate) struct Resynced {
    pub(crate) sent: u64,
    /// How often the journal's head had passed the copy.
    pub(crate) moves: u64,
}

pub(crate) struct Pair {
    pub(crate) client: Machine,
    pub(crate) replica: Machine,
    pub(crate) client_disk: Option<Arc<ClientDisk>>,
    pub(crate) replica_disk: Arc<TestDisk>,
    pub(crate) copy: TestCopy,
    /// Where the copy's journal ended when it was whole.
    pub(crate) whole_at: Option<Lsn>,
    /// Whether the copy follows and no resync was interrupted.
    pub(crate) consistent: bool,
}

impl Pair {
    pub(crate) fn new(log_capacity: u64, bytes: u64) -> Pair {
        let (client, replica) = (
            Machine::new(log_capacity, bytes),
            Machine::new(log_capacity, bytes),
        );
        let replica_disk = Arc::new(replica.open_restarted().unwrap());
        let copy = TestCopy(Arc::new(CopyPath {
            away: AtomicBool::new(false),
            client: client.clone(),
            machine: replica.clone(),
            disk: Mutex::new(Arc::clone(&replica_disk)),
            hook: Mutex::new(None),
        }));
        Pair {
            client,
            replica,
            client_disk: None,
            replica_disk,
            copy,
            whole_at: None,
            consistent: false,
        }
    }

    pub(crate) fn try_open(&self) -> Result<Arc<ClientDisk>, DiskOpenError> {
        let (machine, files) = (self.client.clone(), self.client.files_kept_twice());
        Disk::open_beside(machine, files, Machine::options(), self.copy.clone()).map(Arc::new)
    }

    pub(crate) fn open(&self) -> Arc<ClientDisk> {
        self.try_open().unwrap()
    }

    pub(crate) fn disk(&self) -> &ClientDisk {
        self.client_disk.as_ref().unwrap()
    }

    pub(crate) fn disk_shared(&self) -> Arc<ClientDisk> {
        Arc::clone(self.client_disk.as_ref().unwrap())
    }

    /// Sends the journal that the copy lacks, and returns its new end. The client is told if the copy is
    /// whole.
    pub(crate) fn follow(&mut self) -> Lsn {
        self.client.log_syncs();
        assert!(
            self.client.ship(&self.replica, usize::MAX),
            "the records were trimmed"
        );
        self.follow_only().unwrap();
        self.is_whole();
        self.replica.state().tail
    }

    /// Reads the copy's journal into its stages.
    pub(crate) fn follow_only(&mut self) -> Result<Lsn, Broken> {
        follow(&self.replica_disk)?;
        Ok(self.replica.state().tail)
    }

    /// Marks the copy as whole, and tells the client.
    pub(crate) fn is_whole(&mut self) {
        let end = self.replica.state().tail;
        self.consistent = true;
        self.whole_at = Some(end);
        self.disk().replica_flushed(end);
    }

    /// Sends the blocks that differ, then the journal. Returns the number of blocks sent.
    pub(crate) fn resync(&mut self) -> u64 {
        self.resync_until(usize::MAX).unwrap()
    }

    /// As [`Pair::resync`], but the connection breaks after `frames` frames.
    pub(crate) fn resync_until(&mut self, frames: usize) -> Result<u64, Broken> {
        Ok(self.resync_beside(frames, &mut |_| ())?.sent)
    }

    /// As [`Pair::resync_until`], but runs `beside` after each frame.
    pub(crate) fn resync_beside(
        &mut self,
        frames: usize,
        beside: &mut dyn FnMut(&ClientDisk),
    ) -> Result<Resynced, Broken> {
        let (disk, copy) = (self.disk_shared(), Arc::clone(&self.replica_disk));
        let begun = disk.begin_resync(self.whole_at).map_err(broken)?;
        copy.bring_up().map_err(broken)?;
        self.consistent = false;
        // Older records come again. The blocks that they change are correct only as of their start until all
        // of them have arrived.
        self.whole_at = self.whole_at.filter(|_| !begun.all).map(|at| at.min(begun.from));
        self.replica.restart_log(begun.from);
        copy.restart().map_err(broken)?;
        let (mut sent, mut done, mut moves) = (0, 0, 0);
        let until = loop {
            let mut at = 0;
            while let Some(run) = match moves {
                0 => disk.next_resync(at, FRAME_BLOCKS),
                _ => disk.next_dirtied(at, FRAME_BLOCKS),
            }
            .map_err(broken)?
            {
                if done == frames {
                    return Err(Broken);
                }
                done += 1;
                at = run.end;
                sent += self.send(&disk, &run)?;
                if done % 3 == 1 {
                    // Records and blocks take turns.
                    self.client.ship(&self.replica, 2);
                    copy.follow().map_err(broken)?;
                    for _ in 0..done % 5 {
                        copy.apply_step().map_err(broken)?;
                    }
                }
                beside(&disk);
            }
            let until = disk.log().state().tail;
            self.client.log_syncs();
            if self.client.ship(&self.replica, usize::MAX) {
                break until;
            }
            // The next records were trimmed, so their blocks are dirty now.
            copy.bring_up().map_err(broken)?;
            let has = self.replica.state().tail;
            let Some(begun) = disk.continue_resync(has).map_err(broken)? else {
                return Err(Broken);
            };
            self.whole_at = self.whole_at.map(|at| at.min(begun.from));
            self.replica.restart_log(begun.from);
            copy.restart().map_err(broken)?;
            moves += 1;
        };
        copy.sync().map_err(broken)?;
        follow(&copy)?;
        assert!(self.replica.state().tail >= until);
        self.consistent = true;
        self.whole_at = Some(self.replica.state().tail);
        disk.finish_resync().map_err(broken)?;
        self.is_whole();
        Ok(Resynced { sent, moves })
    }

    fn send(&self, disk: &ClientDisk, run: &ResyncRun) -> Result<u64, Broken> {
        let copy = &self.replica_disk;
        let count = run.end - run.first;
        if run.hole {
            copy.put_hole(run.first, run.end).map_err(broken)?;
            return Ok(count);
        }
        let mut bytes = vec![0; count as usize * BLOCK];
        disk.read_own(run.first, &mut bytes).map_err(broken)?;
        let digests: Vec<_> = bytes.chunks_exact(BLOCK).map(digest).collect();
        let differing = copy.differing(run.first, &digests).map_err(broken)?;
        let mut sent = 0;
        for (index, _) in differing.iter().enumerate().filter(|(_, differs)| **differs) {
            let block = &bytes[index * BLOCK..][..BLOCK];
            copy.put_blocks(run.first + index as u64, block).map_err(broken)?;
            sent += 1;
        }
        Ok(sent)
    }

    /// Restores the volume from the copy. The client's journal must have the copy's end and everything later.
    pub(crate) fn restore(&mut self) -> Result<(), Broken> {
        let from = self.follow_only()?;
        let (files, bytes) = (self.client.files_kept_twice(), self.replica_disk.geometry().bytes);
        let restoring = VolumeRestore::begin(files, VOLUME, JOURNAL, bytes, from).map_err(broken)?;
        let mut at = 0;
        let mut each = |length: u64, hole: bool| {
            let behind = at + length / BLOCK_BYTES;
            if !hole {
                restoring.missing(at, behind).unwrap();
            }
            at = behind;
            true
        };
        self.replica_disk.extents(0, bytes, &mut each).map_err(broken)?;
        restoring.finish().map_err(broken)?;
        self.client.keep_log_from(from);
        self.whole_at = Some(from);
        Ok(())
    }

    /// Power loss at the client, which is then reopened if possible.
    pub(crate) fn crash_client(&mut self, seed: u64) {
        self.client_disk = None;
        self.client.crash(seed);
        self.client_disk = self.try_open().ok();
    }

    /// Power loss at the data lender.
    pub(crate) fn crash_replica(&mut self, seed: u64) {
        self.replica.crash(seed);
        self.replica_disk = Arc::new(self.replica.open_restarted().unwrap());
        *self.copy.0.disk.lock().unwrap() = Arc::clone(&self.replica_disk);
    }

    /// The client's disk is lost with everything on it.
    pub(crate) fn lose_client(&mut self) {
        self.client_disk = None;
        self.client.lose_files();
    }
}
