//! The journals of a shard whose clients are silent.

use std::time::{Duration, Instant};

use netram_proto::id::JournalId;
use netram_proto::member::{Member, MemberState, Window};
use netram_proto::spill::BindAnswer;

use super::{MemberJournal, ShardJournals};
use crate::limit::SILENT_RETRY;
use crate::silent::{WindowOutcome, WindowRead};
use crate::sys::seconds_of_run;

impl MemberJournal {
    /// Whether no client has been connected for `after`, at `now` seconds of the machine's uptime. A client
    /// that was never heard counts from `since`.
    fn is_silent(&self, after: Duration, now: u64, since: u64) -> bool {
        let heard = self.memory.last_contact().max(since);
        self.sessions == 0 && self.member.state().joined && now.saturating_sub(heard) >= after.as_secs()
    }

    fn publish(&self) {
        self.stats.publish(self.member.state(), self.memory.capacity());
        self.stats.set_on_disk(self.memory.is_on_disk());
    }

    /// Asks for the journal in the name of a client.
    pub(super) fn answer_bind(&mut self) -> BindAnswer {
        match self.sessions {
            0 => self.memory.answer_bind(),
            _ => BindAnswer::Serve,
        }
    }

    fn end(&mut self, outcome: WindowOutcome) {
        match outcome {
            WindowOutcome::Written(is_whole) => self.memory.end_writing(is_whole),
            WindowOutcome::Read(WindowRead::Whole) => {
                self.memory.end_reading(WindowRead::Whole);
                if !self.member.has_window_in(&self.memory) {
                    tracing::error!(
                        journal = %self.id,
                        "the window's bytes failed their checks after they were read from the disk: it was dropped, its fence is kept"
                    );
                    self.memory.set_file_aside();
                    self.lose_window();
                }
            }
            WindowOutcome::Read(WindowRead::Refused) => self.memory.end_reading(WindowRead::Refused),
            WindowOutcome::Read(WindowRead::Damaged) => {
                self.memory.end_reading(WindowRead::Damaged);
                self.lose_window();
            }
        }
        self.publish();
    }

    /// Keeps only the fence.
    fn lose_window(&mut self) {
        let sealed = MemberState {
            joined: false,
            spilled: false,
            ..*self.member.state()
        };
        self.memory.lose_window(&sealed);
        let incarnation = self.memory.store_incarnation();
        let Some(member) = Member::restore(self.id, incarnation, sealed, &self.memory) else {
            unreachable!("a member without a window has no bytes to check")
        };
        self.member = member;
    }
}

impl ShardJournals {
    /// Begins to write the windows of clients that have been silent for as long as the settings say, and
    /// releases the memory of written ones if it is wanted. Each is this shard's, which has index `shard`.
    pub(crate) fn look_at_silent(&mut self, shard: usize, now: Instant) {
        let shared = &self.shared;
        let wanted = shared
            .store
            .silent()
            .take_wanted(|id| shared.shard_of(id) == shard);
        for id in wanted {
            self.drop_window(id);
        }
        let shared = &self.shared;
        let Some(after) = shared
            .config
            .spill_after
            .filter(|_| shared.config.spill.is_some())
        else {
            return;
        };
        if self.silent_refused_until.is_some_and(|until| now < until) || shared.stopping() {
            return;
        }
        let (uptime, started) = (seconds_of_run(), shared.started_s);
        for journal in self.journals.iter_mut().flatten() {
            if !journal.is_silent(after, uptime, started) {
                continue;
            }
            let MemberJournal { member, memory, .. } = journal;
            let begins = memory.begin_writing(|| {
                member.freeze();
                *member.state()
            });
            if begins {
                journal.publish();
            }
        }
    }

    fn drop_window(&mut self, id: JournalId) {
        let Some(journal) = self
            .by_id
            .get(&id)
            .and_then(|place| self.journals[place.0].as_mut())
        else {
            return;
        };
        let bytes = journal.memory.capacity();
        if journal.sessions == 0 && journal.memory.drop_window() {
            journal.publish();
            tracing::info!(journal = %id, bytes, "others get the memory of a silent client's window, which is on the disk");
        }
    }

    /// A job of the disk for this journal has ended.
    pub(crate) fn end_job(&mut self, id: JournalId, outcome: WindowOutcome, now: Instant) {
        if outcome == WindowOutcome::Written(false) {
            self.silent_refused_until = Some(now + SILENT_RETRY);
        }
        if let Some(journal) = self
            .by_id
            .get(&id)
            .and_then(|place| self.journals[place.0].as_mut())
        {
            journal.end(outcome);
        }
    }
}
