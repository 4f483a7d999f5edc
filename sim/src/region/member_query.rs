//! Whoever asks a journal's members: the server that reads what a dead node left, or has it forgotten; a
//! node's library that opens what an earlier process left.

use netram_proto::id::JournalId;
use netram_proto::journal::{
    ForgetNotice, FrameBody, OutgoingFrame, PeerWindow, Recovery, RecoveryError, View,
};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::Frame;
use netram_shared_machine::NodeId;

use super::net::ConnectionOwner;
use super::{Event, World};
use crate::lender::packet_of;
use crate::net::FrameDirection;
use crate::process::lender_at;

/// All members are waited for this long, those needed for [`QUERY_TIMEOUT`].
pub(super) const ALL_MEMBERS_WAIT: Nanos = Nanos::from_ms(20);
pub(super) const QUERY_TIMEOUT: Nanos = Nanos::from_ms(150);
/// A member that cannot be reached is tried again after this.
const RETRY: Nanos = Nanos::from_ms(30);
const POLL_INTERVAL: Nanos = Nanos::from_ms(10);

/// What is said to the members.
pub(super) enum QueryKind {
    Read(Recovery),
    Forget(ForgetNotice),
}

/// On whose behalf.
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

/// What came of a reading: the verdict, and what those hold that answered.
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
        let asker = self.queries.len();
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
        self.on_query(asker);
    }

    /// It has ended, whoever asked.
    pub(super) fn stop_queries(&mut self, ends: impl Fn(QueryOwner) -> bool) {
        for asker in 0..self.queries.len() {
            let over = |asker: &MemberQuery| ends(asker.owner);
            if self.queries[asker].as_ref().is_some_and(over) {
                self.take_query(asker);
            }
        }
    }

    /// A node's library has no use any more for what the members hold.
    pub(super) fn stop_queries_about(&mut self, journal: JournalId) {
        for asker in 0..self.queries.len() {
            let about = |asker: &MemberQuery| {
                asker.journal == journal && matches!(asker.owner, QueryOwner::Orphan { .. })
            };
            if self.queries[asker].as_ref().is_some_and(about) {
                self.take_query(asker);
            }
        }
    }

    fn take_query(&mut self, asker: usize) -> Option<MemberQuery> {
        let taken = self.queries[asker].take()?;
        for conn in taken.conns.iter().flatten() {
            self.close_conn(*conn);
        }
        Some(taken)
    }

    pub(super) fn on_query(&mut self, asker: usize) {
        let Some(MemberQuery { host, .. }) = &self.queries[asker] else {
            return;
        };
        let paused = self.paused_until(*host);
        if paused > self.now {
            return self.queue.push(paused, Event::Query { asker });
        }
        self.settle_query(asker);
        if self.queries[asker].is_some() {
            self.at(POLL_INTERVAL, Event::Query { asker });
        }
    }

    pub(super) fn query_linked(&mut self, asker: usize, index: usize) {
        match self.queries[asker].as_mut().map(|asker| &mut asker.kind) {
            Some(QueryKind::Read(recovery)) => recovery.on_connected(index),
            Some(QueryKind::Forget(forget)) => forget.on_connected(index),
            None => return,
        }
        self.settle_query(asker);
    }

    pub(super) fn query_lost(&mut self, asker: usize, index: usize) {
        let Some(found) = &mut self.queries[asker] else {
            return;
        };
        found.conns[index] = None;
        if let QueryKind::Read(recovery) = &mut found.kind {
            recovery.on_lost(index);
        }
        self.settle_query(asker);
    }

    pub(super) fn on_query_frame(&mut self, asker: usize, index: usize, frame: &Frame<'_>) {
        match self.queries[asker].as_mut().map(|asker| &mut asker.kind) {
            Some(QueryKind::Read(recovery)) => recovery.on_frame(index, frame),
            Some(QueryKind::Forget(forget)) => forget.on_frame(index, frame),
            None => return,
        }
        self.settle_query(asker);
    }

    fn settle_query(&mut self, asker: usize) {
        if self.has_answer(asker) {
            return self.answered(asker);
        }
        let count = self.queries[asker].as_ref().map_or(0, |asker| asker.conns.len());
        for index in 0..count {
            self.send_question(asker, index);
        }
    }

    fn has_answer(&self, asker: usize) -> bool {
        let Some(found) = &self.queries[asker] else {
            return false;
        };
        match &found.kind {
            QueryKind::Read(recovery) => recovery.verdict(self.now).is_some(),
            QueryKind::Forget(forget) => forget.is_over() || self.now >= found.until,
        }
    }

    fn answered(&mut self, asker: usize) {
        let now = self.now;
        let Some(mut taken) = self.take_query(asker) else {
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

    fn send_question(&mut self, asker: usize, index: usize) {
        let now = self.now;
        let Some(found) = &mut self.queries[asker] else {
            return;
        };
        let (host, machine, journal) = (found.host, found.machines[index], found.journal);
        let Some(conn) = found.conns[index] else {
            if now.since(found.tried_at[index]) >= RETRY {
                found.tried_at[index] = now;
                let conn = self.connect(ConnectionOwner::Query(asker), index, host, machine, journal);
                if let Some(found) = &mut self.queries[asker] {
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
