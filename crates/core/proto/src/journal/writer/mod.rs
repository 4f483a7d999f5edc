//! The journal's one writer: which lenders are members, what each is to be sent, and what is acknowledged.
//!
//! A [`JournalWriter`] holds no bytes, only positions; the ring is the driver's. It has four kinds of
//! methods: getters; `on_*`, which take events; commands (`append`); and `next_frame`, `view_to_store`,
//! `take_disconnects`, which return what to do next.
//!
//! | file | idea |
//! |---|---|
//! | `mod.rs` | positions: tail, stable, acknowledged |
//! | `lender.rs` | one lender: the state of its connection and of its membership |
//! | `frames.rs` | frames to send, and the meaning of answers |
//! | `multicast.rs` | appends sent once for all members, by multicast |
//! | `domains.rs` | power domains: which members one failure may take together |
//! | `replica_ack.rs` | what a data lender has, and so what members must hold |
//! | `server_ack.rs` | a shared region's node: the region's server votes instead of the disk |
//! | `fence_claims.rs` | lenders that say a newer writer fenced them, and when they are believed |
//! | `views.rs` | membership: proposing, storing and adopting views |
//! | `leaving.rs` | lenders that drain or stop, and when their members leave |
//! | `liveness.rs` | giving up lenders that are silent or make no progress |
//! | `aliases.rs` | lenders that share one memory |
//! | `membership.rs` | orders that change lenders, commit rule and number of members while the journal is open |
//! | `idle.rs` | when the journal is clean, and which acknowledgements count then |
//! | `status.rs` | the status for operators |
//!
//! Three rules keep acknowledged bytes safe when the view changes (rules 1 and 3). Once a new view is
//! proposed, an LSN is acknowledged only if it satisfies *both* the old and the new view's rule, or is on the
//! local disk. The new view is stored only when everything acknowledged so far satisfies it. It replaces the
//! old view only when it is durable. Whichever of the two a crash leaves in the file, its members have
//! everything that was acknowledged. In a shared journal the region's server takes the place of the local
//! disk.

mod aliases;
mod domains;
mod fence_claims;
mod frames;
mod idle;
mod leaving;
mod lender;
mod liveness;
mod membership;
mod multicast;
mod replica_ack;
mod risk;
mod server_ack;
mod status;
mod views;

#[cfg(test)]
mod tests;

use alloc::string::String;
use alloc::vec::Vec;

use crate::id::{Epoch, EpochSalt, JournalId, Lsn, WriterId};
use crate::limit::{LENDERS_MAX, MEMBERS_MAX};
use crate::planted::{FaultSwitch, PlantedFault};
use crate::port::CommitVotes;
use crate::time::{Nanos, Time};
use crate::wire::ChainPoint;

use super::epoch_history::EpochHistory;
use super::lender_index_set::LenderIndexSet;
use super::note::ClaimNote;
use super::rule::CommitRule;
use fence_claims::FenceClaims;
use idle::IdleState;
use lender::WriterLender;
pub use lender::{LenderRole, LinkPhase};
use membership::ViewTerms;
pub use membership::{JournalMembership, MembershipError};
use multicast::MulticastState;
pub use multicast::{MulticastStats, MulticastTiming};
pub use replica_ack::ReplicaAck;
use risk::AckTimes;
pub use risk::{DataAtRisk, MemoryLoss};
pub use server_ack::{ServerAck, Voter};
pub use status::{CopyCounts, DiskWaitReason, JournalLenderStatus, LenderRefusal, WriterStatus};
use views::ViewProposal;

/// Time limits of a writer. Safety does not depend on any of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterTimings {
    /// An idle member learns of a newer stable LSN within this time; other idle lenders are pinged every
    /// `detect`.
    pub ping: Nanos,
    /// A member that owes an answer for this long is considered dead. Below about 250 ms a loaded machine is
    /// mistaken for a dead one.
    pub detect: Nanos,
    /// The longest pause before an unreachable lender is tried again.
    pub retry: Nanos,
    /// Idle time, with everything on the disk and at the data lender in service, after which the view marks
    /// the journal clean.
    pub idle: Nanos,
    /// On links that may lose frames: time after which unreceived bytes are sent again. `None` on stream
    /// links.
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

/// The configuration of a writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterConfig {
    /// The lenders that may become members, in order of preference.
    pub lenders: Vec<String>,
    /// The commit rule.
    pub rule: CommitRule,
    /// Number of members wanted.
    pub wanted: usize,
    /// Minimum number of members. Below it members' acknowledgements do not count, and commits wait for the
    /// disk.
    pub min: usize,
    /// This machine's power domain.
    pub domain: String,
    /// Whether the members may all be in this machine's power domain.
    pub one_domain: bool,
    /// Size of the ring, and so of each member's window, in bytes.
    pub window_bytes: u64,
    /// Timeouts.
    pub timing: WriterTimings,
    /// Timing of multicast to the members that listen; `None` if appends are sent over each member's own
    /// link.
    pub cast: Option<MulticastTiming>,
    /// The voter beside the members.
    pub voter: Voter,
}

/// The writer's state machine. See the module's documentation.
#[derive(Clone, Debug)]
pub struct JournalWriter {
    journal: JournalId,
    epoch: Epoch,
    writer: WriterId,
    config: WriterConfig,
    lenders: Vec<WriterLender>,
    /// Start of this epoch: everything below was on the local disk.
    base: Lsn,
    /// Where the next record goes. Written by [`JournalWriter::on_append`].
    tail: Lsn,
    /// The end of what the local disk has, with the chain there. Written by [`JournalWriter::on_stable`].
    stable: ChainPoint,
    /// The end of what is acknowledged. Only grows.
    acked: Lsn,
    /// The members whose acknowledgements count, as the view file says.
    view: LenderIndexSet,
    /// The terms of the durable view. Those of the configuration apply once a view with them counts.
    terms: ViewTerms,
    version: u64,
    proposal: Option<ViewProposal>,
    /// Members that have lost their window or been silent for too long. They leave with the next view.
    departing: LenderIndexSet,
    disconnects: LenderIndexSet,
    generations: u32,
    /// The LSN at which the durable view marks the journal clean: everything below was on the disk.
    clean: Option<Lsn>,
    idle_state: IdleState,
    /// When the newest data was acknowledged.
    ack_times: AckTimes,
    /// The time of the last tick.
    last_tick: Option<Time>,
    cast: MulticastState,
    /// The journal's epochs up to this one, for its views.
    epochs: EpochHistory,
    /// The salt of this epoch's sealing key, for its views.
    salt: Option<EpochSalt>,
    /// The note about the process that claimed this epoch, for its views.
    note: Option<ClaimNote>,
    /// The last report of the data lender in service, and its time.
    replica_ack: Option<(ReplicaAck, Time)>,
    /// The last report of a shared journal's server.
    server_ack: Option<ServerAck>,
    fenced: Option<Epoch>,
    /// The lenders that say that a newer writer has fenced them.
    claims: FenceClaims,
    /// Whether the journal is closed. Of its lenders' frames only answers to `Leave` then count.
    closed: bool,
    disk_failed: bool,
    planted: FaultSwitch,
}

impl JournalWriter {
    /// A writer for `epoch`, whose empty view with number `version` is durable. The log ends at `end` and is
    /// on the disk as a whole. The records of a shared journal are no longer needed by its server.
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
        let terms = ViewTerms {
            rule: config.rule,
            min: config.min,
        };
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
            terms,
            version,
            proposal: None,
            departing: LenderIndexSet::EMPTY,
            disconnects: LenderIndexSet::EMPTY,
            generations: 0,
            clean: None,
            idle_state: IdleState::default(),
            ack_times: AckTimes::default(),
            last_tick: None,
            cast: MulticastState::new(end.lsn),
            epochs: EpochHistory::default(),
            salt: None,
            note: None,
            replica_ack: None,
            server_ack: server,
            fenced: None,
            claims: FenceClaims::default(),
            closed: false,
            disk_failed: false,
            planted: FaultSwitch::NONE,
        }
    }

    /// Sets the journal's epochs, as the durable view has them.
    pub fn with_epochs(mut self, epochs: EpochHistory) -> JournalWriter {
        self.epochs = epochs;
        self
    }

    /// Sets the salt of this epoch's sealing key, as the durable view has it.
    pub fn with_salt(mut self, salt: Option<EpochSalt>) -> JournalWriter {
        self.salt = salt;
        self
    }

    /// Sets the note about this epoch's claim, as the durable view has it.
    pub fn with_note(mut self, note: Option<ClaimNote>) -> JournalWriter {
        self.note = note;
        self
    }

    /// The journal's epochs that still matter, for a view that the driver stores itself.
    pub fn epochs(&self) -> &EpochHistory {
        &self.epochs
    }

    /// Plants a fault (simulator tests only).
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// The journal's id.
    pub fn journal(&self) -> JournalId {
        self.journal
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

    /// Everything below is held as the commit rule demands, or is on the local disk (for a shared journal: at
    /// its server).
    pub fn acked(&self) -> Lsn {
        self.acked
    }

    /// The epoch that fenced this writer, which then acknowledges nothing more.
    pub fn fenced(&self) -> Option<Epoch> {
        self.fenced
    }

    /// This writer's epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether the local disk has failed. Nothing more will become stable.
    pub fn disk_failed(&self) -> bool {
        self.disk_failed
    }

    /// Handles an append: records now reach to `tail`.
    pub fn on_append(&mut self, tail: Lsn) {
        assert!(tail >= self.tail);
        self.tail = tail;
        if self.clean.is_some() || self.proposal.is_some() {
            self.wake();
        }
    }

    /// Handles a successful sync of the local log: everything below `end`, where a record ends, is on the
    /// disk.
    pub fn on_stable(&mut self, end: ChainPoint, now: Time) {
        assert!(end.lsn <= self.tail);
        if self.disk_failed || end.lsn <= self.stable.lsn {
            return;
        }
        self.stable = end;
        self.settle(now);
    }

    /// Handles a failed write or sync of the local log or the view file. The disk is never trusted again
    /// (rule 9).
    pub fn on_disk_failed(&mut self) {
        self.disk_failed = true;
    }

    /// Whether `end` can still be acknowledged. A fenced writer acknowledges nothing. After a failed disk, no
    /// view can replace this one, so enough of its members must hold `end` or still be able to. The server of
    /// a shared journal always may acknowledge.
    pub fn may_still_be_acked(&self, end: Lsn) -> bool {
        if self.acked >= end {
            return true;
        }
        let hopeful = |&index: &usize| self.lenders[index].held >= end || !self.departing.has(index);
        let copies = self.terms.rule.copies(self.view.len());
        let by_members = self.counting() && self.view.iter().filter(hopeful).count() >= copies;
        let by_voter = match self.server_ack {
            None => !self.disk_failed,
            Some(_) => true,
        };
        self.fenced.is_none() && (by_voter || by_members)
    }

    /// The copies that hold everything below `end` at this moment.
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
        self.rule_lsn(self.view, self.terms).is_some_and(|lsn| lsn >= end)
    }

    /// The LSN up to which the durable view's members satisfy the rule; zero while there are too few of them.
    pub fn rule_acked(&self) -> Lsn {
        self.rule_lsn(self.view, self.terms).unwrap_or_default()
    }

    /// The durable view's members.
    pub fn view(&self) -> LenderIndexSet {
        self.view
    }

    /// Moves `acked` as far as the rules allow. On the hot path: a few comparisons for each member.
    fn advance(&mut self) {
        if self.fenced.is_some() && !self.planted.is(PlantedFault::WriterFenceIgnored) {
            return;
        }
        let terms = if self.planted.is(PlantedFault::RuleBeforeDurable) {
            self.wished_terms()
        } else {
            self.terms
        };
        let mut by_members = self.counted(self.view, terms, self.clean);
        if let Some(proposal) = &self.proposal {
            let proposed = self.counted(proposal.set, proposal.terms, proposal.clean);
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

    /// The LSN up to which `set` satisfies the rule of `terms`; `None` if its members do not count.
    fn rule_lsn(&self, set: LenderIndexSet, terms: ViewTerms) -> Option<Lsn> {
        if !self.counts(set, terms) {
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
            terms.rule
        };
        rule.satisfied(&mut held[..count])
    }

    /// Whether acknowledgements of a view of `set` count: it has the minimum of `terms`, and those that
    /// acknowledge are not all in this machine's power domain.
    fn counts(&self, set: LenderIndexSet, terms: ViewTerms) -> bool {
        set.len() >= terms.members_needed(set.len()) && self.domains_differ(set, terms.rule)
    }
}
