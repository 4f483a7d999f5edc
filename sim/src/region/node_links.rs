//! Links between nodes and their server.
//!
//! A link keeps order until it breaks. Then its last messages are lost, and each end notices separately: a
//! node may be back over another link before the server knows that the first is gone. A link may also fall
//! silent, in one direction or both: its messages vanish for ever, and neither end notices at once.

use std::collections::{BTreeMap, VecDeque};

use netram_proto::id::JournalId;
use netram_proto::time::{Nanos, Time};
use netram_shared_machine::server::{LinkEnd, LinkOutput, SessionId};
use netram_shared_machine::{ToNode, ToServer};

use super::bytes::{self, PayloadBytes};
use super::kernel::{Event, RegionKernel};
use super::server::ServerHost;

/// Maximum number of messages in flight on a link.
const WINDOW: usize = 6;
/// The two directions of a link.
const UP: usize = 0;
const DOWN: usize = 1;
/// The two ends of a link.
const NODE: usize = 0;
const SERVER: usize = 1;

/// A link between a node's process and the server.
pub(super) struct SimNodeLink {
    pub(super) slot: usize,
    pub(super) life: u64,
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
    pub(super) delayed_until: Time,
    /// Ends that have noticed that it is gone, or never will.
    ends_informed: [bool; 2],
    /// Whether the server has closed it.
    closed: bool,
    /// Boot of the server's process to which it leads.
    pub(super) boot: u32,
    /// Journal that the node proves to own, before its first message.
    proof: Option<JournalId>,
}

impl SimNodeLink {
    fn new(slot: usize, life: u64, boot: u32, proof: JournalId, now: Time) -> SimNodeLink {
        SimNodeLink {
            slot,
            life,
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
            proof: Some(proof),
        }
    }

    /// Whether the server has closed it.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Handles both ends having it.
    pub(super) fn on_linked(&mut self) {
        self.linked = true;
    }

    /// Takes the proof, which the server gets before the first message.
    pub(super) fn take_proof(&mut self) -> Option<JournalId> {
        self.proof.take()
    }

    /// Takes the next message to the server. `None`: it vanished.
    pub(super) fn take_up(&mut self) -> Option<ToServer<PayloadBytes>> {
        self.up.pop_front().filter(|_| !self.silent[UP])
    }

    /// Takes the next message to the node. A vanished message is never read and fills the link.
    pub(super) fn take_down(&mut self) -> Option<ToNode<PayloadBytes>> {
        match self.silent[DOWN] {
            true => None,
            false => self.down.pop_front(),
        }
    }

    /// Drops what the server no longer reads.
    pub(super) fn drop_up(&mut self) {
        self.up.clear();
    }

    /// Makes directions silent. A silent direction stays silent.
    pub(super) fn silence(&mut self, ways: [bool; 2]) {
        self.silent = [UP, DOWN].map(|way| self.silent[way] || ways[way]);
    }

    /// Arrival time of a message to the server that would arrive at `at` by itself.
    fn next_up(&mut self, at: Time) -> Time {
        self.last_up = at.max(Time(self.last_up.0 + 1));
        self.last_up
    }

    /// Arrival time of a message to the node that would arrive at `at` by itself.
    fn next_down(&mut self, at: Time) -> Time {
        self.last_down = at.max(Time(self.last_down.0 + 1));
        self.last_down
    }
}

/// All links that an end still has.
#[derive(Default)]
pub(super) struct NodeLinks {
    links: BTreeMap<SessionId, SimNodeLink>,
    /// Number of links so far.
    sessions: u64,
}

impl NodeLinks {
    /// Begins to connect the process of a slot, which owns this journal, to the server's process `boot`.
    pub(super) fn open(
        &mut self,
        kernel: &mut RegionKernel,
        (slot, life): (usize, u64),
        owned: JournalId,
        boot: u32,
    ) -> SessionId {
        let session = self.new_session();
        let link = SimNodeLink::new(slot, life, boot, owned, kernel.now());
        self.links.insert(session, link);
        let delay = kernel.latency();
        kernel.at(delay, Event::Linked { session });
        session
    }

    /// A session of its own, for a client that is no node's.
    pub(super) fn new_session(&mut self) -> SessionId {
        self.sessions += 1;
        SessionId(self.sessions)
    }

    pub(super) fn get(&self, session: SessionId) -> Option<&SimNodeLink> {
        self.links.get(&session)
    }

    pub(super) fn get_mut(&mut self, session: SessionId) -> Option<&mut SimNodeLink> {
        self.links.get_mut(&session)
    }

    pub(super) fn slot_of(&self, session: SessionId) -> Option<usize> {
        self.links.get(&session).map(|link| link.slot)
    }

    pub(super) fn sessions(&self) -> Vec<SessionId> {
        self.links.keys().copied().collect()
    }

    /// Links that both ends have, or had.
    pub(super) fn linked(&self) -> impl Iterator<Item = SessionId> {
        let linked = self.links.iter().filter(|(_, link)| link.linked);
        linked.map(|(session, _)| *session)
    }

    /// Sends a node's message to the server, if the node has a link.
    pub(super) fn send_up(
        &mut self,
        kernel: &mut RegionKernel,
        session: Option<SessionId>,
        message: &ToServer<PayloadBytes>,
    ) {
        let mut sent = Vec::new();
        message.head(&mut sent);
        sent.extend_from_slice(message.payload().map_or(&[], |payload| payload));
        let message = ToServer::decode(&sent).expect("what a node says is a message");
        let message = message.map(PayloadBytes::from);
        let at = kernel.now() + kernel.latency();
        let Some(session) = session else { return };
        if let Some(link) = self.links.get_mut(&session).filter(|link| !link.broken) {
            link.up.push_back(message);
            kernel.push(link.next_up(at), Event::Up { session });
        }
    }

    /// Sends the server's messages for a link, as far as the link has room.
    pub(super) fn send_down(
        &mut self,
        kernel: &mut RegionKernel,
        server: &mut ServerHost,
        session: SessionId,
    ) {
        loop {
            let at = kernel.now() + kernel.latency();
            let open = |link: &&mut SimNodeLink| !link.broken && !link.closed && link.down.len() < WINDOW;
            let Some(link) = self.links.get_mut(&session).filter(open) else {
                return;
            };
            let message = match server.poll_send(session) {
                None => return,
                Some(LinkOutput::Message(message)) => message,
                Some(LinkOutput::Page { offset, bytes }) => {
                    let bytes = bytes::page(server.memory(), offset, bytes);
                    if bytes.iter().all(|byte| *byte == 0) {
                        continue;
                    }
                    ToNode::Page { offset, bytes }
                }
                Some(LinkOutput::Close) => {
                    link.closed = true;
                    if link.silent[DOWN] {
                        self.server_knows(session);
                        return self.node_knows(session);
                    }
                    return kernel.push(link.next_down(at), Event::Unlinked { session });
                }
            };
            let mut sent = Vec::new();
            message.head(&mut sent);
            sent.extend_from_slice(message.payload().map_or(&[], |payload| payload));
            let message = ToNode::decode(&sent).expect("what the server says is a message");
            link.down.push_back(message.map(PayloadBytes::from));
            kernel.push(link.next_down(at), Event::Down { session });
        }
    }

    /// Breaks the link between two messages, now and then.
    pub(super) fn maybe_break(&mut self, kernel: &mut RegionKernel, session: SessionId) {
        if !kernel.is_calm() && kernel.rng.chance(kernel.profile.link_break_permille) {
            self.break_link(kernel, session);
            kernel.hit("region: links that broke behind a message");
        }
    }

    /// Breaks a link. Each end notices at its own time.
    pub(super) fn break_link(&mut self, kernel: &mut RegionKernel, session: SessionId) {
        let (draw, other) = (kernel.rng.draw(), kernel.rng.draw());
        let held = kernel.rng.pick(&[0, 0, 0, 10, 40, 150]);
        let held_until = kernel.now() + Nanos::from_ms(held);
        let Some(link) = self.links.get_mut(&session).filter(|link| !link.broken) else {
            return;
        };
        link.broken = true;
        link.delayed_until = held_until;
        let left = draw % (link.up.len() as u64 + 1);
        link.up.truncate(left as usize);
        let left = other % (link.down.len() as u64 + 1);
        link.down.truncate(left as usize);
        let (last_up, last_down) = (link.last_up.max(held_until), link.last_down);
        let silent = link.silent;
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
            let ms = kernel.rng.pick(&[0, 1, 20]);
            let at = last.max(kernel.now() + Nanos::from_ms(ms) + kernel.latency());
            kernel.push(at, event);
        }
    }

    /// Ends the link of a node's process. `told`: its machine closes the link, behind the messages sent.
    pub(super) fn drop_link(&mut self, kernel: &mut RegionKernel, session: SessionId, told: bool) {
        self.break_link(kernel, session);
        if told && let Some(link) = self.links.get(&session) {
            let closed = LinkEnd::HungUp;
            let at = Time(link.last_up.max(link.delayed_until).0.max(kernel.now().0) + 1);
            kernel.push(at, Event::HungUp { session, closed });
        }
    }

    /// Records that the node has noticed that the link is gone.
    pub(super) fn node_knows(&mut self, session: SessionId) {
        self.inform_end(session, NODE);
    }

    /// Records that the server has noticed that the link is gone.
    pub(super) fn server_knows(&mut self, session: SessionId) {
        self.inform_end(session, SERVER);
    }

    fn inform_end(&mut self, session: SessionId, end: usize) {
        if let Some(link) = self.links.get_mut(&session) {
            link.ends_informed[end] = true;
            if link.ends_informed == [true; 2] {
                self.links.remove(&session);
            }
        }
    }
}
