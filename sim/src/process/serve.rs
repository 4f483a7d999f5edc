//! A journal that serves: the ring, the log writer, the view writer, and frames to and from lenders.

use std::collections::VecDeque;

use netram_proto::failure::{CallError, RetryPolicy, RetryVerdict, SystemCall};
use netram_proto::id::Lsn;
use netram_proto::journal::{
    FrameBody, JournalWriter, LogFile, LogSuperblock, MulticastTiming, OutgoingFrame, SlotPair, View, Voter,
    WriterConfig,
};
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::port::IoError;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;

use super::ProcessPhase;
use super::open::{OpenedFiles, describe_view};
use crate::check;
use crate::data::{DataLink, new_source};
use crate::disk::SimFile;
use crate::event::FrameDirection;
use crate::event::WorldEvent;
use crate::lender::packet_of;
use crate::server::SimServerLink;
use crate::world::World;

/// The serving machine, and the state that its driver keeps for it.
pub(crate) struct ServingState {
    pub(crate) writer: JournalWriter,
    pub(crate) log: LogFile<SimFile>,
    log_slots: SlotPair,
    pub(crate) superblock: LogSuperblock,
    view_file: SimFile,
    view_slots: SlotPair,
    view_full: View,
    ring: Vec<u8>,
    /// Position of the next record, and the chain value before it.
    pub(crate) tail: ChainPoint,
    /// End of the stable log as reported to the writer.
    stable: ChainPoint,
    /// Ends of records that are not on the disk yet.
    ends: VecDeque<ChainPoint>,
    /// End of the batch that is being synced.
    flushing: Option<ChainPoint>,
    /// The view that is being stored.
    storing: Option<View>,
    /// Retries after refused operations on the log.
    log_policy: RetryPolicy,
    view_policy: RetryPolicy,
    /// The log is not written before this time.
    log_due: Time,
    /// Error for which the local disk was given up; nothing more is written.
    pub(crate) poisoned: Option<IoError>,
    /// Number of syncs of this disk that had failed when the process began to serve.
    pub(crate) syncs_failed_before: u64,
    planted: FaultSwitch,
    /// LSN that was acknowledged when the writer learnt that it is fenced, as the oracle saw it.
    pub(crate) acked_at_fence: Option<Lsn>,
    /// Link to a data lender that also keeps the volume.
    pub(crate) data: Option<DataLink>,
    /// Link to the server, if the journal is a node's.
    pub(crate) server: Option<SimServerLink>,
}

impl ServingState {
    /// A writer for the epoch that `files.view` made durable; the log ends at `end`.
    pub(super) fn new(world: &World, host: usize, files: OpenedFiles, end: ChainPoint) -> ServingState {
        let failed_before = world.hosts[host].disk.borrow().counts.sync_failures;
        let mut writer = JournalWriter::new(
            world.kernel.journal(),
            files.view.epoch,
            files.view.writer,
            files.view.version,
            end,
            writer_config(world),
        )
        .with_epochs(files.view.epochs.clone());
        writer.plant(world.kernel.planted());
        let data = world.data.is_some().then(|| {
            let (view, head) = (files.view.clone(), files.superblock.head.lsn);
            new_source(world, view, world.volume_bytes, head, end.lsn)
        });
        ServingState {
            writer,
            log: files.log,
            log_slots: files.log_slots,
            superblock: files.superblock,
            view_file: files.view_file,
            view_slots: files.view_slots,
            view_full: files.view_full,
            ring: vec![0; world.kernel.profile.window as usize],
            tail: end,
            stable: end,
            ends: VecDeque::new(),
            flushing: None,
            storing: None,
            log_policy: RetryPolicy::new(),
            view_policy: RetryPolicy::new(),
            log_due: Time(0),
            poisoned: None,
            syncs_failed_before: failed_before,
            planted: world.kernel.planted(),
            acked_at_fence: None,
            data,
            server: world.server.is_some().then(SimServerLink::default),
        }
    }

    /// Puts a finished record into the ring.
    pub(super) fn take_record(&mut self, record: &[u8], end: ChainPoint) {
        let capacity = self.ring.len();
        let start = (self.tail.lsn.0 % capacity as u64) as usize;
        let first = record.len().min(capacity - start);
        self.ring[start..start + first].copy_from_slice(&record[..first]);
        self.ring[..record.len() - first].copy_from_slice(&record[first..]);
        self.tail = end;
        self.ends.push_back(end);
        self.writer.on_append(end.lsn);
    }

    fn ring_bytes(&self, from: Lsn, bytes: usize) -> Vec<u8> {
        let capacity = self.ring.len();
        let start = (from.0 % capacity as u64) as usize;
        let first = bytes.min(capacity - start);
        let mut out = Vec::with_capacity(bytes);
        out.extend_from_slice(&self.ring[start..start + first]);
        out.extend_from_slice(&self.ring[..bytes - first]);
        out
    }

    fn packet(&self, outgoing: &OutgoingFrame) -> Vec<u8> {
        match outgoing.body {
            FrameBody::Inline(bytes, length) => packet_of(&outgoing.header, &bytes[..length]),
            // In this world a key is its channel's number, which the header has.
            FrameBody::Channel(_) => packet_of(&outgoing.header, &[]),
            FrameBody::Log { from, bytes } => packet_of(&outgoing.header, &self.ring_bytes(from, bytes)),
        }
    }

    pub(super) fn writer_stable_link(&self) -> ChainPoint {
        self.stable
    }

    fn poison(&mut self, error: IoError) {
        self.poisoned.get_or_insert(error);
        self.writer.on_disk_failed();
    }

    /// Stores the superblock with a new head. It is durable on return.
    pub(super) fn store_head(&mut self, head: ChainPoint) -> Result<(), CallError> {
        let superblock = LogSuperblock {
            head,
            stable: self.superblock.stable.max(self.writer.stable()),
            ..self.superblock
        };
        self.log.store(&mut self.log_slots, &superblock)?;
        self.superblock = superblock;
        Ok(())
    }
}

fn writer_config(world: &World) -> WriterConfig {
    let profile = &world.kernel.profile;
    WriterConfig {
        lenders: world.lenders.addresses(),
        rule: profile.rule,
        wanted: profile.wanted,
        min: profile.min,
        domain: String::from("d0"),
        one_domain: profile.one_domain,
        window_bytes: profile.window,
        timing: profile.timing,
        cast: profile.multicast.then(MulticastTiming::default),
        voter: match world.server {
            Some(_) => Voter::Server,
            None => Voter::Disk,
        },
    }
}

impl World {
    /// Runs `work` on the process's serving machine, if it serves.
    pub(crate) fn with_serving<T>(
        &mut self,
        process: usize,
        work: impl FnOnce(&mut World, &mut ServingState) -> T,
    ) -> Option<T> {
        match core::mem::replace(&mut self.processes[process].phase, ProcessPhase::Dead) {
            ProcessPhase::Serving(mut serving) => {
                let out = work(self, &mut serving);
                self.processes[process].phase = ProcessPhase::Serving(serving);
                Some(out)
            }
            other => {
                self.processes[process].phase = other;
                None
            }
        }
    }

    pub(super) fn settle_serving(&mut self, process: usize) {
        if self.died_midway(process) {
            return;
        }
        self.with_serving(process, |world, serving| {
            world.close_unwanted(process, serving);
            world.pump_data(process, serving);
            world.begin_view(process, serving);
            world.pump_data(process, serving);
            world.begin_flush(process, serving);
            check::after_event(world, process, serving);
            world.pump_server(process, serving);
            world.pump(process, serving);
        });
        self.died_midway(process);
    }

    fn close_unwanted(&mut self, process: usize, serving: &mut ServingState) {
        for slot in serving.writer.take_disconnects().iter() {
            if let Some(conn) = self.network.conn_in(process, slot) {
                self.kernel.hit("links given up by the writer");
                self.kernel
                    .tell(|| format!("process {process} gives its link to lender {slot} up"));
                self.network.close_here(&mut self.kernel, &mut self.lenders, conn);
            }
        }
    }

    fn begin_view(&mut self, process: usize, serving: &mut ServingState) {
        if serving.storing.is_some() || serving.poisoned.is_some() {
            return;
        }
        let Some(view) = serving.writer.view_to_store() else {
            return;
        };
        self.kernel
            .tell(|| format!("process {process} begins to store {}", describe_view(&view)));
        let host = self.processes[process].host;
        self.hosts[host].storing = Some(view.clone());
        if let Some(link) = &mut serving.data {
            link.source.on_view(view.clone());
        }
        if let Some(link) = &mut serving.server {
            link.on_view(view.clone());
        }
        serving.storing = Some(view);
        let delay = self.disk_time();
        self.kernel.at(delay, WorldEvent::ViewStored { process });
    }

    pub(crate) fn on_view_stored(&mut self, process: usize) {
        let now = self.kernel.now();
        self.with_serving(process, |world, serving| {
            let host = world.processes[process].host;
            let Some(view) = serving.storing.take() else {
                return;
            };
            let stored = view.store(
                &mut serving.view_slots,
                &serving.view_file,
                &mut serving.view_full,
            );
            world.hosts.refresh_view(host);
            if world.hosts[host].disk.borrow().is_dead() {
                world.hosts[host].storing = None;
                return;
            }
            if let Err(failure) = stored
                && let Some(pause) = world.retry_pause(serving.planted, &mut serving.view_policy, failure)
            {
                world.kernel.hit("views that the disk refused for a while");
                serving.storing = Some(view);
                return world.kernel.at(pause, WorldEvent::ViewStored { process });
            }
            world.hosts[host].storing = None;
            match stored {
                Ok(()) => {
                    serving.view_policy.succeeded();
                    world.kernel.hit("views stored");
                    world
                        .kernel
                        .tell(|| format!("process {process} has stored view {}", view.version));
                    check::rule03::stored(world, process, &view);
                    serving.writer.on_view_stored(now);
                }
                Err(failure) => {
                    world.kernel.hit("views that could not be stored");
                    world.give_up(process, serving, failure);
                }
            }
        });
        self.settle(process);
    }

    /// Handles a failure as the driver does: returns the pause before the next try, or `None` when it gives
    /// up the disk.
    fn retry_pause(
        &mut self,
        planted: FaultSwitch,
        policy: &mut RetryPolicy,
        failure: CallError,
    ) -> Option<Nanos> {
        match policy.failed(failure, self.kernel.now(), false) {
            RetryVerdict::GiveUp => None,
            RetryVerdict::Again(_) if planted.is(PlantedFault::RefusalIsFinal) => None,
            RetryVerdict::Again(pause) => Some(pause.pause),
        }
    }

    fn begin_flush(&mut self, process: usize, serving: &mut ServingState) {
        if serving.flushing.is_some() || serving.poisoned.is_some() || self.kernel.now() < serving.log_due {
            return;
        }
        let Some(end) = serving.ends.back().copied() else {
            return;
        };
        let from = serving.writer.stable();
        let bytes = serving.ring_bytes(from, end.lsn.since(from) as usize);
        serving.ends.clear();
        match serving.log.write(from, &bytes) {
            Ok(()) => {
                serving.flushing = Some(end);
                let delay = self.disk_time();
                self.kernel.at(delay, WorldEvent::Flushed { process });
            }
            Err(error) => self.not_flushed(process, serving, end, error.of(SystemCall::Write)),
        }
    }

    /// Handles a failed batch up to `end`: it is written again after a pause, or the disk is given up.
    fn not_flushed(
        &mut self,
        process: usize,
        serving: &mut ServingState,
        end: ChainPoint,
        failure: CallError,
    ) {
        if self.died_in_operation(process) {
            return;
        }
        match self.retry_pause(serving.planted, &mut serving.log_policy, failure) {
            None => self.give_up(process, serving, failure),
            Some(pause) => {
                self.kernel.hit("batches that the disk refused for a while");
                serving.ends.push_front(end);
                serving.log_due = self.kernel.now() + pause;
                self.kernel.at(pause, WorldEvent::Flushed { process });
            }
        }
    }

    pub(crate) fn on_flushed(&mut self, process: usize) {
        let now = self.kernel.now();
        self.with_serving(process, |world, serving| {
            let Some(end) = serving.flushing.take() else {
                return;
            };
            if serving.poisoned.is_some() {
                // Another sync of the same file failed since, and may have failed for these bytes.
                return;
            }
            let mut synced = serving.log.sync();
            if synced.is_err() && serving.planted.is(PlantedFault::SyncRetried) {
                synced = serving.log.sync();
            }
            match synced {
                Ok(()) => {
                    serving.log_policy.succeeded();
                    world.kernel.mark(6, end.lsn.0);
                    check::rule09::stable(world, process, end.lsn);
                    serving.stable = end;
                    serving.writer.on_stable(end, now);
                }
                Err(error) => world.not_flushed(process, serving, end, error.of(SystemCall::Sync)),
            }
        });
        self.settle(process);
    }

    pub(super) fn give_up(&mut self, process: usize, serving: &mut ServingState, failure: CallError) {
        if !self.died_in_operation(process) {
            self.kernel
                .tell(|| format!("process {process}: the disk failed: {failure}"));
            self.kernel.hit("journals that went read-only");
            check::rule17::given_up(self, process, serving, failure);
        }
        serving.poison(failure.error);
    }

    /// Whether the process's machine died in the operation that just failed.
    fn died_in_operation(&self, process: usize) -> bool {
        let host = self.processes[process].host;
        self.hosts[host].disk.borrow().is_dead()
    }

    /// Connects, and sends the frames that are due and have room.
    fn pump(&mut self, process: usize, serving: &mut ServingState) {
        let now = self.kernel.now();
        while let Some(outgoing) = serving.writer.next_multicast(now) {
            check::rule04::sends(self, process, serving);
            if let FrameBody::Log { from, bytes } = outgoing.body {
                let body = serving.ring_bytes(from, bytes);
                let from = (process, serving.writer.channel());
                self.network
                    .multicast(&mut self.kernel, &self.lenders, from, outgoing.header, &body);
            }
        }
        for slot in 0..self.lenders.address_count() {
            if serving.writer.wants_connection(slot, now) {
                if let Some(old) = self.network.conn_in(process, slot) {
                    self.network.close_here(&mut self.kernel, &mut self.lenders, old);
                }
                let from = (process, self.processes[process].host);
                self.network.connect(&mut self.kernel, &self.lenders, from, slot);
                continue;
            }
            let Some(conn) = self.network.conn_in(process, slot) else {
                continue;
            };
            while self.network.has_room(conn) {
                let Some(outgoing) = serving.writer.next_frame(slot, now) else {
                    break;
                };
                check::rule04::sends(self, process, serving);
                check::rule04::closes(self, process, serving, &outgoing.header);
                let packet = serving.packet(&outgoing);
                self.network
                    .send(&mut self.kernel, conn, FrameDirection::Up, packet);
            }
        }
    }

    /// Closes the journal before the process ends, as a program does that is told to stop, if the disk has
    /// everything at this moment.
    pub(crate) fn close_journal(&mut self, process: usize) {
        self.with_serving(process, |world, serving| {
            let busy = serving.poisoned.is_some() || serving.storing.is_some() || serving.flushing.is_some();
            let whole = serving.writer.stable() == serving.tail.lsn && serving.writer.fenced().is_none();
            if busy || !whole || serving.server.is_some() || serving.data.is_some() {
                return;
            }
            let host = world.processes[process].host;
            let newest = &world.hosts[host].view;
            let view = View {
                version: newest.version + 1,
                epochs: serving.writer.epochs().clone(),
                counting: false,
                clean: None,
                base: serving.writer.stable(),
                members: Vec::new(),
                ..newest.clone()
            };
            let stored = view.store(
                &mut serving.view_slots,
                &serving.view_file,
                &mut serving.view_full,
            );
            world.hosts.refresh_view(host);
            if stored.is_err() || world.hosts[host].disk.borrow().is_dead() {
                return;
            }
            world.kernel.hit("journals closed");
            world
                .kernel
                .tell(|| format!("process {process} closes its journal"));
            serving.writer.on_close();
            world.pump(process, serving);
        });
    }

    /// Leaves a half-done store of a view, as a machine does that dies now.
    pub(super) fn leave_view_in_doubt(&mut self, process: usize) {
        // Number of operations done on two slots, each written and synced. Zero: nothing was written.
        let operations = self.kernel.rng.below(5) as u32;
        self.with_serving(process, |world, serving| {
            let host = world.processes[process].host;
            world.hosts[host].storing = None;
            let Some(view) = serving.storing.take() else {
                return;
            };
            if operations > 0 && !world.hosts[host].disk.borrow().is_dead() {
                world.kernel.hit("views cut off while being stored");
                world.hosts[host].disk.borrow_mut().crash_after(operations);
                let _ = view.store(
                    &mut serving.view_slots,
                    &serving.view_file,
                    &mut serving.view_full,
                );
            }
        });
    }

    pub(crate) fn disk_time(&mut self) -> Nanos {
        let (low, high) = self.kernel.profile.disk_us;
        let us = self.kernel.rng.between(low, high);
        Nanos::from_us(us * self.nemesis.disk_slowness(self.kernel.now()))
    }
}
