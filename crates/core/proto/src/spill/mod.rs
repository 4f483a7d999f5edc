//! Writing a lender's memory to a disk before the machine loses power, and taking it up again.
//!
//! A *spill* is a file with the windows and fences of one memory. Files can be copied, restored from a
//! backup, or loaded twice, and nobody can tell. So a spill must never be older than what its memory
//! acknowledged:
//!
//! 1. Every thread that answers clients has ended before the first byte is copied.
//! 2. The store is marked *closed* before the file gets its final name. The file is synced by then. So from
//!    the moment a spill can be found, its memory acknowledges nothing more under its incarnation: in the
//!    same boot the mark says so, and after a loss of power the store is gone.
//! 3. What was in a closed store, or in a spill, is taken up into memory with a *new* incarnation. Its
//!    windows keep the incarnation under which clients know them, and are read-only
//!    ([`restore_spilled`](crate::member::Member::restore_spilled)).
//!
//! A copy of a spill, wherever and whenever it is loaded, therefore holds exactly what its incarnation ever
//! acknowledged. A view that was stored since does not name that incarnation's join, and recovery takes the
//! lender for one without its memory (rule 16). The file stays until none of its windows is needed, so it
//! survives a second loss of power.
//!
//! So nothing depends on the file's removal, and a power supply that fails twice costs nothing.
//!
//! The window of a client that is silent for long gets a file of its own while the lender serves others:
//! [`SilentWindow`].

mod silent;

pub use silent::{BindAnswer, FileVerdict, SilentWindow, WindowPlace, judge_file};

use crate::id::Incarnation;
use crate::planted::{FaultSwitch, PlantedFault};

/// The store that a start finds in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundStore {
    /// No store of this boot of the kernel.
    Nothing,
    /// The store of a lender that ended or was killed.
    Open {
        /// Its incarnation.
        incarnation: Incarnation,
        /// The incarnation whose spill it has taken up, if it began with one.
        took_up: Option<Incarnation>,
        /// Whether it remembers any journal.
        occupied: bool,
    },
    /// A store that is closed, since it is being spilled or was.
    Closed(Incarnation),
}

/// The file that a start finds in the directory of spills, under this lender's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundSpill {
    /// No file, or only one that never got its final name.
    Nothing,
    /// A file that fails its checks.
    Damaged,
    /// A whole spill of this incarnation.
    Whole(Incarnation),
}

/// The action of a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPlan {
    /// Goes on with the open store, or begins an empty one if there is none. A spill that it has taken up
    /// stays.
    GoOn,
    /// Makes the windows of the closed store read-only under their incarnation. The store gets a new one.
    Reopen,
    /// Takes the spill up into new memory with a new incarnation.
    Load,
    /// Starts nothing: some windows would be lost.
    Refuse(StartRefusal),
}

/// Why a lender does not start. Rule 23: nothing is discarded that a client may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartRefusal {
    /// The spill fails its checks.
    Damaged,
    /// The memory lives, and the spill is another memory's.
    Beside,
    /// The memory of which the spill was taken has lived on, which no lender does: the machine's memory was
    /// restored from a snapshot.
    LivedOn,
}

/// Decides what a start does with what it finds.
pub fn plan_start(store: FoundStore, spill: FoundSpill, planted: FaultSwitch) -> StartPlan {
    let refuse = StartPlan::Refuse;
    match (store, spill) {
        (FoundStore::Closed(_), _) if planted.is(PlantedFault::ClosedStoreServes) => StartPlan::GoOn,
        (_, FoundSpill::Damaged) => refuse(StartRefusal::Damaged),
        (FoundStore::Closed(_), FoundSpill::Nothing) => StartPlan::Reopen,
        (FoundStore::Closed(memory), FoundSpill::Whole(spilled)) if memory == spilled => StartPlan::Reopen,
        (FoundStore::Closed(_), FoundSpill::Whole(_)) => refuse(StartRefusal::Beside),
        (FoundStore::Nothing, FoundSpill::Whole(_)) => StartPlan::Load,
        (FoundStore::Nothing | FoundStore::Open { .. }, FoundSpill::Nothing) => StartPlan::GoOn,
        (
            FoundStore::Open {
                incarnation,
                took_up,
                occupied,
            },
            FoundSpill::Whole(spilled),
        ) => match (took_up == Some(spilled), incarnation == spilled) {
            (true, _) => StartPlan::GoOn,
            (false, true) => refuse(StartRefusal::LivedOn),
            (false, false) if occupied => refuse(StartRefusal::Beside),
            (false, false) => StartPlan::Load,
        },
    }
}

/// A step of a spill. Each begins when the one before has succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpillStep {
    /// Writes everything into a file with a temporary name, and syncs it.
    Write,
    /// Marks the store as closed.
    Close,
    /// Gives the file its final name.
    Rename,
    /// Syncs the directory.
    SyncDirectory,
}

/// A spill in progress, after the last thread that answers clients has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpillRun {
    step: Option<SpillStep>,
}

impl Default for SpillRun {
    fn default() -> SpillRun {
        SpillRun {
            step: Some(SpillStep::Write),
        }
    }
}

impl SpillRun {
    /// The step that is due; `None`: the spill is complete.
    pub fn step(&self) -> Option<SpillStep> {
        self.step
    }

    /// Notes that the step has succeeded.
    pub fn done(&mut self) {
        self.step = match self.step {
            Some(SpillStep::Write) => Some(SpillStep::Close),
            Some(SpillStep::Close) => Some(SpillStep::Rename),
            Some(SpillStep::Rename) => Some(SpillStep::SyncDirectory),
            Some(SpillStep::SyncDirectory) | None => None,
        };
    }

    /// Whether the store must stay closed if the step that is due fails. A rename that reports an error may
    /// have happened.
    pub fn is_final(&self) -> bool {
        self.step.is_none_or(|step| step > SpillStep::Close)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Incarnation = Incarnation(1);
    const B: Incarnation = Incarnation(2);

    fn open(took_up: Option<Incarnation>, occupied: bool) -> FoundStore {
        FoundStore::Open {
            incarnation: A,
            took_up,
            occupied,
        }
    }

    #[test]
    fn every_pair_of_findings_has_its_plan() {
        use FoundSpill::{Damaged, Nothing, Whole};
        use StartPlan::{GoOn, Load, Refuse, Reopen};
        let plans = [
            (FoundStore::Nothing, Nothing, GoOn),
            (FoundStore::Nothing, Whole(A), Load),
            (FoundStore::Nothing, Damaged, Refuse(StartRefusal::Damaged)),
            (open(None, true), Nothing, GoOn),
            (open(Some(B), true), Whole(B), GoOn),
            (open(None, true), Whole(B), Refuse(StartRefusal::Beside)),
            (open(None, false), Whole(B), Load),
            (open(None, true), Whole(A), Refuse(StartRefusal::LivedOn)),
            (open(None, false), Whole(A), Refuse(StartRefusal::LivedOn)),
            (open(None, true), Damaged, Refuse(StartRefusal::Damaged)),
            (FoundStore::Closed(A), Nothing, Reopen),
            (FoundStore::Closed(A), Whole(A), Reopen),
            (FoundStore::Closed(A), Whole(B), Refuse(StartRefusal::Beside)),
        ];
        for (store, spill, plan) in plans {
            assert_eq!(
                plan_start(store, spill, FaultSwitch::NONE),
                plan,
                "{store:?} {spill:?}"
            );
        }
    }

    #[test]
    fn the_store_is_closed_before_the_file_can_be_found() {
        let mut run = SpillRun::default();
        let mut steps = alloc::vec::Vec::new();
        while let Some(step) = run.step() {
            steps.push((step, run.is_final()));
            run.done();
        }
        let expected = [
            (SpillStep::Write, false),
            (SpillStep::Close, false),
            (SpillStep::Rename, true),
            (SpillStep::SyncDirectory, true),
        ];
        assert_eq!(steps, expected);
        assert!(run.is_final());
    }
}
