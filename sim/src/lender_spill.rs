//! The disk of a lender's machine: spills of its memory, as `netram_proto::spill` orders them, and what the
//! next start makes of them. Operators copy these files, and put old copies back.

use netram_proto::id::{Incarnation, JournalId};
use netram_proto::member::{Member, MemberState};
use netram_proto::planted::FaultSwitch;
use netram_proto::spill::{FoundSpill, FoundStore, SpillRun, SpillStep, StartPlan, plan_start};

use crate::check::rule02::MemberObserver;
use crate::lender::{LENDER_BYTES, SimLender};
use crate::named_clients;
use crate::window_ring::WindowRing;

/// A lender's memory in a file.
#[derive(Clone, Debug)]
pub(crate) struct SpillImage {
    /// Incarnation of the memory.
    store: Incarnation,
    /// Incarnation under which the journal's member answered.
    member: Incarnation,
    state: Option<MemberState>,
    window: WindowRing,
    observer: MemberObserver,
}

/// Files of spills.
#[derive(Clone, Debug, Default)]
pub(crate) struct SpillDisk {
    written: Option<SpillImage>,
    /// The file that a start finds.
    found: Option<SpillImage>,
    /// The file that a start finds after a loss of power, since the directory is not synced.
    before_rename: Option<Option<SpillImage>>,
    /// Copies that an operator has made.
    copies: Vec<SpillImage>,
}

impl SpillDisk {
    /// The machine loses power. `renamed`: the disk had the file's new name already.
    pub(crate) fn cut(&mut self, renamed: bool) {
        self.written = None;
        if let Some(before) = self.before_rename.take()
            && !renamed
        {
            self.found = before;
        }
    }

    /// Whether an operator has copies.
    pub(crate) fn has_copies(&self) -> bool {
        !self.copies.is_empty()
    }

    /// An operator puts a copy back, whatever is there.
    pub(crate) fn put_back(&mut self, copy: usize) {
        self.found = self.copies.get(copy % self.copies.len().max(1)).cloned();
        self.before_rename = None;
    }

    fn finding(&self) -> FoundSpill {
        self.found
            .as_ref()
            .map_or(FoundSpill::Nothing, |image| FoundSpill::Whole(image.store))
    }
}

impl SimLender {
    /// A copy of a spill for the disk of another machine; `None` if there is none.
    pub(crate) fn spill_copy(&self) -> Option<SpillDisk> {
        let copy = self.spill.copies.last()?.clone();
        Some(SpillDisk {
            found: Some(copy),
            ..SpillDisk::default()
        })
    }

    /// Does the step of a spill that is due, after the process has ended.
    pub(crate) fn spill_step(&mut self, run: &mut SpillRun) {
        match run.step() {
            Some(SpillStep::Write) => {
                self.spill.written = Some(SpillImage {
                    store: self.store,
                    member: self.incarnation,
                    state: self.saved,
                    window: self.window.clone(),
                    observer: self.observer.clone(),
                });
            }
            Some(SpillStep::Close) => self.closed = true,
            Some(SpillStep::Rename) => {
                let before = core::mem::replace(&mut self.spill.found, self.spill.written.take());
                self.spill.before_rename = Some(before);
            }
            Some(SpillStep::SyncDirectory) => {
                self.spill.before_rename = None;
                self.spill.copies.extend(self.spill.found.clone());
            }
            None => (),
        }
        run.done();
    }

    /// Starts a process with what is in memory and on the disk. `false`: the memory does not match its saved
    /// state and begins anew as `next`.
    pub fn start(&mut self, journal: JournalId, next: Incarnation, planted: FaultSwitch) -> bool {
        self.up = true;
        self.spill.written = None;
        let plan = plan_start(self.found_store(), self.spill.finding(), planted);
        match plan {
            StartPlan::GoOn => self.closed = false,
            StartPlan::Reopen => self.reopen(next),
            StartPlan::Load => self.load(next),
            // The operator moves the file away.
            StartPlan::Refuse(_) => {
                self.spill.found = None;
                return self.start(journal, next, planted);
            }
        }
        let away = self.take_up_window(journal, planted);
        named_clients::started(self, planted, self.saved.is_some());
        if away.is_some() {
            self.member = away;
            return true;
        }
        let Some(state) = self.saved else { return true };
        let restored = match state.spilled {
            true => Member::restore_spilled(journal, (self.incarnation, self.store), state, &self.window),
            false => Member::restore(journal, self.incarnation, state, &self.window),
        };
        match restored {
            Some(mut member) => {
                member.plant(planted);
                self.saved = Some(*member.state());
                self.member = Some(member);
                self.forget_ended_journals();
                true
            }
            None => {
                self.lose(next);
                self.up = true;
                false
            }
        }
    }

    fn found_store(&self) -> FoundStore {
        match (self.has_memory, self.closed) {
            (false, _) => FoundStore::Nothing,
            (true, true) => FoundStore::Closed(self.store),
            (true, false) => FoundStore::Open {
                incarnation: self.store,
                took_up: self.took_up,
                occupied: self.saved.is_some(),
            },
        }
    }

    fn reopen(&mut self, next: Incarnation) {
        self.took_up = Some(self.store);
        self.closed = false;
        self.begin_as(next);
    }

    fn load(&mut self, next: Incarnation) {
        let Some(image) = self.spill.found.clone() else {
            return;
        };
        self.lost_memories.push((self.incarnation, self.state()));
        self.took_up = Some(image.store);
        self.incarnation = image.member;
        self.saved = image.state;
        self.window = image.window;
        self.window.limit = LENDER_BYTES;
        self.observer = image.observer;
        self.closed = false;
        self.begin_as(next);
    }

    /// Gives the memory its incarnation; what it holds keeps the earlier one.
    fn begin_as(&mut self, next: Incarnation) {
        self.store = next;
        self.has_memory = true;
        match &mut self.saved {
            Some(state) => state.spilled = true,
            None => self.incarnation = next,
        }
    }

    /// Nothing is left of the spill's journal: the next member is one of this memory.
    pub(crate) fn answer_as_memory(&mut self) {
        if self.incarnation != self.store {
            self.lost_memories
                .push((self.incarnation, MemberState::default()));
            self.incarnation = self.store;
        }
    }

    /// Notes that the member has let go of a spilled window and answers as another incarnation.
    pub(crate) fn follow_incarnation(&mut self, before: MemberState) -> bool {
        let Some(member) = &self.member else { return false };
        if member.incarnation() == self.incarnation {
            return false;
        }
        self.lost_memories.push((self.incarnation, before));
        self.incarnation = member.incarnation();
        self.observer = MemberObserver::default();
        self.end_sessions();
        true
    }
}
