//! Queries of a journal's members: by the server, which reads a dead node's journal or has it forgotten, or
//! by a node's library, which opens an orphan journal.

use netram_proto::id::JournalId;
use netram_proto::journal::{
    ForgetNotice, FrameBody, OutgoingFrame, PeerWindow, Recovery, RecoveryError, View,
};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::Frame;
use netram_shared_machine::NodeId;

use super::net::ConnectionOwner;
use super::{Event, World};
use crate::event::FrameDirection;
use crate::lender::packet_of;
use crate::lenders::lender_at;

/// Waiting time for all members; those needed get [`QUERY_TIMEOUT`].
pub(super) const ALL_MEMBERS_WAIT: Nanos = Nanos::from_ms(20);
pub(super) const QUERY_TIMEOUT: Nanos = Nanos::from_ms(150);
/// Delay after which a member is tried again that cannot be reached.
const RETRY: Nanos = Nanos::from_ms(30);
const POLL_INTERVAL: Nanos = Nanos::from_ms(10);

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

pub(super) struct MemberQuery {
    kind: QueryKind,
    owner: QueryOwner,
    host: usize,
    journal: JournalId,
    machines: Vec<usize>,
    conns: Vec<Option<usize>>,
    tried_at: Vec<Time>,
    until: Time,
}

/// Result of a reading: the verdict, and the windows of the members that answered.
pub(super) type ReadOutcome = (Result<(), RecoveryError>, Vec<PeerWindow>);

impl World {
    pub(super) fn start_query(&mut self, talk: QueryKind, whose: QueryOwner, host: usize, view: &View) {
        let machines: Vec<usize> = match &talk {
            QueryKind::Forget(forget) => forget.addresses().map(lender_at).collect(),
            QueryKind::Read(_) => {
                let members = view.members.iter();
                members.map(|member| lender_at(&member.address)).collect()
            }
        };
        let count = machines.len();
        let query = self.queries.len();
        self.queries.push(Some(MemberQuery {
            kind: talk,
            owner: whose,
            host,
            journal: view.journal,
            machines,
            conns: vec![None; count],
            tried_at: vec![Time(0); count],
            until: self.now + QUERY_TIMEOUT,
        }));
        self.on_query(query);
    }

    /// Stops the queries of owners that have ended.
    pub(super) fn stop_queries(&mut self, ends: impl Fn(QueryOwner) -> bool) {
        for query in 0..self.queries.len() {
            let over = |query: &MemberQuery| ends(query.owner);
            if self.queries[query].as_ref().is_some_and(over) {
                self.take_query(query);
            }
        }
    }

    /// Stops a node's queries about a journal whose members it no longer needs.
    pub(super) fn stop_queries_about(&mut self, journal: JournalId) {
        for query in 0..self.queries.len() {
            let about = |query: &MemberQuery| {
                query.journal == journal && matches!(query.owner, QueryOwner::Orphan { .. })
            };
            if self.queries[query].as_ref().is_some_and(about) {
                self.take_query(query);
            }
        }
    }

    fn take_query(&mut self, query: usize) -> Option<MemberQuery> {
        let taken = self.queries[query].take()?;
        for conn in taken.conns.iter().flatten() {
            self.close_conn(*conn);
        }
        Some(taken)
    }

    pub(super) fn on_query(&mut self, query: usize) {
        let Some(MemberQuery { host, .. }) = &self.queries[query] else {
            return;
        };
        let paused = self.paused_until(*host);
        if paused > self.now {
            return self.queue.push(paused, Event::Query { query });
        }
        self.settle_query(query);
        if self.queries[query].is_some() {
            self.at(POLL_INTERVAL, Event::Query { query });
        }
    }

    pub(super) fn query_linked(&mut self, query: usize, index: usize) {
        match self.queries[query].as_mut().map(|query| &mut query.kind) {
            Some(QueryKind::Read(recovery)) => recovery.on_connected(index),
            Some(QueryKind::Forget(forget)) => forget.on_connected(index),
            None => return,
        }
        self.settle_query(query);
    }

    pub(super) fn query_lost(&mut self, query: usize, index: usize) {
        let Some(found) = &mut self.queries[query] else {
            return;
        };
        found.conns[index] = None;
        if let QueryKind::Read(recovery) = &mut found.kind {
            recovery.on_lost(index);
        }
        self.settle_query(query);
    }

    pub(super) fn on_query_frame(&mut self, query: usize, index: usize, frame: &Frame<'_>) {
        match self.queries[query].as_mut().map(|query| &mut query.kind) {
            Some(QueryKind::Read(recovery)) => recovery.on_frame(index, frame),
            Some(QueryKind::Forget(forget)) => forget.on_frame(index, frame),
            None => return,
        }
        self.settle_query(query);
    }

    fn settle_query(&mut self, query: usize) {
        if self.has_answer(query) {
            return self.answered(query);
        }
        let count = self.queries[query].as_ref().map_or(0, |query| query.conns.len());
        for index in 0..count {
            self.send_question(query, index);
        }
    }

    fn has_answer(&self, query: usize) -> bool {
        let Some(found) = &self.queries[query] else {
            return false;
        };
        match &found.kind {
            QueryKind::Read(recovery) => recovery.verdict(self.now).is_some(),
            QueryKind::Forget(forget) => forget.is_over() || self.now >= found.until,
        }
    }

    fn answered(&mut self, query: usize) {
        let now = self.now;
        let Some(mut taken) = self.take_query(query) else {
            return;
        };
        match &mut taken.kind {
            QueryKind::Forget(forget) => {
                let all = forget.is_over();
                match taken.owner {
                    QueryOwner::Server { node, .. } => self.on_server_forget_done(node, all),
                    QueryOwner::Orphan { slot, .. } => self.orphan_is_told(slot, taken.journal, all),
                }
            }
            QueryKind::Read(recovery) => {
                let Some(verdict) = recovery.verdict(now) else {
                    return;
                };
                let read = (verdict, recovery.windows());
                match taken.owner {
                    QueryOwner::Server { node, .. } => self.on_server_read(node, read),
                    QueryOwner::Orphan { slot, .. } => self.orphan_is_read(slot, taken.journal, read),
                }
            }
        }
    }

    fn send_question(&mut self, query: usize, index: usize) {
        let now = self.now;
        let Some(found) = &mut self.queries[query] else {
            return;
        };
        let (host, machine, journal) = (found.host, found.machines[index], found.journal);
        let Some(conn) = found.conns[index] else {
            if now.since(found.tried_at[index]) >= RETRY {
                found.tried_at[index] = now;
                let conn = self.connect(ConnectionOwner::Query(query), index, host, machine, journal);
                if let Some(found) = &mut self.queries[query] {
                    found.conns[index] = Some(conn);
                }
            }
            return;
        };
        let next = match &mut found.kind {
            QueryKind::Read(recovery) => recovery.next_frame(index),
            QueryKind::Forget(forget) => forget.next_frame(index),
        };
        if let Some(OutgoingFrame { header, body }) = next {
            let FrameBody::Inline(bytes, length) = body else {
                unreachable!("who asks has no ring")
            };
            self.send_frame(conn, FrameDirection::Up, packet_of(&header, &bytes[..length]));
        }
    }
}
