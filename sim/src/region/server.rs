//! The server's machine: its process, the writes on their way to its disk, and the journals that it reads.

use std::collections::{BTreeMap, VecDeque};

use netram_proto::time::{Nanos, Time};
use netram_shared_machine::message::RegionOpening;
use netram_shared_machine::server::{LinkOutput, NodeJournal as Known, NodeState, ServerConfig, SessionId};
use netram_shared_machine::{NodeId, RegionId, RegionServer};

use super::bytes::{self, PayloadBytes, WORDS};
use super::kernel::{Clock, Event, RegionKernel};
use super::profile::LEASE;
use super::server_disk::{QueuedWrite, ServerDisk};

/// First delay after which lenders are told again that a node is gone.
const TELL_AGAIN: Nanos = Nanos::from_ms(40);

/// The reading of a dead node's journal.
#[derive(Clone, Debug)]
pub(super) struct JournalReading {
    pub(super) known: Known,
    pub(super) due: Time,
    pub(super) runs: bool,
    pub(super) failed: bool,
}

impl JournalReading {
    /// A reading that is due now.
    pub(super) fn new(known: Known, now: Time) -> JournalReading {
        JournalReading {
            known,
            due: now,
            runs: false,
            failed: false,
        }
    }
}

/// The server's machine and its process.
pub(super) struct ServerHost {
    process: Option<RegionServer<PayloadBytes>>,
    /// Number of its current process.
    pub(super) boot: u32,
    clock: Clock,
    pub(super) paused_until: Time,
    /// The server's disk is slow until this time.
    pub(super) slow_until: Time,
    region: Vec<u64>,
    writes: VecDeque<QueuedWrite>,
    flushing: bool,
    pub(super) readings: BTreeMap<NodeId, JournalReading>,
    pub(super) disk: ServerDisk,
}

impl ServerHost {
    /// A machine without a process, and the disk of a region without nodes.
    pub(super) fn new(kernel: &mut RegionKernel) -> ServerHost {
        ServerHost {
            process: None,
            boot: 0,
            clock: Clock::draw(kernel),
            paused_until: Time(0),
            slow_until: Time(0),
            region: vec![0; WORDS],
            writes: VecDeque::new(),
            flushing: false,
            readings: BTreeMap::new(),
            disk: ServerDisk::new(),
        }
    }

    /// Starts its process with the disk's state.
    pub(super) fn start(&mut self, kernel: &mut RegionKernel) {
        let opening = RegionOpening {
            region: RegionId(7),
            bytes: WORDS as u64 * 8,
            address: 0,
            spans: Vec::new(),
            record_bytes_max: 0,
            settings: Vec::new(),
        };
        let config = ServerConfig {
            lease: LEASE,
            recent_bytes_max: kernel.profile.recent_bytes_max,
            page_bytes: 8 * 7,
            forget_retry: TELL_AGAIN,
            opening,
        };
        kernel.tell(|| String::from("the server starts"));
        let now = self.local(kernel.now());
        // A trimmed log has only the newest records.
        let trimmed = kernel.rng.index(2 * self.disk.log.len() + 1);
        self.boot += 1;
        self.region = self.disk.region.clone();
        let mut process = RegionServer::new(config, self.disk.table.clone(), now);
        let recent = self.disk.log.iter().skip(trimmed);
        let recent = recent.map(|merged| (merged.node, merged.number, merged.payload.clone()));
        process.plant(kernel.planted());
        process.remember(recent.collect());
        self.process = Some(process);
    }

    /// Ends its process. The writes on their way stay, for the caller to decide on.
    pub(super) fn stop(&mut self) {
        self.process = None;
        self.flushing = false;
        self.paused_until = Time(0);
        self.readings.clear();
    }

    pub(super) fn is_up(&self) -> bool {
        self.process.is_some()
    }

    pub(super) fn process(&self) -> Option<&RegionServer<PayloadBytes>> {
        self.process.as_ref()
    }

    pub(super) fn process_mut(&mut self) -> Option<&mut RegionServer<PayloadBytes>> {
        self.process.as_mut()
    }

    /// The process's copy of the region.
    pub(super) fn memory(&self) -> &[u64] {
        &self.region
    }

    /// Local time of the machine.
    pub(super) fn local(&self, now: Time) -> Time {
        self.clock.local(now)
    }

    /// Ends its pause, and its disk's slowness.
    pub(super) fn heal(&mut self) {
        self.paused_until = Time(0);
        self.slow_until = Time(0);
    }

    /// Number of writes on their way to the disk.
    pub(super) fn pending_writes(&self) -> usize {
        self.writes.len()
    }

    /// Queues a write.
    pub(super) fn write(&mut self, write: QueuedWrite) {
        if let QueuedWrite::Record(record) = &write {
            bytes::apply(&record.payload, &mut self.region);
        }
        self.writes.push_back(write);
    }

    /// Begins to flush all queued writes, unless a flush runs.
    pub(super) fn begin_flush(&mut self, kernel: &mut RegionKernel) {
        if !self.writes.is_empty() && !self.flushing {
            self.flushing = true;
            let (boot, count) = (self.boot, self.writes.len());
            let slow = if self.slow_until > kernel.now() { 20 } else { 1 };
            let delay = Nanos(kernel.disk_time().0 * slow);
            kernel.at(delay, Event::ServerFlushed { boot, count });
        }
    }

    /// Handles the end of a flush.
    pub(super) fn end_flush(&mut self) {
        self.flushing = false;
    }

    /// Takes the first `count` writes out of the queue.
    pub(super) fn take_writes(&mut self, count: usize) -> Vec<QueuedWrite> {
        self.writes.drain(..count).collect()
    }

    /// Loses the queued writes, and returns their number.
    pub(super) fn lose_writes(&mut self) -> usize {
        let lost = self.writes.len();
        self.writes.clear();
        lost
    }

    /// Journals whose reading is due, and what is known of them.
    pub(super) fn due_readings(&self, now: Time) -> Vec<(NodeId, Known)> {
        let Some(process) = &self.process else {
            return Vec::new();
        };
        let due = |reading: &JournalReading| !reading.runs && reading.due <= now;
        let waits = |standing| matches!(standing, Some(NodeState::Reading | NodeState::Stuck));
        let readings = self.readings.iter();
        readings
            .filter(|(node, reading)| due(reading) && waits(process.node_state(**node)))
            .map(|(node, reading)| (*node, reading.known.clone()))
            .collect()
    }

    pub(super) fn poll_send(&mut self, session: SessionId) -> Option<LinkOutput<PayloadBytes>> {
        self.process.as_mut()?.poll_send(session)
    }
}
