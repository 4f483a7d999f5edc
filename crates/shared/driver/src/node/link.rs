//! The thread that has the link to the server: it sends what the machine says, and tells it what comes. When
//! the link breaks it makes another one.
//!
//! **Pauses.** After each sending it sends nothing for [`RELAY_PAUSE`], unless somebody may wait for the
//! server to have what there is ([`hurries`](netram_shared_machine::Node::hurries)): many records then go in
//! one message, and cost the server one sync.
//!
//! **Rests.** Only after such a sending it polls for what comes. Otherwise it sleeps at once: others' records
//! come straight, and a thread that yields takes turns on the core from those that somebody waits for.
//!
//! **Silence.** A link that carries nothing any more looks whole for minutes. The machine counts how long its
//! server has owed an answer; then the link is given up like one that broke, unless something has come of a
//! message that is still on its way.
//!
//! One that broke is not closed before the server has answered over the next: a link that its machine closes
//! tells the server that the node's process has ended, and its locks go on at once though its lease still
//! runs.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use netram_shared_machine::message::MessageError;
use netram_shared_machine::{ToNode, ToServer};
use netram_transport::{NetAddress, Security, WaitPolicy};

use super::inner::NodeInner;
use super::payload::NodePayload;
use crate::channel::{Channel, ChannelError, ChannelOpenError, ChannelWait, ThreadWaker};
use crate::limit::RELAY_PAUSE;

/// How long a server may take to greet.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Between two attempts to find the server.
const CONNECT_PAUSE: Duration = Duration::from_millis(50);
/// The longest rest: whoever stops the node is not waited for longer, should his ring be missed.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Where the server is, and how links to it are protected.
#[derive(Clone, Debug)]
pub(super) struct ServerAddress {
    pub(super) address: NetAddress,
    pub(super) security: Security,
    pub(super) wait: WaitPolicy,
}

/// Why a link is of no further use.
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
    /// The head of a message on its way into the channel.
    head: Vec<u8>,
    /// Somebody may wait for what the server says next, since then.
    awaited: Instant,
    /// Packets that had come when the last message had, or when the link was last found silent.
    packets: u64,
}

impl ServerSession {
    pub(super) fn open(server: &ServerAddress) -> Result<ServerSession, ChannelOpenError> {
        let channel = Channel::open(&server.address, &server.security, CONNECT_TIMEOUT)?;
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

    /// Sends what there is room for. `true`: all of that is on its way.
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

    /// The next message.
    pub(super) fn receive(&mut self) -> Result<Option<ToNode<NodePayload>>, ServerLinkError> {
        let Some(bytes) = self.channel.receive()? else {
            return Ok(None);
        };
        let message = ToNode::decode(bytes)?.map(NodePayload::from);
        self.packets = self.channel.packets();
        Ok(Some(message))
    }

    /// The machine holds this link to be silent, and everything has been taken that came. `Ok`: a part of a
    /// message has come since.
    pub(super) fn silent(&mut self) -> Result<(), ServerLinkError> {
        let packets = self.channel.packets();
        match std::mem::replace(&mut self.packets, packets) == packets {
            true => Err(ServerLinkError::Silent),
            false => Ok(()),
        }
    }

    /// Waits for something to come, or to hurry, at most until then.
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

    /// Waits for something to come, or to send, for a moment.
    pub(super) fn wait(&self, flushed: bool, news: impl Fn() -> bool) -> Result<(), ServerLinkError> {
        let idle = self.awaited.elapsed();
        Ok(self.rest.wait(&self.channel, flushed, idle, WAIT_MAX, news)?)
    }

    /// Somebody may wait for what the server says next: then the core is not given up for it at once.
    pub(super) fn is_awaited(&mut self) {
        self.awaited = Instant::now();
    }
}

/// Until the node ends. `session` is the one over which it has joined.
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

/// Until the link breaks. Gives it back.
fn serve(shared: &NodeInner, mut session: ServerSession, before: Option<ServerSession>) -> ServerSession {
    shared.set_waker(Some(session.waker()));
    let ended = speak(shared, &mut session, before);
    shared.set_waker(None);
    if let Err(broken) = ended {
        tracing::warn!(%broken, "lost the region's server; going on without it until the lease ends");
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
    // What is not sent when the link is gone is forgotten with this.
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
