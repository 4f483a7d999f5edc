//! Whoever asks a journal's members: the server that reads what a dead node left, or has it forgotten; a node's library that opens
//! what an earlier process left.

use netram_proto::id::JournalId;
use netram_proto::journal::{Body, Forget, Outgoing, PeerWindow, Recovery, RecoveryRefusal, View};
use netram_proto::time::{Span, Time};
use netram_proto::wire::Frame;
use netram_shared_machine::NodeId;

use super::net::Owner;
use super::{Event, World};
use crate::lender::packet_of;
use crate::net::Way;
use crate::process::lender_at;

/// All members are waited for this long, those needed for [`PATIENCE`].
pub(super) const GRACE: Span = Span::from_ms(20);
pub(super) const PATIENCE: Span = Span::from_ms(150);
/// A member that cannot be reached is tried again after this.
const RETRY: Span = Span::from_ms(30);
const LOOK: Span = Span::from_ms(10);

/// What is said to the members.
pub(super) enum Talk {
    Read(Recovery),
    Forget(Forget),
}

/// On whose behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Server { boot: u32, node: NodeId },
    Left { slot: usize, life: u64 },
}

pub(super) struct Asker {
    talk: Talk,
    whose: Whose,
    host: usize,
    journal: JournalId,
    machines: Vec<usize>,
    conns: Vec<Option<usize>>,
    tried: Vec<Time>,
    until: Time,
}

/// What came of a reading: the verdict, and what those hold that answered.
pub(super) type Read = (Result<(), RecoveryRefusal>, Vec<PeerWindow>);

impl World {
    pub(super) fn ask(&mut self, talk: Talk, whose: Whose, host: usize, view: &View) {
        let machines: Vec<usize> = match &talk {
            Talk::Forget(forget) => forget.addresses().map(lender_at).collect(),
            Talk::Read(_) => {
                let members = view.members.iter();
                members.map(|member| lender_at(&member.address)).collect()
            }
        };
        let count = machines.len();
        let asker = self.askers.len();
        self.askers.push(Some(Asker {
            talk,
            whose,
            host,
            journal: view.journal,
            machines,
            conns: vec![None; count],
            tried: vec![Time(0); count],
            until: self.now + PATIENCE,
        }));
        self.on_asks(asker);
    }

    /// It has ended, whoever asked.
    pub(super) fn stop_asking(&mut self, ends: impl Fn(Whose) -> bool) {
        for asker in 0..self.askers.len() {
            let over = |asker: &Asker| ends(asker.whose);
            if self.askers[asker].as_ref().is_some_and(over) {
                self.take_asker(asker);
            }
        }
    }

    /// A node's library has no use any more for what the members hold.
    pub(super) fn stop_asking_about(&mut self, journal: JournalId) {
        for asker in 0..self.askers.len() {
            let about = |asker: &Asker| asker.journal == journal && matches!(asker.whose, Whose::Left { .. });
            if self.askers[asker].as_ref().is_some_and(about) {
                self.take_asker(asker);
            }
        }
    }

    fn take_asker(&mut self, asker: usize) -> Option<Asker> {
        let taken = self.askers[asker].take()?;
        for conn in taken.conns.iter().flatten() {
            self.close_conn(*conn);
        }
        Some(taken)
    }

    pub(super) fn on_asks(&mut self, asker: usize) {
        let Some(Asker { host, .. }) = &self.askers[asker] else {
            return;
        };
        let paused = self.paused_until(*host);
        if paused > self.now {
            return self.queue.push(paused, Event::Asks { asker });
        }
        self.settle_asker(asker);
        if self.askers[asker].is_some() {
            self.at(LOOK, Event::Asks { asker });
        }
    }

    pub(super) fn asker_linked(&mut self, asker: usize, index: usize) {
        match self.askers[asker].as_mut().map(|asker| &mut asker.talk) {
            Some(Talk::Read(recovery)) => recovery.on_connected(index),
            Some(Talk::Forget(forget)) => forget.on_connected(index),
            None => return,
        }
        self.settle_asker(asker);
    }

    pub(super) fn asker_lost(&mut self, asker: usize, index: usize) {
        let Some(found) = &mut self.askers[asker] else {
            return;
        };
        found.conns[index] = None;
        if let Talk::Read(recovery) = &mut found.talk {
            recovery.on_lost(index);
        }
        self.settle_asker(asker);
    }

    pub(super) fn asker_hears(&mut self, asker: usize, index: usize, frame: &Frame<'_>) {
        match self.askers[asker].as_mut().map(|asker| &mut asker.talk) {
            Some(Talk::Read(recovery)) => recovery.on_frame(index, frame),
            Some(Talk::Forget(forget)) => forget.on_frame(index, frame),
            None => return,
        }
        self.settle_asker(asker);
    }

    fn settle_asker(&mut self, asker: usize) {
        if self.has_answer(asker) {
            return self.answered(asker);
        }
        let count = self.askers[asker].as_ref().map_or(0, |asker| asker.conns.len());
        for index in 0..count {
            self.speak(asker, index);
        }
    }

    fn has_answer(&self, asker: usize) -> bool {
        let Some(found) = &self.askers[asker] else {
            return false;
        };
        match &found.talk {
            Talk::Read(recovery) => recovery.verdict(self.now).is_some(),
            Talk::Forget(forget) => forget.is_over() || self.now >= found.until,
        }
    }

    fn answered(&mut self, asker: usize) {
        let now = self.now;
        let Some(mut taken) = self.take_asker(asker) else {
            return;
        };
        match &mut taken.talk {
            Talk::Forget(forget) => {
                let all = forget.is_over();
                match taken.whose {
                    Whose::Server { node, .. } => self.server_has_told(node, all),
                    Whose::Left { slot, .. } => self.left_is_told(slot, taken.journal, all),
                }
            }
            Talk::Read(recovery) => {
                let Some(verdict) = recovery.verdict(now) else {
                    return;
                };
                let read = (verdict, recovery.windows());
                match taken.whose {
                    Whose::Server { node, .. } => self.server_has_read(node, read),
                    Whose::Left { slot, .. } => self.left_is_read(slot, taken.journal, read),
                }
            }
        }
    }

    fn speak(&mut self, asker: usize, index: usize) {
        let now = self.now;
        let Some(found) = &mut self.askers[asker] else {
            return;
        };
        let (host, machine, journal) = (found.host, found.machines[index], found.journal);
        let Some(conn) = found.conns[index] else {
            if now.since(found.tried[index]) >= RETRY {
                found.tried[index] = now;
                let conn = self.connect(Owner::Asker(asker), index, host, machine, journal);
                if let Some(found) = &mut self.askers[asker] {
                    found.conns[index] = Some(conn);
                }
            }
            return;
        };
        let next = match &mut found.talk {
            Talk::Read(recovery) => recovery.next_frame(index),
            Talk::Forget(forget) => forget.next_frame(index),
        };
        if let Some(Outgoing { header, body }) = next {
            let Body::Inline(bytes, length) = body else {
                unreachable!("who asks has no ring")
            };
            self.send_frame(conn, Way::Up, packet_of(&header, &bytes[..length]));
        }
    }
}
