//! Records sent directly between nodes, in step 5 of a commit: by multicast, once for all, or over a link to
//! each peer.
//!
//! Correctness does not depend on it. Records that are lost, or do not fit, or go to a slow or dead peer are
//! dropped; the server's stream brings them. `netram_shared_machine::node` decides which ones are applied.
//! This module checks that their ranges lie under the locks that they wrote.
//!
//! | file | contents |
//! |---|---|
//! | `peer_links.rs` | links and peers: sending to each, and receiving |
//! | `peer_link.rs` | one link |
//! | `multicast.rs` | the multicast group: this node's channel, and those of its peers |
//! | `reassembly.rs` | reassembly of a record from several datagrams |
//! | `dial.rs` | the thread that connects to peers |
//!
//! **Threads.** A committing thread sends its record itself, without waiting: one system call for the group,
//! or one per link. If another thread has the links at that moment, `netram-peers` sends it. `netram-peers`
//! also receives, unless a thread of the program is waiting for records: that one then
//! [receives](PeerListener) itself, and need not be woken. `netram-dial` connects. The node's lock is never
//! taken under the links' lock.

mod dial;
mod multicast;
mod peer_link;
mod peer_links;
mod reassembly;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use netram_shared_machine::NodeId;
use netram_shared_machine::message::{PeerEndpoint, PeerHint};
use netram_shared_machine::node::PeerAction;
use netram_transport::{Interest, MulticastGroup, Poller, ReadyEvents, Security, WaitStep, yield_core};

use super::error::JoinError;
use super::inner::NodeInner;
use super::options::NodeOptions;
use super::payload::NodePayload;
use crate::channel::{AcceptedSession, AcceptorConfig, SessionAcceptor, SessionHandler, ThreadWaker};
use crate::limit::HINTS_QUEUED_MAX;
use crate::server::VerifiedRecord;
use peer_links::PeerLinks;

pub(super) use dial::run as meet;

const WAKER_TOKEN: u64 = 0;
const EVENTS: usize = 64;
/// Maximum sleep: bounds the delay of stopping the node if a wake-up is missed.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Interval at which the receiving thread checks whether other threads still receive. When they stop, the
/// next record may be received this much later. Waking this thread each time would cost the program more.
const LISTENER_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// The region's segment number in records: the first segment at every node.
const SEGMENT: u32 = 0;

/// Counts of records that were sent directly between nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectCounts {
    /// Other nodes' records that were applied before the server's stream brought them.
    pub applied: u64,
    /// Other nodes' records that came out of order, or after the stream, and were dropped.
    pub ignored: u64,
    /// Own records that were multicast.
    pub multicast: u64,
    /// Own records that went over a link, counted per peer.
    pub unicast: u64,
    /// Own records that a peer was not sent, because it reads too slowly.
    pub dropped: u64,
    /// Number of peers that are sent records, over links or by multicast.
    pub peers: usize,
}

/// Peers, as the node's threads share them.
pub(super) struct Peers {
    outbox: Mutex<PeerOutbox>,
    any: AtomicBool,
    /// Locked before the links.
    receive_state: Mutex<ReceiveState>,
    /// Number of waiting threads that receive.
    listeners: AtomicU32,
    /// The thread that receives when no other one does.
    receiver: OnceLock<Thread>,
    links: Mutex<PeerLinks>,
    pending_peers: Arc<PendingPeers>,
    poller: Poller,
    security: Security,
    multicast: AtomicU64,
    unicast: AtomicU64,
    dropped: AtomicU64,
    reached: AtomicU64,
}

/// The machine's actions for peers, in order.
#[derive(Default)]
struct PeerOutbox {
    hints: VecDeque<PeerHint<NodePayload>>,
    updates: VecDeque<PeerUpdate>,
}

/// A change of the peers, for the receiving thread.
enum PeerUpdate {
    PeerGroup(String),
    Peer(NodeId, Option<PeerEndpoint>),
}

/// New sessions of peers, and the waker of the receiving thread.
struct PendingPeers {
    arrivals: Mutex<Vec<AcceptedSession>>,
    waker: ThreadWaker,
}

impl SessionHandler for PendingPeers {
    fn take(&self, arrival: AcceptedSession) {
        self.arrivals
            .lock()
            .expect("nothing panics under this lock")
            .push(arrival);
        self.waker.wake();
    }
}

/// State of the thread that receives.
struct ReceiveState {
    events: ReadyEvents,
    hints: Vec<PeerHint<NodePayload>>,
    /// How this node is reached, without multicast.
    reach: PeerEndpoint,
    /// Group that replaces the server's one.
    group: Option<MulticastGroup>,
    /// Time at which something last came.
    heard_at: Instant,
}

/// A waiting thread's right to receive, until it is dropped.
pub(super) struct PeerListener<'s> {
    shared: &'s NodeInner,
    peers: Option<&'s Peers>,
}

impl Peers {
    /// Opens the acceptor for peers, if the options have an address for it. The server names the peers when
    /// it learns how this node is reached.
    pub(super) fn open(
        shared: &NodeInner,
        options: &NodeOptions,
    ) -> Result<(Peers, Option<SessionAcceptor>), JoinError> {
        let lobby = Arc::new(PendingPeers {
            arrivals: Mutex::default(),
            waker: ThreadWaker::new()?,
        });
        let poller = Poller::new()?;
        poller.add(&lobby.waker, WAKER_TOKEN, Interest::Read)?;
        let door = match &options.listen {
            None => None,
            Some(address) => {
                let config = AcceptorConfig::new(vec![address.clone()], options.security.clone());
                let service = Arc::clone(&lobby) as Arc<dyn SessionHandler>;
                Some(SessionAcceptor::open(config, service).map_err(JoinError::Listen)?)
            }
        };
        let address = door.as_ref().and_then(|door| door.addresses().first());
        let reach = PeerEndpoint {
            address: address.map(ToString::to_string).unwrap_or_default(),
            tune: None,
        };
        let region = shared.core().machine.region().unwrap_or_default();
        let goes = reach.address.is_empty();
        let ears = ReceiveState {
            events: ReadyEvents::with_capacity(EVENTS),
            hints: Vec::new(),
            reach,
            group: options.group.clone(),
            heard_at: Instant::now(),
        };
        let peers = Peers {
            outbox: Mutex::default(),
            any: AtomicBool::new(false),
            receive_state: Mutex::new(ears),
            listeners: AtomicU32::new(0),
            receiver: OnceLock::new(),
            links: Mutex::new(PeerLinks::new(region, shared.id, goes)),
            pending_peers: lobby,
            poller,
            security: options.security.clone(),
            multicast: AtomicU64::new(0),
            unicast: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            reached: AtomicU64::new(0),
        };
        Ok((peers, door))
    }

    /// Queues an action of the machine. May be called under the node's lock; [`Peers::send`] does the rest.
    pub(super) fn add(&self, straight: PeerAction<NodePayload>) {
        let mut post = self.outbox.lock().expect("nothing panics under this lock");
        match straight {
            PeerAction::PeerGroup(group) => post.updates.push_back(PeerUpdate::PeerGroup(group)),
            PeerAction::Peer(node, reach) => post.updates.push_back(PeerUpdate::Peer(node, reach)),
            // No thread waits for a hint, and the oldest is the least useful.
            PeerAction::Hint(hint) => {
                if post.hints.len() >= HINTS_QUEUED_MAX {
                    post.hints.pop_front();
                }
                post.hints.push_back(hint);
            }
        }
        self.any.store(true, Ordering::SeqCst);
    }

    /// Sends what was queued if the links' lock is free; otherwise the receiving thread sends it. Never
    /// waits.
    pub(super) fn send(&self) {
        if let Ok(mut lines) = self.links.try_lock() {
            self.send_hints(&mut lines);
        }
        // There are updates, or hints that were queued while another thread had the links.
        if self.any.load(Ordering::SeqCst) {
            self.pending_peers.waker.wake();
        }
    }

    fn send_hints(&self, lines: &mut PeerLinks) {
        while let Some(hint) = self.next_hint() {
            let sent = lines.send(hint, &self.poller);
            self.multicast.fetch_add(sent.multicast, Ordering::Relaxed);
            self.unicast.fetch_add(sent.unicast, Ordering::Relaxed);
            self.dropped.fetch_add(sent.dropped, Ordering::Relaxed);
        }
    }

    fn next_hint(&self) -> Option<PeerHint<NodePayload>> {
        let mut post = self.outbox.lock().expect("nothing panics under this lock");
        let hint = post.hints.pop_front();
        if post.hints.is_empty() && post.updates.is_empty() {
            self.any.store(false, Ordering::SeqCst);
        }
        hint
    }

    fn next_update(&self) -> Option<PeerUpdate> {
        let mut post = self.outbox.lock().expect("nothing panics under this lock");
        let news = post.updates.pop_front();
        if post.hints.is_empty() && post.updates.is_empty() {
            self.any.store(false, Ordering::SeqCst);
        }
        news
    }

    fn links(&self) -> MutexGuard<'_, PeerLinks> {
        self.links.lock().expect("nothing panics under this lock")
    }

    pub(super) fn counts(&self) -> DirectCounts {
        DirectCounts {
            multicast: self.multicast.load(Ordering::Relaxed),
            unicast: self.unicast.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            peers: self.reached.load(Ordering::Relaxed) as usize,
            ..DirectCounts::default()
        }
    }

    /// Wakes the receiving thread.
    pub(super) fn wake(&self) {
        self.pending_peers.waker.wake();
    }

    fn receive_state(&self) -> MutexGuard<'_, ReceiveState> {
        self.receive_state.lock().expect("nothing panics under this lock")
    }

    /// Receives once. Returns whether something had come, and when that was last so.
    fn look(&self, ears: &mut ReceiveState, shared: &NodeInner) -> io::Result<(bool, Instant)> {
        self.poller.wait(&mut ears.events, Some(Duration::ZERO))?;
        let (moved, reach) = poll_once(self, ears)?;
        if let Some(reach) = reach {
            shared.with(|core, _| core.machine.set_reach(reach));
        }
        take(shared, &mut ears.hints);
        if moved {
            ears.heard_at = Instant::now();
        }
        Ok((moved, ears.heard_at))
    }
}

impl<'s> PeerListener<'s> {
    /// Registers the calling thread, which waits for records. It must call [`look`](PeerListener::look) all
    /// the time, and drop this before it sleeps.
    pub(super) fn begin(shared: &'s NodeInner) -> PeerListener<'s> {
        let peers = shared.peers.get();
        if let Some(peers) = peers {
            peers.listeners.fetch_add(1, Ordering::Relaxed);
        }
        PeerListener { shared, peers }
    }

    /// Receives from peers, unless another thread does. Returns whether something had come.
    pub(super) fn look(&self) -> bool {
        let Some(peers) = self.peers else {
            return false;
        };
        let Ok(mut ears) = peers.receive_state.try_lock() else {
            return false;
        };
        // An error here occurs in the receiving thread, too, which logs it.
        peers.look(&mut ears, self.shared).is_ok_and(|(moved, _)| moved)
    }

    /// Hands receiving back, because the calling thread is going to sleep.
    pub(super) fn hand_back(self) {
        let receiver = self.peers.and_then(|peers| peers.receiver.get());
        drop(self);
        if let Some(receiver) = receiver {
            receiver.unpark();
        }
    }
}

impl Drop for PeerListener<'_> {
    fn drop(&mut self) {
        if let Some(peers) = self.peers {
            peers.listeners.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Receives until the node ends.
pub(super) fn run(shared: &NodeInner, door: Option<SessionAcceptor>) {
    let Some(peers) = shared.peers.get() else {
        return;
    };
    // A second call is ignored: a node has one such thread.
    let _ = peers.receiver.set(std::thread::current());
    let reach = peers.receive_state().reach.clone();
    shared.with(|core, _| core.machine.set_reach(reach));
    if let Err(error) = receive(shared, peers) {
        tracing::error!(%error, "cannot receive records from peers any more; they come from the server only");
        shared.with(|core, _| core.machine.set_reach(PeerEndpoint::default()));
    }
    drop(door);
}

fn receive(shared: &NodeInner, peers: &Peers) -> io::Result<()> {
    while !shared.is_over() {
        if peers.listeners.load(Ordering::Relaxed) > 0 {
            std::thread::park_timeout(LISTENER_POLL_INTERVAL);
            continue;
        }
        let (moved, heard) = peers.look(&mut peers.receive_state(), shared)?;
        let step = match moved {
            true => WaitStep::Poll,
            false => shared.wait.step(heard.elapsed()),
        };
        match step {
            WaitStep::Block => {
                let news = || peers.any.load(Ordering::SeqCst) || shared.is_over();
                peers
                    .pending_peers
                    .waker
                    .sleep_until_woken(news, || peers.poller.sleep(Some(WAIT_MAX)))?;
            }
            WaitStep::Yield => yield_core(),
            WaitStep::Poll => std::hint::spin_loop(),
        }
    }
    Ok(())
}

/// Receives everything once. Returns whether something was found, and how the node is reached, if that
/// changed.
fn poll_once(peers: &Peers, ears: &mut ReceiveState) -> io::Result<(bool, Option<PeerEndpoint>)> {
    let mut lines = peers.links();
    let arrivals = std::mem::take(
        &mut *peers
            .pending_peers
            .arrivals
            .lock()
            .expect("nothing panics under this lock"),
    );
    let mut moved = !arrivals.is_empty();
    for arrival in arrivals {
        lines.add_incoming(arrival, &peers.poller)?;
    }
    let mut changed = false;
    while let Some(news) = peers.next_update() {
        moved = true;
        match news {
            PeerUpdate::PeerGroup(group) => {
                let group = ears.group.clone().or_else(|| multicast::parse_group(&group));
                changed |= lines.set_group(group, &peers.poller);
            }
            PeerUpdate::Peer(node, reach) => lines.on_peer(node, reach),
        }
    }
    moved |= lines.receive(&ears.events, &mut ears.hints, &peers.poller)?;
    peers.send_hints(&mut lines);
    changed |= lines.renew();
    peers.reached.store(lines.reached() as u64, Ordering::Relaxed);
    let reach = changed.then(|| PeerEndpoint {
        tune: lines.tune(),
        ..ears.reach.clone()
    });
    Ok((moved, reach))
}

/// Hands hints to the machine, after checking them.
fn take(shared: &NodeInner, hints: &mut Vec<PeerHint<NodePayload>>) {
    if hints.is_empty() {
        return;
    }
    // After a node's first invalid record, none of its records counts.
    let mut liar = None;
    hints.retain(|hint| {
        if liar == Some(hint.node) {
            return false;
        }
        let checked = VerifiedRecord::check(hint.payload.as_ref(), &shared.spans, SEGMENT);
        if let Err(error) = &checked {
            let (node, number) = (hint.node.0, hint.number.0);
            tracing::error!(node, number, %error, "a peer sent an invalid record; its direct records are ignored from now on");
            liar = Some(hint.node);
        }
        checked.is_ok()
    });
    shared.with(|core, now| {
        for hint in hints.drain(..) {
            core.machine.on_hint(now, hint);
        }
        if let Some(node) = liar {
            core.machine.distrust(node);
        }
    });
}
