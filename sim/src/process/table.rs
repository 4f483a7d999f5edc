//! The client's processes, and what each does: nothing any more, opening its journal, or serving it.

use std::ops::{Index, IndexMut};

use netram_proto::id::WriterId;
use netram_proto::journal::Recovery;
use netram_proto::limit::RECORD_HEADER_BYTES;
use netram_proto::port::LogState;
use netram_proto::time::Time;

use super::serving::ServingState;
use crate::profile::WorldProfile;

/// A client's process on a host.
pub(crate) struct SimProcess {
    pub(crate) host: usize,
    pub(crate) writer: WriterId,
    pub(crate) phase: ProcessPhase,
    pub(crate) paused_until: Time,
    /// State of the log when the process ended, which its program still sees.
    pub(super) last_state: LogState,
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
    pub(crate) recovery: Recovery,
    /// Time at which each member was last tried or asked.
    pub(crate) tried_at: Vec<Time>,
}

/// All processes of a client, by number. A number is never used again.
#[derive(Default)]
pub(crate) struct Processes(Vec<SimProcess>);

impl Processes {
    /// Adds a process on `host` that does nothing yet. Returns its number.
    pub(crate) fn add(&mut self, host: usize, writer: WriterId) -> usize {
        self.0.push(SimProcess {
            host,
            writer,
            phase: ProcessPhase::Dead,
            paused_until: Time(0),
            last_state: LogState::default(),
            appends_itself: false,
            proven: false,
        });
        self.0.len() - 1
    }

    /// Number of processes, dead ones included.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The processes, in the order of their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &SimProcess> {
        self.0.iter()
    }

    /// The process that was started last.
    pub(crate) fn last(&self) -> Option<&SimProcess> {
        self.0.last()
    }

    /// Whether the process lives.
    pub(crate) fn alive(&self, process: usize) -> bool {
        !matches!(self.0[process].phase, ProcessPhase::Dead)
    }

    /// The process on `host` that lives, if one does.
    pub(crate) fn living(&self, host: usize) -> Option<usize> {
        (0..self.0.len())
            .rev()
            .find(|&process| self.0[process].host == host && self.alive(process))
    }

    /// The serving machine of a process, if it serves.
    pub(crate) fn serving(&self, process: usize) -> Option<&ServingState> {
        match &self.0[process].phase {
            ProcessPhase::Serving(serving) => Some(serving),
            ProcessPhase::Dead | ProcessPhase::Opening(_) => None,
        }
    }

    /// Takes the serving machine out of a process, which is dead until [`Processes::put_serving`].
    pub(super) fn take_serving(&mut self, process: usize) -> Option<Box<ServingState>> {
        match core::mem::replace(&mut self.0[process].phase, ProcessPhase::Dead) {
            ProcessPhase::Serving(serving) => Some(serving),
            other => {
                self.0[process].phase = other;
                None
            }
        }
    }

    /// Puts the serving machine back.
    pub(super) fn put_serving(&mut self, process: usize, serving: Box<ServingState>) {
        self.0[process].phase = ProcessPhase::Serving(serving);
    }

    /// Ends all pauses.
    pub(crate) fn resume(&mut self) {
        for process in &mut self.0 {
            process.paused_until = Time(0);
        }
    }

    /// State of the log that a process serves; for one that has ended, its last state.
    pub(crate) fn log_state(&self, profile: &WorldProfile, process: usize) -> LogState {
        let Some(serving) = self.serving(process) else {
            return self.0[process].last_state;
        };
        LogState {
            head: serving.superblock.head.lsn,
            stable: serving.writer.stable_for_good(),
            acked: serving.writer.acked(),
            tail: serving.tail.lsn,
            capacity: serving.log.capacity(),
            payload_max: payload_max(profile),
        }
    }
}

/// Maximum length of a record's payload.
pub(crate) fn payload_max(profile: &WorldProfile) -> usize {
    profile.window.min(profile.capacity) as usize - RECORD_HEADER_BYTES
}

impl Index<usize> for Processes {
    type Output = SimProcess;

    fn index(&self, process: usize) -> &SimProcess {
        &self.0[process]
    }
}

impl IndexMut<usize> for Processes {
    fn index_mut(&mut self, process: usize) -> &mut SimProcess {
        &mut self.0[process]
    }
}
