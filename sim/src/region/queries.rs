//! Queries of a journal's members: by the server, which reads a dead node's journal or has it forgotten, or
//! by a node's library, which opens an orphan journal.

use netram_proto::id::JournalId;
use netram_proto::journal::{
    ForgetNotice, FrameBody, OutgoingFrame, PeerWindow, Recovery, RecoveryError, View,
};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::Frame;
use netram_shared_machine::NodeId;

use super::kernel::RegionKernel;
use super::lenders::RegionLenders;
use super::net::{ConnectionOwner, RegionNetwork};
use crate::event::FrameDirection;
use crate::lenders::lender_at;
use crate::signatures::owners_packet;

/// Waiting time for all members; those needed get [`QUERY_TIMEOUT`].
pub(super) const ALL_MEMBERS_WAIT: Nanos = Nanos::from_ms(20);
pub(super) const QUERY_TIMEOUT: Nanos = Nanos::from_ms(150);
/// Delay after which a member is tried again that cannot be reached.
const RETRY: Nanos = Nanos::from_ms(30);

/// Purpose of a query.
pub(super) enum QueryKind {
    Read(Recovery),
    Forget(ForgetNotice),
}

/// Process for which the query runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryOwner {
    Server { boot: u32, node: NodeId },
    Orphan { slot: usize, life: u64 },
}

/// A query of one journal's members.
pub(super) struct MemberQuery {
    kind: QueryKind,
    pub(super) owner: QueryOwner,
    /// Machine of its owner.
    pub(super) host: usize,
    pub(super) journal: JournalId,
    lenders: Vec<usize>,
    conns: Vec<Option<usize>>,
    tried_at: Vec<Time>,
    until: Time,
}

/// Result of a reading: the verdict, and the windows of the members that answered.
pub(super) type ReadOutcome = (Result<(), RecoveryError>, Vec<PeerWindow>);

/// Answer to a query.
pub(super) enum QueryAnswer {
    Read(ReadOutcome),
    /// Whether every lender was told.
    Told(bool),
}

impl MemberQuery {
    fn new(kind: QueryKind, owner: QueryOwner, host: usize, view: &View, now: Time) -> MemberQuery {
        let lenders: Vec<usize> = match &kind {
            QueryKind::Forget(forget) => forget.addresses().map(lender_at).collect(),
            QueryKind::Read(_) => {
                let members = view.members.iter();
                members.map(|member| lender_at(&member.address)).collect()
            }
        };
        MemberQuery {
            kind,
            owner,
            host,
            journal: view.journal,
            conns: vec![None; lenders.len()],
            tried_at: vec![Time(0); lenders.len()],
            lenders,
            until: now + QUERY_TIMEOUT,
        }
    }

    pub(super) fn on_connected(&mut self, index: usize) {
        match &mut self.kind {
            QueryKind::Read(recovery) => recovery.on_connected(index),
            QueryKind::Forget(forget) => forget.on_connected(index),
        }
    }

    pub(super) fn on_lost(&mut self, index: usize) {
        self.conns[index] = None;
        if let QueryKind::Read(recovery) = &mut self.kind {
            recovery.on_lost(index);
        }
    }

    pub(super) fn on_frame(&mut self, index: usize, frame: &Frame<'_>) {
        match &mut self.kind {
            QueryKind::Read(recovery) => recovery.on_frame(index, frame),
            QueryKind::Forget(forget) => forget.on_frame(index, frame),
        }
    }

    fn has_answer(&self, now: Time) -> bool {
        match &self.kind {
            QueryKind::Read(recovery) => recovery.verdict(now).is_some(),
            QueryKind::Forget(forget) => forget.is_over() || now >= self.until,
        }
    }

    /// The answer of a query that has one.
    pub(super) fn answer(&mut self, now: Time) -> Option<QueryAnswer> {
        match &mut self.kind {
            QueryKind::Forget(forget) => Some(QueryAnswer::Told(forget.is_over())),
            QueryKind::Read(recovery) => {
                let verdict = recovery.verdict(now)?;
                Some(QueryAnswer::Read((verdict, recovery.windows())))
            }
        }
    }

    /// Connects to one lender, or sends what is due.
    fn ask(
        &mut self,
        kernel: &mut RegionKernel,
        network: &mut RegionNetwork,
        (query, index): (usize, usize),
    ) {
        let now = kernel.now();
        let Some(conn) = self.conns[index] else {
            if now.since(self.tried_at[index]) >= RETRY {
                self.tried_at[index] = now;
                let owner = (ConnectionOwner::Query(query), index);
                let ends = (self.host, self.lenders[index]);
                self.conns[index] = Some(network.connect(kernel, owner, ends, self.journal));
            }
            return;
        };
        let next = match &mut self.kind {
            QueryKind::Read(recovery) => recovery.next_frame(index),
            QueryKind::Forget(forget) => forget.next_frame(index),
        };
        if let Some(OutgoingFrame { header, body }) = next {
            let FrameBody::Inline(bytes, length) = body else {
                unreachable!("who asks has no ring")
            };
            let packet = owners_packet(self.journal, &header, &bytes[..length]);
            network.send(kernel, conn, FrameDirection::Up, packet);
        }
    }
}

/// All queries, by number. A query that has ended is `None`.
#[derive(Default)]
pub(super) struct MemberQueries {
    queries: Vec<Option<MemberQuery>>,
}

impl MemberQueries {
    /// Adds a query, and returns its number.
    pub(super) fn add(
        &mut self,
        kind: QueryKind,
        owner: QueryOwner,
        host: usize,
        view: &View,
        now: Time,
    ) -> usize {
        let query = MemberQuery::new(kind, owner, host, view, now);
        self.queries.push(Some(query));
        self.queries.len() - 1
    }

    pub(super) fn get(&self, query: usize) -> Option<&MemberQuery> {
        self.queries[query].as_ref()
    }

    pub(super) fn get_mut(&mut self, query: usize) -> Option<&mut MemberQuery> {
        self.queries[query].as_mut()
    }

    pub(super) fn has_answer(&self, query: usize, now: Time) -> bool {
        self.get(query).is_some_and(|query| query.has_answer(now))
    }

    /// Asks every lender of a query what is due.
    pub(super) fn ask_all(&mut self, kernel: &mut RegionKernel, network: &mut RegionNetwork, query: usize) {
        if let Some(found) = &mut self.queries[query] {
            (0..found.conns.len()).for_each(|index| found.ask(kernel, network, (query, index)));
        }
    }

    /// Ends a query and closes its connections.
    pub(super) fn take(
        &mut self,
        kernel: &mut RegionKernel,
        network: &mut RegionNetwork,
        lenders: &mut RegionLenders,
        query: usize,
    ) -> Option<MemberQuery> {
        let taken = self.queries[query].take()?;
        for conn in taken.conns.iter().flatten() {
            network.close(kernel, lenders, *conn);
        }
        Some(taken)
    }

    /// Stops queries whose owner has ended, or no longer needs them.
    pub(super) fn stop(
        &mut self,
        kernel: &mut RegionKernel,
        network: &mut RegionNetwork,
        lenders: &mut RegionLenders,
        ends: impl Fn(&MemberQuery) -> bool,
    ) {
        for query in 0..self.queries.len() {
            if self.get(query).is_some_and(&ends) {
                self.take(kernel, network, lenders, query);
            }
        }
    }
}
