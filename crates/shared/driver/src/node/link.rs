//! The thread of the link to the server: it sends the machine's messages and hands in the server's. When the
//! link breaks, it opens another one.
//!
//! **Pauses.** After sending, the thread waits for [`RELAY_PAUSE`] before it sends again, unless a
//! transaction may be waiting for the server to have the message
//! ([`is_urgent`](netram_shared_machine::RegionNode::is_urgent)). Many records then go in one message, and
//! cost the server one sync.
//!
//! **Polling.** Only after an urgent message the thread polls for the answer. Otherwise it sleeps at once:
//! other nodes' records come directly, and a polling thread takes the core from threads that a transaction
//! waits for.
//!
//! **Silence.** A dead link looks intact for minutes. The machine counts how long the server has owed an
//! answer. Then the link is given up like a broken one, unless part of a message has come since.
//!
//! A broken link is closed only when the server has answered over the next one. A closed link would tell the
//! server that the node's process has ended, and the node's locks would be handed on while its lease still
//! runs.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netram_journal::owner::JournalOwner;
use netram_shared_machine::message::MessageError;
use netram_shared_machine::{ToNode, ToServer};
use netram_transport::{NetAddress, Security, WaitPolicy};

use super::inner::NodeInner;
use super::payload::NodePayload;
use crate::channel::{Channel, ChannelError, ChannelOpenError, ChannelWait, ThreadWaker};
use crate::limit::RELAY_PAUSE;

/// Time that a server has for its greeting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two attempts to connect to the server.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum sleep: bounds the delay of stopping the node if a wake-up is missed.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Address of the server, protection of links to it, and the node's proof of who it is.
#[derive(Clone, Debug)]
pub(super) struct ServerAddress {
    pub(super) address: NetAddress,
    pub(super) security: Security,
    pub(super) wait: WaitPolicy,
    /// Proves to the server that this node has its journal's key.
    pub(super) owner: JournalOwner,
}

/// Failure after which a link is unusable.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServerLinkError {
    #[error("the server has not answered for half a lease")]
    Silent,
    #[error("{0}")]
    Channel(#[from] ChannelError),
    #[error("{0}")]
    Message(#[from] MessageError),
    #[error("{0}")]
    System(#[from] io::Error),
}

/// One link to the server.
pub(super) struct ServerSession {
    channel: Channel,
    rest: ChannelWait,
    /// Encoded head of a message on its way into the channel.
    head: Vec<u8>,
    /// Time of the last sign that a transaction may be waiting for the server.
    awaited: Instant,
    /// Number of packets when the last message was complete, or when the link was last found silent.
    packets: u64,
}

impl ServerSession {
    pub(super) fn open(server: &ServerAddress) -> Result<ServerSession, ChannelOpenError> {
        let (address, owner) = (&server.address, server.owner.key());
        let channel = Channel::open_as(address, &server.security, CONNECT_TIMEOUT, owner)?;
        let rest = ChannelWait::new(&channel, server.wait)?;
        Ok(ServerSession {
            channel,
            rest,
            head: Vec::new(),
            awaited: Instant::now(),
            packets: 0,
        })
    }

    pub(super) fn waker(&self) -> Arc<ThreadWaker> {
        self.rest.waker()
    }

    /// Sends messages while there is room. Returns `true` if all are on their way.
    pub(super) fn send(
        &mut self,
        to_send: &mut VecDeque<ToServer<NodePayload>>,
    ) -> Result<bool, ServerLinkError> {
        loop {
            while self.channel.has_room()
                && let Some(message) = to_send.pop_front()
            {
                self.head.clear();
                message.head(&mut self.head);
                let payload = message.payload().map_or(&[][..], NodePayload::as_ref);
                self.channel.queue(&[&self.head[..], payload]);
            }
            let flushed = self.channel.flush()?;
            if !flushed || to_send.is_empty() {
                return Ok(flushed && to_send.is_empty());
            }
        }
    }

    /// Next message of the server.
    pub(super) fn receive(&mut self) -> Result<Option<ToNode<NodePayload>>, ServerLinkError> {
        let Some(bytes) = self.channel.receive()? else {
            return Ok(None);
        };
        let message = ToNode::decode(bytes)?.map(NodePayload::from);
        self.packets = self.channel.packets();
        Ok(Some(message))
    }

    /// Checks a link that the machine considers silent, after everything was read. `Ok`: part of a message
    /// has come since.
    pub(super) fn silent(&mut self) -> Result<(), ServerLinkError> {
        let packets = self.channel.packets();
        match std::mem::replace(&mut self.packets, packets) == packets {
            true => Err(ServerLinkError::Silent),
            false => Ok(()),
        }
    }

    /// Waits until something comes or is urgent, at most until `until`.
    fn pause(
        &self,
        flushed: bool,
        until: Instant,
        hurries: impl Fn() -> bool,
    ) -> Result<(), ServerLinkError> {
        if self.channel.has_buffered() {
            return Ok(());
        }
        let longest = until.saturating_duration_since(Instant::now());
        Ok(self.rest.sleep(&self.channel, flushed, longest, hurries)?)
    }

    /// Waits until something comes or is to be sent, at most for [`WAIT_MAX`].
    pub(super) fn wait(&self, flushed: bool, news: impl Fn() -> bool) -> Result<(), ServerLinkError> {
        let idle = self.awaited.elapsed();
        Ok(self.rest.wait(&self.channel, flushed, idle, WAIT_MAX, news)?)
    }

    /// Notes that a transaction may be waiting for the server's next message, so that the thread polls for
    /// it.
    pub(super) fn is_awaited(&mut self) {
        self.awaited = Instant::now();
    }
}

/// Serves links until the node ends. `session` is the link over which it has joined.
pub(super) fn run(shared: &NodeInner, server: &ServerAddress, session: ServerSession) {
    let (mut session, mut broken) = (Some(session), None);
    while !shared.is_over() {
        let opened = match session.take() {
            Some(joined) => Ok(joined),
            None => ServerSession::open(server).inspect(|_| shared.with(|core, _| core.machine.on_linked())),
        };
        match opened {
            Ok(opened) => broken = Some(serve(shared, opened, broken.take())),
            Err(error) => {
                tracing::debug!(%error, "the region's server cannot be reached; trying again");
                std::thread::sleep(CONNECT_PAUSE);
            }
        }
    }
}

/// Serves a link until it breaks, and returns it.
fn serve(shared: &NodeInner, mut session: ServerSession, before: Option<ServerSession>) -> ServerSession {
    shared.set_waker(Some(session.waker()));
    let ended = speak(shared, &mut session, before);
    shared.set_waker(None);
    if let Err(broken) = ended {
        tracing::warn!(%broken, "lost the link to the region's server; transactions go on under held tokens until the lease ends");
    }
    shared.with(|core, _| {
        core.to_send.clear();
        core.machine.on_unlinked();
    });
    session
}

fn speak(
    shared: &NodeInner,
    session: &mut ServerSession,
    mut before: Option<ServerSession>,
) -> Result<(), ServerLinkError> {
    // Messages that are unsent when the link is gone are dropped with this.
    let mut to_send = VecDeque::new();
    let mut pause: Option<Instant> = None;
    shared.pauses.store(false, Ordering::SeqCst);
    shared.silent.store(false, Ordering::SeqCst);
    loop {
        let hurries = shared.urgent.load(Ordering::Relaxed) && shared.urgent.swap(false, Ordering::SeqCst);
        if hurries {
            session.is_awaited();
        }
        if hurries || pause.is_some_and(|until| until <= Instant::now()) {
            pause = None;
            shared.pauses.store(false, Ordering::SeqCst);
        }
        if pause.is_none() && shared.has_outgoing.swap(false, Ordering::SeqCst) {
            to_send.append(&mut shared.core().to_send);
            pause = Some(Instant::now() + RELAY_PAUSE);
            shared.pauses.store(true, Ordering::SeqCst);
        }
        let flushed = session.send(&mut to_send)?;
        if shared.is_over() {
            return Ok(());
        }
        match session.receive()? {
            Some(message) => {
                drop(before.take());
                shared.with(|core, now| core.machine.handle(now, message));
            }
            None => {
                if shared.silent.load(Ordering::Relaxed) && shared.silent.swap(false, Ordering::SeqCst) {
                    session.silent()?;
                    shared.core().machine.on_partial_message();
                }
                let hurries = || shared.urgent.load(Ordering::SeqCst) || shared.is_over();
                match pause {
                    Some(until) => session.pause(flushed, until, hurries)?,
                    None => session.wait(flushed, || {
                        shared.has_outgoing.load(Ordering::SeqCst) || hurries()
                    })?,
                }
            }
        }
    }
}
