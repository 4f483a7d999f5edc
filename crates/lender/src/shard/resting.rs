//! The journals of a shard that rest, and their sessions that wait meanwhile.
//!
//! [`SideWork`](netram_proto::session::side_work::SideWork) decides how long a journal rests. Nothing is read
//! from its sessions until then. Those that had something to read wait here in the order in which they came,
//! so no session of a journal keeps the others from their turns.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use netram_proto::time::Time;

use super::{Shard, watch};
use crate::journal::JournalIndex;
use crate::limit::CONTENDED_FOR;

/// A journal that rests.
pub(super) struct RestingJournal {
    pub(super) index: JournalIndex,
    until: Instant,
    /// Connections that wait.
    pub(super) connections: VecDeque<usize>,
}

/// The journals that rest. They are few unless many clients misbehave.
#[derive(Default)]
pub(super) struct RestingJournals(Vec<RestingJournal>);

impl RestingJournals {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a journal that does not rest yet.
    pub(super) fn add(&mut self, index: JournalIndex, until: Instant) {
        self.0.push(RestingJournal {
            index,
            until,
            connections: VecDeque::new(),
        });
    }

    /// Lets a connection wait for its journal.
    pub(super) fn wait(&mut self, journal: JournalIndex, connection: usize) {
        let resting = self.0.iter_mut().find(|resting| resting.index == journal);
        if let Some(resting) = resting {
            resting.connections.push_back(connection);
        }
    }

    /// Removes a connection that has ended.
    pub(super) fn forget(&mut self, connection: usize) {
        for resting in &mut self.0 {
            resting.connections.retain(|waiting| *waiting != connection);
        }
    }

    /// When the next rest ends.
    pub(super) fn next_end(&self) -> Option<Instant> {
        self.0.iter().map(|resting| resting.until).min()
    }

    /// Takes a journal whose rest has ended.
    pub(super) fn take_ended(&mut self, now: Instant) -> Option<RestingJournal> {
        let at = self.0.iter().position(|resting| resting.until <= now)?;
        Some(self.0.swap_remove(at))
    }
}

impl Shard {
    /// Lets a journal rest if its sessions have had too much of the thread beside appends.
    pub(super) fn note_side_work(&mut self, place: JournalIndex, took: Duration) {
        let now = Instant::now();
        let time = time_of(now, self.shared.started);
        let beside = self.last_appends.beside(place);
        let contended = beside.is_some_and(|at| time.since(at) <= CONTENDED_FOR);
        let journal = self.journals.at(place);
        let rest = journal.note_side_work(took, time, contended, self.resting.len());
        if !rest.is_zero() {
            self.resting.add(place, now + rest);
        }
    }

    /// Lets a session wait for its journal, which rests. Nothing is read from it; answers that wait are sent.
    #[cold]
    pub(super) fn let_rest(&mut self, index: usize) -> bool {
        let Some(connection) = &mut self.connections[index] else {
            return false;
        };
        if !connection.is_resting {
            connection.is_resting = true;
            self.resting.wait(connection.index, index);
        }
        if let Err(error) = connection.outbox.ready(self.now) {
            self.end(index, error.into());
            return true;
        }
        watch(&self.poller, connection, index);
        false
    }

    /// Serves the sessions of journals whose rest has ended. Returns whether a frame arrived.
    pub(super) fn end_rests(&mut self) -> bool {
        let mut received = false;
        while let Some(rested) = self.resting.take_ended(self.now) {
            self.journals.end_rest(rested.index);
            for index in rested.connections {
                if let Some(connection) = &mut self.connections[index] {
                    connection.is_resting = false;
                    received |= self.serve(index);
                }
            }
        }
        received
    }
}

/// The time since the lender's start.
pub(super) fn time_of(now: Instant, started: Instant) -> Time {
    Time(now.duration_since(started).as_nanos() as u64)
}
