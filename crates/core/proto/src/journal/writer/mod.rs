//! The journal's one writer: which lenders are members, what each is to be sent, and what is acknowledged.
//!
//! A [`JournalWriter`] holds no bytes, only positions; the ring is the driver's. Its methods come in four
//! kinds: getters; `on_*` tell it what happened; commands (`append`); and `next_frame`, `view_to_store`,
//! `take_disconnects` say what to do next.
//!
//! | file | idea |
//! |---|---|
//! | `mod.rs` | positions: tail, stable, acknowledged |
//! | `lender.rs` | one lender: its connection's and its membership's state |
//! | `frames.rs` | what to send, and what an answer means |
//! | `cast.rs` | what is sent once for all, by multicast |
//! | `domains.rs` | what feeds the members: which of them one failure may take together |
//! | `replica_ack.rs` | what a data lender has, and so what members must keep |
//! | `shared.rs` | a node's journal: the server of its region votes in the disk's place |
//! | `views.rs` | who is a member: proposing, storing and adopting views |
//! | `given_up.rs` | who is given up: silent too long, or without progress |
//! | `memory.rs` | which lenders are one memory |
//! | `rest.rs` | when the journal is clean, and which acknowledgements count then |
//! | `status.rs` | what an operator is told |
//!
//! What keeps acknowledged bytes safe when the view changes (rules 1 and 3): from the moment a new view is
//! proposed, an LSN is acknowledged only if the *old and the new* view's rule hold it (or the local disk
//! does); the new view is stored only when everything acknowledged so far satisfies it; and it replaces the
//! old one only when it is durable. Whichever of the two a crash leaves in the file, its members have
//! everything that was acknowledged. In a shared journal the same holds with the server's word in the place
//! of the local disk's.

mod aliases;
mod domains;
mod frames;
mod idle;
mod lender;
mod liveness;
mod multicast;
mod replica_ack;
mod server_ack;
mod status;
mod views;

#[cfg(test)]
mod tests;

use alloc::string::String;
use alloc::vec::Vec;

use crate::id::{Epoch, JournalId, Lsn, WriterId};
use crate::limit::{LENDERS_MAX, MEMBERS_MAX};
use crate::planted::{FaultSwitch, PlantedFault};
use crate::port::CommitVotes;
use crate::time::{Nanos, Time};
use crate::wire::ChainPoint;

use super::epoch_history::EpochHistory;
use super::lender_index_set::LenderIndexSet;
use super::note::ClaimNote;
use super::rule::CommitRule;
use idle::IdleState;
use lender::WriterLender;
pub use lender::{LenderRole, LinkPhase};
use multicast::MulticastState;
pub use multicast::{MulticastStats, MulticastTiming};
pub use replica_ack::ReplicaAck;
pub use server_ack::{ServerAck, Voter};
pub use status::{CopyCounts, DiskWaitReason, JournalLenderStatus, LenderRefusal, WriterStatus};
use views::ViewProposal;

/// How long things may take. Safety does not depend on any of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterTimings {
    /// An idle member that has not heard of the newest stable LSN is told within this; others are asked
    /// whether they are there every `detect`.
    pub ping: Nanos,
    /// A member that owes an answer for this long is taken for dead. Below about 250 ms a loaded machine is
    /// mistaken for a dead one.
    pub detect: Nanos,
    /// A lender that cannot be reached is tried again after this.
    pub retry: Nanos,
    /// When nothing was appended and everything has been everywhere for so long, the view calls the journal
    /// clean.
    pub idle: Nanos,
    /// On links that may lose frames: send again what has not been received after this. Streams need none.
    pub resend: Option<Nanos>,
}

impl Default for WriterTimings {
    fn default() -> WriterTimings {
        WriterTimings {
            ping: Nanos::from_ms(100),
            detect: Nanos::from_ms(500),
            retry: Nanos::from_ms(500),
            idle: Nanos::from_ms(1000),
            resend: None,
        }
    }
}

/// What a journal is configured with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterConfig {
    /// The lenders that may become members, in order of preference.
    pub lenders: Vec<String>,
    /// When the members satisfy a commit.
    pub rule: CommitRule,
    /// Members to have.
    pub wanted: usize,
    /// Members below which acknowledgements of members do not count, and commits wait for the disk.
    pub min: usize,
    /// This machine's power domain.
    pub domain: String,
    /// Whether the members may all be in this machine's power domain.
    pub one_domain: bool,
    /// Bytes of the ring, and so of each member's window.
    pub window_bytes: u64,
    /// Timeouts.
    pub timing: WriterTimings,
    /// Whether appends are multicast to the members that listen; `None`: each is sent them over its own link.
    pub cast: Option<MulticastTiming>,
    /// Who acknowledges beside the members.
    pub voter: Voter,
}

/// The state machine of the writer. See the module's documentation.
#[derive(Clone, Debug)]
pub struct JournalWriter {
    journal: JournalId,
    epoch: Epoch,
    writer: WriterId,
    config: WriterConfig,
    lenders: Vec<WriterLender>,
    /// Where the reign began: everything below was on the local disk.
    base: Lsn,
    /// Where the next record goes. Written by [`JournalWriter::on_append`].
    tail: Lsn,
    /// The end of what the local disk has, with the chain there. Written by [`JournalWriter::on_stable`].
    stable: ChainPoint,
    /// The end of what is acknowledged. Only grows.
    acked: Lsn,
    /// The members whose acknowledgements count, as the view file says.
    view: LenderIndexSet,
    version: u64,
    proposal: Option<ViewProposal>,
    /// Members that have lost their window or been silent too long; they leave with the next view.
    departing: LenderIndexSet,
    disconnects: LenderIndexSet,
    generations: u32,
    /// The durable view calls the journal clean: below this, all was on the disk.
    clean: Option<Lsn>,
    idle_state: IdleState,
    /// When we were last told the time.
    last_tick: Option<Time>,
    cast: MulticastState,
    /// The journal's reigns up to this one, for its views.
    epochs: EpochHistory,
    /// Who claimed this reign, for its views.
    note: Option<ClaimNote>,
    /// What the data lender in service has, and when we were last told so.
    replica_ack: Option<(ReplicaAck, Time)>,
    /// Of a shared journal: what its server has.
    server_ack: Option<ServerAck>,
    fenced: Option<Epoch>,
    /// The journal is closed: of its lenders only their farewells count.
    closed: bool,
    disk_failed: bool,
    planted: FaultSwitch,
}

impl JournalWriter {
    /// A writer for the reign `epoch`, which is durable with an empty view of number `version`; the log ends
    /// at `end`, all of it on the disk, and, if it is a shared journal's, nothing of it is of use to anybody.
    pub fn new(
        journal: JournalId,
        epoch: Epoch,
        writer: WriterId,
        version: u64,
        end: ChainPoint,
        config: WriterConfig,
    ) -> JournalWriter {
        assert!(config.lenders.len() <= LENDERS_MAX);
        assert!(config.wanted <= MEMBERS_MAX);
        let lenders = config
            .lenders
            .iter()
            .map(|address| WriterLender::new(address.clone()))
            .collect();
        let server = (config.voter == Voter::Server).then_some(ServerAck { end, version: 0 });
        JournalWriter {
            journal,
            epoch,
            writer,
            config,
            lenders,
            base: end.lsn,
            tail: end.lsn,
            stable: end,
            acked: end.lsn,
            view: LenderIndexSet::EMPTY,
            version,
            proposal: None,
            departing: LenderIndexSet::EMPTY,
            disconnects: LenderIndexSet::EMPTY,
            generations: 0,
            clean: None,
            idle_state: IdleState::default(),
            last_tick: None,
            cast: MulticastState::new(end.lsn),
            epochs: EpochHistory::default(),
            note: None,
            replica_ack: None,
            server_ack: server,
            fenced: None,
            closed: false,
            disk_failed: false,
            planted: FaultSwitch::NONE,
        }
    }

    /// The journal's reigns, as the durable view has them.
    pub fn with_epochs(mut self, reigns: EpochHistory) -> JournalWriter {
        self.epochs = reigns;
        self
    }

    /// Who claimed this reign, as the durable view says.
    pub fn with_note(mut self, note: Option<ClaimNote>) -> JournalWriter {
        self.note = note;
        self
    }

    /// The journal's reigns that still matter, for a view that the driver stores by itself.
    pub fn epochs(&self) -> &EpochHistory {
        &self.epochs
    }

    /// Plants a fault (tests of the simulator only).
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Where the next record goes.
    pub fn tail(&self) -> Lsn {
        self.tail
    }

    /// Everything below is on the local disk.
    pub fn stable(&self) -> Lsn {
        self.stable.lsn
    }

    /// The end of what is on the local disk, with the chain there.
    pub fn stable_point(&self) -> ChainPoint {
        self.stable
    }

    /// Everything below is held as the commit rule demands, or is on the local disk (of a shared journal: at
    /// its server).
    pub fn acked(&self) -> Lsn {
        self.acked
    }

    /// The epoch that fenced this writer. It acknowledges nothing any more.
    pub fn fenced(&self) -> Option<Epoch> {
        self.fenced
    }

    /// This writer's epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the local disk has failed. Nothing will become stable any more.
    pub fn disk_failed(&self) -> bool {
        self.disk_failed
    }

    /// Records now reach to `tail`.
    pub fn on_append(&mut self, tail: Lsn) {
        assert!(tail >= self.tail);
        self.tail = tail;
        if self.clean.is_some() || self.proposal.is_some() {
            self.wake();
        }
    }

    /// A sync of the local log ended well: everything below `end` is on the disk, and `end` is where a record
    /// ends.
    pub fn on_stable(&mut self, end: ChainPoint, now: Time) {
        assert!(end.lsn <= self.tail);
        if self.disk_failed || end.lsn <= self.stable.lsn {
            return;
        }
        self.stable = end;
        self.settle(now);
    }

    /// A write or sync of the local log or of the view file failed. It is never believed again (rule 9).
    pub fn on_disk_failed(&mut self) {
        self.disk_failed = true;
    }

    /// Whether `end` can still be acknowledged: not by a fenced writer, and, once the disk has failed and no
    /// view can replace this one, only while enough of its members hold it or may yet. A shared journal's
    /// server may always.
    pub fn may_still_be_acked(&self, end: Lsn) -> bool {
        if self.acked >= end {
            return true;
        }
        let hopeful = |&index: &usize| self.lenders[index].held >= end || !self.departing.has(index);
        let copies = self.config.rule.copies(self.view.len());
        let by_members = self.counting() && self.view.iter().filter(hopeful).count() >= copies;
        let by_voter = match self.server_ack {
            None => !self.disk_failed,
            Some(_) => true,
        };
        self.fenced.is_none() && (by_voter || by_members)
    }

    /// Who holds everything below `end` at this moment.
    pub fn votes(&self, end: Lsn) -> CommitVotes {
        let members = self
            .view
            .iter()
            .filter(|&index| self.lenders[index].held >= end)
            .count();
        CommitVotes {
            members: members as u8,
            rule: self.rule_satisfied(end),
            disk: self.stable.lsn >= end,
        }
    }

    /// Whether as many members of the durable view as its rule demands hold everything below `end`.
    pub fn rule_satisfied(&self, end: Lsn) -> bool {
        self.rule_lsn(self.view).is_some_and(|lsn| lsn >= end)
    }

    /// Everything below is held by the durable view's members as the rule demands; zero while there are too
    /// few of them.
    pub fn rule_acked(&self) -> Lsn {
        self.rule_lsn(self.view).unwrap_or_default()
    }

    /// The durable view's members.
    pub fn view(&self) -> LenderIndexSet {
        self.view
    }

    /// Moves `acked` as far as the rules allow. The hot path: a few comparisons a member.
    fn advance(&mut self) {
        if self.fenced.is_some() && !self.planted.is(PlantedFault::WriterFenceIgnored) {
            return;
        }
        let mut by_members = self.counted(self.view, self.clean);
        if let Some(proposal) = &self.proposal {
            let proposed = self.counted(proposal.set, proposal.clean);
            by_members = if self.planted.is(PlantedFault::ViewBeforeDurable) {
                proposed
            } else {
                by_members.zip(proposed).map(|(old, new)| old.min(new))
            };
        }
        self.acked = self
            .acked
            .max(self.voter_acked())
            .max(by_members.unwrap_or_default());
        assert!(
            self.acked <= self.tail,
            "nothing is acknowledged before it exists"
        );
    }

    /// The LSN that `set` holds as the commit rule demands; `None` where its members do not count.
    fn rule_lsn(&self, set: LenderIndexSet) -> Option<Lsn> {
        if !self.counts(set) {
            return None;
        }
        let mut held = [Lsn(0); MEMBERS_MAX];
        let mut count = 0;
        for index in set.iter() {
            held[count] = self.lenders[index].held;
            count += 1;
        }
        let rule = if self.planted.is(PlantedFault::AnyInsteadOfRule) {
            CommitRule::Any
        } else {
            self.config.rule
        };
        rule.satisfied(&mut held[..count])
    }

    /// Whether acknowledgements of a view of `set` count: it has the configured minimum, and whatever
    /// acknowledges is not all fed as this machine is.
    fn counts(&self, set: LenderIndexSet) -> bool {
        let enough = set.len() >= self.config.min.max(self.config.rule.copies(set.len())).max(1);
        enough && self.domains_differ(set)
    }
}
