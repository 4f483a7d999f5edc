//! What a serving process does after each event: the log writer, the view writer, and frames to lenders.

use netram_proto::failure::{CallError, RetryPolicy, RetryVerdict, SystemCall};
use netram_proto::journal::FrameBody;
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::time::Nanos;
use netram_proto::wire::ChainPoint;

use super::serving::{ServingState, describe_view};
use crate::check;
use crate::event::FrameDirection;
use crate::event::WorldEvent;
use crate::world::World;

impl World {
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

    fn pump_data(&mut self, process: usize, serving: &mut ServingState) {
        let may_connect = !self.data.is_held(self.processes[process].host);
        if let Some(link) = &mut serving.data {
            let log = (&serving.log, serving.superblock.head.lsn);
            link.pump(
                &mut self.kernel,
                &mut self.data,
                (process, may_connect),
                &mut serving.writer,
                log,
            );
        }
    }

    fn pump_server(&mut self, process: usize, serving: &mut ServingState) {
        let history = &self.hosts[self.processes[process].host].history;
        if let (Some(server), Some(link)) = (&self.server, &mut serving.server) {
            link.pump(&mut self.kernel, server, process, &serving.writer, history);
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
        let delay = self.kernel.disk_time();
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
                let delay = self.kernel.disk_time();
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

    pub(crate) fn give_up(&mut self, process: usize, serving: &mut ServingState, failure: CallError) {
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
    pub(super) fn pump(&mut self, process: usize, serving: &mut ServingState) {
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
}
