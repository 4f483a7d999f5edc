//! A client's process: the driver's part, as the simulator plays it. The machines inside are the ones that
//! ship.
//!
//! | file | idea |
//! |---|---|
//! | `mod.rs` | a process's life, and handing events to the machine that waits for them |
//! | `open.rs` | opening a journal: claim, scan, recover, assemble, release |
//! | `serve.rs` | a journal that serves: ring, disk writer, view writer, frames |
//! | `log.rs` | what a client program calls: append, wait, trim, read |
//! | `backing_disk.rs` | the backing disk of a directory of files |

mod backing_disk;
mod log;
mod open;
mod serve;

pub use log::SimLog;
pub(crate) use log::WAIT_MAX;
pub use open::OpenFailure;
pub(crate) use open::{ALL_MEMBERS_WAIT, RECOVERY_TIMEOUT};
pub(crate) use serve::ServingState;

use netram_proto::id::WriterId;
use netram_proto::journal::Recovery;
use netram_proto::port::LogState;
use netram_proto::time::Time;
use netram_proto::wire::Frame;

use crate::check;
use crate::event::WorldEvent;
use crate::kernel::TICK;
use crate::world::World;

/// A client's process on a host.
pub(crate) struct SimProcess {
    pub(crate) host: usize,
    pub(crate) writer: WriterId,
    pub(crate) phase: ProcessPhase,
    pub(crate) paused_until: Time,
    /// State of the log when the process ended, which its program still sees.
    last_state: LogState,
    /// Whether it appends by itself, beside the scenario's program.
    pub(crate) appends_itself: bool,
    /// Whether all members were asked, so that it may fence.
    pub(crate) proven: bool,
}

pub(crate) enum ProcessPhase {
    Dead,
    Opening(Box<OpeningState>),
    Serving(Box<ServingState>),
}

/// Recovery under way.
pub(crate) struct OpeningState {
    recovery: Recovery,
    /// Time at which each member was last tried or asked.
    tried_at: Vec<Time>,
}

impl World {
    fn spawn(&mut self, host: usize) -> usize {
        self.hosts[host].disk.borrow_mut().revive();
        self.processes.push(SimProcess {
            host,
            writer: WriterId(self.kernel.rng.draw()),
            phase: ProcessPhase::Dead,
            paused_until: Time(0),
            last_state: LogState::default(),
            appends_itself: false,
            proven: false,
        });
        self.network.add_process();
        let process = self.processes.len() - 1;
        self.kernel.at(TICK, WorldEvent::Tick { process });
        process
    }

    /// Whether the process lives.
    pub fn alive(&self, process: usize) -> bool {
        !matches!(self.processes[process].phase, ProcessPhase::Dead)
    }

    /// The process on `host` that lives, if one does.
    pub(crate) fn living(&self, host: usize) -> Option<usize> {
        (0..self.processes.len())
            .rev()
            .find(|&process| self.processes[process].host == host && self.alive(process))
    }

    /// Ends the process; in one of four cases it closes its journal first. With `power_cut` its machine dies.
    pub(crate) fn end(&mut self, process: usize, power_cut: bool) {
        if !power_cut && self.kernel.rng.chance(250) {
            self.close_journal(process);
        }
        self.crash(process, power_cut);
    }

    /// Kills the process without a farewell; with `power_cut`, its machine.
    pub(crate) fn crash(&mut self, process: usize, power_cut: bool) {
        if !self.alive(process) {
            return;
        }
        self.kernel.mark(4, process as u64 * 2 + u64::from(power_cut));
        let kind = if power_cut {
            "its machine lost power"
        } else {
            "it crashed"
        };
        self.kernel.tell(|| format!("process {process} ends: {kind}"));
        self.kernel.hit(if power_cut {
            "client power cuts"
        } else {
            "client crashes"
        });
        self.leave_view_in_doubt(process);
        self.reap(process);
        let host = self.processes[process].host;
        if power_cut {
            self.hosts[host].disk.borrow_mut().power_cut();
        }
        self.stop_backing_disk(power_cut);
        self.hosts.refresh_view(host);
    }

    /// Ends a process for whatever reason: connections close, and events for it are dropped.
    fn reap(&mut self, process: usize) {
        self.network
            .close_all(&mut self.kernel, &mut self.lenders, process);
        self.processes[process].last_state = self.log_state(process);
        self.processes[process].phase = ProcessPhase::Dead;
        self.network.set_slots(process, core::iter::empty());
    }

    /// Handles a process that died between two disk operations. Whether its machine died too is drawn.
    pub(crate) fn died_midway(&mut self, process: usize) -> bool {
        let host = self.processes[process].host;
        if !self.hosts[host].disk.borrow().is_dead() {
            return false;
        }
        let power_cut = self.kernel.rng.chance(500);
        self.crash(process, power_cut);
        true
    }

    pub(crate) fn on_tick(&mut self, process: usize) {
        if !self.alive(process) {
            return;
        }
        let now = self.kernel.now();
        if let ProcessPhase::Serving(serving) = &mut self.processes[process].phase {
            serving.writer.on_tick(now);
        }
        self.kernel.at(TICK, WorldEvent::Tick { process });
        self.settle(process);
    }

    pub(crate) fn link_up(&mut self, process: usize, slot: usize) {
        let now = self.kernel.now();
        match &mut self.processes[process].phase {
            ProcessPhase::Dead => return,
            ProcessPhase::Opening(opening) => opening.recovery.on_connected(slot),
            ProcessPhase::Serving(serving) => serving.writer.on_connected(slot, now),
        }
        self.settle(process);
    }

    pub(crate) fn link_lost(&mut self, process: usize, slot: usize) {
        let now = self.kernel.now();
        self.kernel.hit("links lost");
        self.kernel
            .tell(|| format!("process {process} loses its link to lender {}", slot));
        match &mut self.processes[process].phase {
            ProcessPhase::Dead => return,
            ProcessPhase::Opening(opening) => opening.recovery.on_lost(slot),
            ProcessPhase::Serving(serving) => serving.writer.on_lost(slot, now),
        }
        self.settle(process);
    }

    pub(crate) fn process_gets(&mut self, process: usize, slot: usize, packet: &[u8]) {
        let now = self.kernel.now();
        let Ok(frame) = Frame::parse(packet) else {
            if let Some(conn) = self.network.conn_in(process, slot) {
                self.network.break_conn(&mut self.kernel, conn);
            }
            return;
        };
        self.kernel
            .mark(3, frame.header.kind as u64 ^ frame.header.lsn.0 << 8);
        match &mut self.processes[process].phase {
            ProcessPhase::Dead => return,
            ProcessPhase::Opening(opening) => {
                opening.tried_at[slot] = now;
                opening.recovery.on_frame(slot, &frame);
                check::rule20::recovery(&opening.recovery, self.kernel.profile.window);
            }
            ProcessPhase::Serving(serving) => serving.writer.on_frame(slot, &frame, now),
        }
        self.settle(process);
    }

    /// Begins everything that the machine inside wants done after an event.
    pub(crate) fn settle(&mut self, process: usize) {
        if self.processes[process].paused_until > self.kernel.now() {
            return;
        }
        match &self.processes[process].phase {
            ProcessPhase::Dead => (),
            ProcessPhase::Opening(_) => self.settle_opening(process),
            ProcessPhase::Serving(_) => self.settle_serving(process),
        }
    }

    /// The time until which the process stands still, if it does.
    pub(crate) fn standing_still(&self, event: &WorldEvent) -> Option<Time> {
        let process = match *event {
            WorldEvent::Tick { process }
            | WorldEvent::Flushed { process }
            | WorldEvent::ViewStored { process }
            | WorldEvent::DataConnected { process, .. }
            | WorldEvent::DataDown { process, .. }
            | WorldEvent::DataLost { process, .. }
            | WorldEvent::Busy { process } => process,
            WorldEvent::ServerMessage { .. } => return self.server_away(),
            WorldEvent::ServerAck { process, .. } | WorldEvent::NodeFenced { process } => {
                let until = self.processes[process].paused_until;
                return self
                    .server_away()
                    .max((until > self.kernel.now()).then_some(until));
            }
            WorldEvent::DataUp { .. } | WorldEvent::DataFlushed => {
                let until = self.data.as_ref()?.paused_until;
                return (until > self.kernel.now()).then_some(until);
            }
            WorldEvent::Connected { conn } | WorldEvent::Closed { conn } => self.network.process_of(conn),
            _ => return None,
        };
        let until = self.processes[process].paused_until;
        (until > self.kernel.now()).then_some(until)
    }
}
