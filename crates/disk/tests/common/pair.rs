//! A volume and its copy on two machines, and what goes between them: what a connection does, step by step.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use netram_disk::{BLOCK_BYTES, Disk, Fetch, FetchError, OpenError, Progress, digest};
use netram_proto::id::Lsn;
use netram_proto::port::Log;

use super::{BLOCK, Machine, MachineFile, TestDisk};

/// Blocks that a frame holds.
const FRAME_BLOCKS: u64 = 3;

pub(crate) type ClientDisk = Disk<Machine, MachineFile, TestCopy>;
type Hook = Box<dyn FnOnce() + Send>;

/// The way from the client to its data lender's blocks.
#[derive(Clone)]
pub(crate) struct TestCopy(Arc<Way>);

struct Way {
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

    /// Runs when the next answer is on its way.
    pub(crate) fn after_next_answer(&self, hook: impl FnOnce() + Send + 'static) {
        *self.0.hook.lock().unwrap() = Some(Box::new(hook));
    }
}

impl Fetch for TestCopy {
    fn fetch(&self, first: u64, at_least: Lsn, into: &mut [u8]) -> Result<(), FetchError> {
        let way = &self.0;
        if way.away.load(Ordering::Relaxed) {
            return Err(FetchError::Away);
        }
        let disk = Arc::clone(&way.disk.lock().unwrap());
        // Whoever carries the journal goes on meanwhile.
        way.client.ship(&way.machine, usize::MAX);
        follow(&disk);
        if way.machine.state().stable < at_least {
            return Err(FetchError::Away);
        }
        let read = disk.read_own(first, into);
        let hook = way.hook.lock().unwrap().take();
        if let Some(hook) = hook {
            hook();
        }
        read.map_err(|_| FetchError::Damaged)
    }
}

/// Takes in all that the copy's journal has.
fn follow(disk: &TestDisk) {
    while disk.follow().unwrap() < disk.log().state().stable {
        while disk.apply_step().unwrap() != Progress::Idle {}
    }
}

pub(crate) struct Pair {
    pub(crate) client: Machine,
    pub(crate) replica: Machine,
    pub(crate) client_disk: Option<Arc<ClientDisk>>,
    pub(crate) replica_disk: Arc<TestDisk>,
    pub(crate) copy: TestCopy,
    /// Where the copy's journal ended when it was whole.
    pub(crate) whole_at: Option<Lsn>,
    /// It follows, and no resync was cut off.
    pub(crate) consistent: bool,
}

impl Pair {
    pub(crate) fn new(log_capacity: u64, bytes: u64) -> Pair {
        let (client, replica) = (
            Machine::new(log_capacity, bytes),
            Machine::new(log_capacity, bytes),
        );
        let replica_disk = Arc::new(replica.open_restarted().unwrap());
        let copy = TestCopy(Arc::new(Way {
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

    pub(crate) fn try_open(&self) -> Result<Arc<ClientDisk>, OpenError> {
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

    /// Sends what the copy lacks of the journal. Where that now ends; the client is told if the copy is whole.
    pub(crate) fn follow(&mut self) -> Lsn {
        self.client.log_syncs();
        assert!(
            self.client.ship(&self.replica, usize::MAX),
            "it is not there any more"
        );
        self.follow_only();
        let end = self.replica.state().tail;
        self.consistent = true;
        self.whole_at = Some(end);
        self.disk().replica_flushed(end);
        end
    }

    /// The copy takes in what it has.
    pub(crate) fn follow_only(&mut self) -> Lsn {
        follow(&self.replica_disk);
        self.replica.state().tail
    }

    /// Sends the blocks that differ, and the journal. How many were sent; after `frames` frames the connection breaks.
    pub(crate) fn resync(&mut self, frames: usize) -> u64 {
        let (disk, copy) = (self.disk_shared(), Arc::clone(&self.replica_disk));
        let whole_at = self.whole_at;
        self.consistent = false;
        let begun = disk.begin_resync(whole_at).unwrap();
        if begun.all {
            self.whole_at = None;
        }
        copy.drain().unwrap();
        self.replica.restart_log(begun.from);
        copy.restart().unwrap();
        let (mut at, mut sent, mut done) = (0, 0, 0);
        while let Some(run) = disk.next_resync(at, FRAME_BLOCKS).unwrap() {
            if done == frames {
                return sent;
            }
            done += 1;
            at = run.behind;
            sent += self.send(&disk, run.first, run.behind, run.hole);
        }
        copy.sync().unwrap();
        let until = disk.log().state().tail;
        self.client.log_syncs();
        if !self.client.ship(&self.replica, usize::MAX) {
            return sent;
        }
        follow(&copy);
        assert!(self.replica.state().tail >= until);
        disk.finish_resync().unwrap();
        self.follow();
        sent
    }

    fn send(&self, disk: &ClientDisk, first: u64, behind: u64, hole: bool) -> u64 {
        if hole {
            self.replica_disk.put_hole(first, behind).unwrap();
            return behind - first;
        }
        let mut bytes = vec![0; (behind - first) as usize * BLOCK];
        disk.read_own(first, &mut bytes).unwrap();
        let digests: Vec<_> = bytes.chunks_exact(BLOCK).map(digest).collect();
        let differing = self.replica_disk.differing(first, &digests).unwrap();
        let mut sent = 0;
        for (index, _) in differing.iter().enumerate().filter(|(_, differs)| **differs) {
            let block = &bytes[index * BLOCK..][..BLOCK];
            self.replica_disk.put_blocks(first + index as u64, block).unwrap();
            sent += 1;
        }
        assert!(behind * BLOCK_BYTES <= disk.geometry().bytes);
        sent
    }

    /// Power loss at the client; it is opened again if it can be.
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

    /// The client's disk is gone with all that was on it.
    pub(crate) fn lose_client(&mut self) {
        self.client_disk = None;
        self.client.lose_files();
    }
}
