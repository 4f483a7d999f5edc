//! Links between nodes and their server, and hints from node to node.
//!
//! A link keeps order until it breaks. Then its last messages are lost, and each end notices separately: a
//! node may be back over another link before the server knows that the first is gone. A link may also fall
//! silent, in one direction or both: its messages vanish for ever, and neither end notices at once.

use std::collections::VecDeque;

use netram_proto::time::{Nanos, Time};
use netram_shared_machine::message::ToPeer;
use netram_shared_machine::node::PeerAction;
use netram_shared_machine::server::{LinkEnd, LinkOutput, SessionId};
use netram_shared_machine::{ToNode, ToServer};

use super::bytes::{self, PayloadBytes};
use super::{Event, World};

/// Maximum number of messages in flight on a link.
const WINDOW: usize = 6;
/// The two directions of a link.
const UP: usize = 0;
const DOWN: usize = 1;
/// Its two ends.
const NODE: usize = 0;
const SERVER: usize = 1;

pub(super) struct SimNodeLink {
    pub(super) slot: usize,
    life: u64,
    up: VecDeque<ToServer<PayloadBytes>>,
    down: VecDeque<ToNode<PayloadBytes>>,
    last_up: Time,
    last_down: Time,
    broken: bool,
    /// Whether both ends have the link.
    linked: bool,
    /// Whether messages vanish on the way up, and on the way down.
    silent: [bool; 2],
    /// Set on a broken link: messages left in it arrive no earlier, because the machine of a process that
    /// closed it goes on sending.
    delayed_until: Time,
    /// Ends that have noticed that it is gone, or never will.
    ends_informed: [bool; 2],
    /// Whether the server has closed it.
    closed: bool,
    /// Boot of the server's process to which it leads.
    boot: u32,
}

impl World {
    /// Begins to connect a node's process to the server.
    pub(super) fn connect_node(&mut self, slot: usize) {
        let (now, boot) = (self.now, self.server.boot);
        if !self.server.is_up() || self.slots[slot].cut_off_until > now {
            return;
        }
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        self.sessions += 1;
        let session = SessionId(self.sessions);
        process.session = Some(session);
        let pipe = SimNodeLink {
            slot,
            life: process.life,
            up: VecDeque::new(),
            down: VecDeque::new(),
            last_up: now,
            last_down: now,
            broken: false,
            linked: false,
            silent: [false; 2],
            delayed_until: Time(0),
            ends_informed: [false; 2],
            closed: false,
            boot,
        };
        self.node_links.insert(session, pipe);
        let delay = self.latency();
        self.at(delay, Event::Linked { session });
    }

    pub(super) fn on_linked(&mut self, session: SessionId) {
        if let Some(pipe) = self.node_links.get_mut(&session) {
            pipe.linked = true;
        }
        if let Some(slot) = self.node_end(session)
            && let Some(process) = &mut self.slots[slot].process
        {
            process.node.on_linked();
            self.settle(slot);
        }
    }

    /// The slot whose process has this link, if it has not given it up.
    fn node_end(&self, session: SessionId) -> Option<usize> {
        let pipe = self.node_links.get(&session)?;
        let process = self.slots[pipe.slot].process.as_ref()?;
        (process.life == pipe.life && process.session == Some(session)).then_some(pipe.slot)
    }

    pub(super) fn node_link_slot(&self, session: SessionId) -> Option<usize> {
        self.node_links.get(&session).map(|pipe| pipe.slot)
    }

    pub(super) fn send_up(&mut self, slot: usize, message: &ToServer<PayloadBytes>) {
        let mut sent = Vec::new();
        message.head(&mut sent);
        sent.extend_from_slice(message.payload().map_or(&[], |payload| payload));
        let message = ToServer::decode(&sent).expect("what a node says is a message");
        let message = message.map(PayloadBytes::from);
        let at = self.now + self.latency();
        let process = self.slots[slot].process.as_ref();
        let Some(session) = process.and_then(|process| process.session) else {
            return;
        };
        if let Some(pipe) = self.node_links.get_mut(&session).filter(|pipe| !pipe.broken) {
            pipe.last_up = at.max(Time(pipe.last_up.0 + 1));
            pipe.up.push_back(message);
            self.queue.push(pipe.last_up, Event::Up { session });
        }
    }

    pub(super) fn on_up(&mut self, session: SessionId) {
        let Some(pipe) = self.node_links.get(&session) else {
            return;
        };
        let cut_off = self.slots[pipe.slot].cut_off_until;
        let wait = cut_off.max(self.server.paused_until).max(pipe.delayed_until);
        if wait > self.now {
            return self.queue.push(wait, Event::Up { session });
        }
        if pipe.boot != self.server.boot || !self.server.is_up() {
            return self.break_node_link(session);
        }
        let Some(pipe) = self.node_links.get_mut(&session) else {
            return;
        };
        let Some(message) = pipe.up.pop_front().filter(|_| !pipe.silent[UP]) else {
            return;
        };
        self.on_server_message(session, message);
        self.maybe_break(session);
    }

    /// Sends the server's messages for a link, as far as the link has room.
    pub(super) fn send_down(&mut self, session: SessionId) {
        loop {
            let at = self.now + self.latency();
            let open = |pipe: &&mut SimNodeLink| !pipe.broken && !pipe.closed && pipe.down.len() < WINDOW;
            let Some(pipe) = self.node_links.get_mut(&session).filter(open) else {
                return;
            };
            let message = match self.server.poll_send(session) {
                None => return,
                Some(LinkOutput::Message(message)) => message,
                Some(LinkOutput::Page { offset, bytes }) => {
                    let bytes = bytes::page(self.server.memory(), offset, bytes);
                    if bytes.iter().all(|byte| *byte == 0) {
                        continue;
                    }
                    ToNode::Page { offset, bytes }
                }
                Some(LinkOutput::Close) => {
                    pipe.closed = true;
                    if pipe.silent[DOWN] {
                        self.inform_end(session, SERVER);
                        return self.inform_end(session, NODE);
                    }
                    pipe.last_down = at.max(Time(pipe.last_down.0 + 1));
                    self.queue.push(pipe.last_down, Event::Unlinked { session });
                    return;
                }
            };
            let mut sent = Vec::new();
            message.head(&mut sent);
            sent.extend_from_slice(message.payload().map_or(&[], |payload| payload));
            let message = ToNode::decode(&sent).expect("what the server says is a message");
            pipe.last_down = at.max(Time(pipe.last_down.0 + 1));
            pipe.down.push_back(message.map(PayloadBytes::from));
            self.queue.push(pipe.last_down, Event::Down { session });
        }
    }

    pub(super) fn on_down(&mut self, session: SessionId) {
        let Some(pipe) = self.node_links.get(&session) else {
            return;
        };
        let (slot, life) = (pipe.slot, pipe.life);
        let wait = self.slots[slot].cut_off_until.max(self.slots[slot].paused_until);
        if wait > self.now {
            return self.queue.push(wait, Event::Down { session });
        }
        let Some(pipe) = self.node_links.get_mut(&session) else {
            return;
        };
        // A vanished message is never read and fills the link.
        let Some(message) = (!pipe.silent[DOWN]).then(|| pipe.down.pop_front()).flatten() else {
            return;
        };
        let now = self.local(slot);
        if let Some(process) = self.slots[slot].alive(life)
            && process.session == Some(session)
        {
            self.trace.mark(self.now, 21, slot as u64);
            if let ToNode::Lock(message) = &message {
                self.trace
                    .tell(self.now, || format!("slot {slot} is told {message:?}"));
            }
            process.node.handle(now, message);
            self.settle(slot);
        }
        self.send_down(session);
        self.maybe_break(session);
    }

    /// Breaks the link between two messages, now and then.
    fn maybe_break(&mut self, session: SessionId) {
        if self.calm_since.is_none() && self.rng.chance(self.profile.link_break_permille) {
            self.break_node_link(session);
            self.coverage.hit("region: links that broke behind a message");
        }
    }

    /// Breaks a link. Each end notices at its own time.
    pub(super) fn break_node_link(&mut self, session: SessionId) {
        let (draw, other) = (self.rng.draw(), self.rng.draw());
        let held = self.rng.pick(&[0, 0, 0, 10, 40, 150]);
        let held_until = self.now + Nanos::from_ms(held);
        let Some(pipe) = self.node_links.get_mut(&session).filter(|pipe| !pipe.broken) else {
            return;
        };
        pipe.broken = true;
        pipe.delayed_until = held_until;
        let left = draw % (pipe.up.len() as u64 + 1);
        pipe.up.truncate(left as usize);
        let left = other % (pipe.down.len() as u64 + 1);
        pipe.down.truncate(left as usize);
        let (last_up, last_down) = (pipe.last_up.max(held_until), pipe.last_down);
        let silent = pipe.silent;
        let closed = LinkEnd::Broken;
        for (end, deaf, last, event) in [
            (NODE, silent[DOWN], last_down, Event::Unlinked { session }),
            (SERVER, silent[UP], last_up, Event::HungUp { session, closed }),
        ] {
            if deaf {
                self.inform_end(session, end);
                continue;
            }
            // One end may take long to notice.
            let ms = self.rng.pick(&[0, 1, 20]);
            let at = last.max(self.now + Nanos::from_ms(ms) + self.latency());
            self.queue.push(at, event);
        }
    }

    /// Makes a link silent for ever, in one direction or both. Before the link is established, or while its
    /// node has no lease, only the driver's timeout ends it.
    pub(super) fn silence_link(&mut self) {
        let ways = self.rng.pick(&[[true, true], [true, false], [false, true]]);
        let linked = self.node_links.iter().filter(|(_, pipe)| pipe.linked);
        let sessions: Vec<SessionId> = linked.map(|(session, _)| *session).collect();
        let is_known = |session: &SessionId| {
            let process = |slot: usize| self.slots[slot].process.as_ref();
            let process = self.node_end(*session).and_then(process);
            process.is_some_and(|process| process.node.id().is_some())
        };
        let known: Vec<SessionId> = sessions.into_iter().filter(is_known).collect();
        if known.is_empty() {
            return;
        }
        let session = known[self.rng.index(known.len())];
        if let Some(pipe) = self.node_links.get_mut(&session) {
            // A silent direction stays silent.
            pipe.silent = [UP, DOWN].map(|way| pipe.silent[way] || ways[way]);
            self.coverage.hit("region: links that fell silent");
            self.tell(|| format!("session {session:?} falls silent: {ways:?}"));
        }
    }

    /// Lets a node give up its silent link and connect again.
    pub(super) fn give_up_link(&mut self, slot: usize) {
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let Some(session) = process.session.take() else {
            return;
        };
        process.node.on_unlinked();
        self.coverage.hit("region: links given up for their silence");
        self.tell(|| format!("slot {slot} gives up session {session:?}"));
        self.break_node_link(session);
        self.settle(slot);
    }

    /// Ends the link of a node's process. `told`: its machine closes the link, behind the messages sent.
    pub(super) fn drop_node_link(&mut self, session: SessionId, told: bool) {
        self.break_node_link(session);
        if told && let Some(pipe) = self.node_links.get(&session) {
            let closed = LinkEnd::HungUp;
            let at = Time(pipe.last_up.max(pipe.delayed_until).0.max(self.now.0) + 1);
            self.queue.push(at, Event::HungUp { session, closed });
        }
    }

    /// Tells the node that its link is gone.
    pub(super) fn on_unlinked(&mut self, session: SessionId) {
        let Some(slot) = self.node_end(session) else {
            return self.inform_end(session, NODE);
        };
        let paused = self.slots[slot].paused_until;
        if paused > self.now {
            return self.queue.push(paused, Event::Unlinked { session });
        }
        if let Some(process) = &mut self.slots[slot].process {
            process.session = None;
            process.node.on_unlinked();
            self.settle(slot);
        }
        // Both ends know of a link that was closed in order.
        if self.node_links.get(&session).is_some_and(|pipe| pipe.closed) {
            self.inform_end(session, SERVER);
        }
        self.inform_end(session, NODE);
    }

    fn inform_end(&mut self, session: SessionId, end: usize) {
        if let Some(pipe) = self.node_links.get_mut(&session) {
            pipe.ends_informed[end] = true;
            if pipe.ends_informed == [true; 2] {
                self.node_links.remove(&session);
            }
        }
    }

    /// Tells the server that the link is gone.
    pub(super) fn on_hung_up(&mut self, session: SessionId, closed: LinkEnd) {
        let paused = self.server.paused_until;
        if paused > self.now {
            return self.queue.push(paused, Event::HungUp { session, closed });
        }
        let Some(pipe) = self.node_links.get_mut(&session) else {
            return;
        };
        let same = pipe.boot == self.server.boot;
        pipe.up.clear();
        if same {
            self.on_server_link_lost(session, closed);
        }
        self.inform_end(session, SERVER);
    }

    /// Handles a node's message to its peers. Links between peers are not simulated: every running node can
    /// be reached.
    pub(super) fn on_peer_action(&mut self, from: usize, straight: PeerAction<PayloadBytes>) {
        let PeerAction::Hint(hint) = straight else {
            return;
        };
        let message = ToPeer::Hint(hint);
        let mut bytes = Vec::new();
        message.head(&mut bytes);
        bytes.extend_from_slice(message.payload().map_or(&[], |payload| payload));
        for slot in (0..self.slots.len()).filter(|slot| *slot != from) {
            // Hints are lost, repeated, late, and in any order.
            for permille in [self.profile.hints_permille, self.profile.hints_permille / 10] {
                if self.rng.chance(permille) {
                    let late = self.rng.pick(&[0, 0, 0, 3, 60]);
                    let delay = Nanos(self.latency().0 + Nanos::from_ms(late).0);
                    let bytes = bytes.clone();
                    self.at(delay, Event::Hint { slot, bytes });
                }
            }
        }
    }

    pub(super) fn on_hint(&mut self, slot: usize, bytes: &[u8]) {
        let now = self.local(slot);
        let message = ToPeer::decode(bytes).expect("what a node says is a message");
        let ToPeer::Hint(hint) = message.map(PayloadBytes::from) else {
            return;
        };
        let payload = hint.payload.clone();
        let Some(process) = &mut self.slots[slot].process else {
            return;
        };
        let taken = process.node.on_hint(now, hint);
        self.settle(slot);
        if taken {
            self.coverage.hit("region: hints taken");
            self.check_hint(slot, &payload);
        }
    }
}
