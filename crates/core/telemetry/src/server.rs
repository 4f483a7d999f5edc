//! A server of pages: one thread answers GET requests, by default those for `/metrics` and `/health`.
//!
//! The thread waits for its sockets together, so a slow reader delays nobody. Each connection has one answer
//! and a deadline. At most [`CONNECTIONS_MAX`] are open. The answers are a [`PageHandler`]'s.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::address::MetricsAddress;
use crate::limit::{
    ACCEPT_PAUSE, CONNECTION_TIMEOUT, CONNECTIONS_MAX, CROWDED_TIMEOUT, DISCARD_BYTES_MAX, REQUEST_BYTES_MAX,
};
use crate::pages::MetricsPages;
use crate::registry::MetricsRegistry;
use crate::request::PageRequest;
use crate::socket::{PageListener, PageStream};

/// The answers of a server of pages.
pub trait PageHandler: Send {
    /// The bytes of the response. The server's one thread calls this: it computes, and waits for nothing.
    fn respond(&mut self, request: &PageRequest) -> Arc<[u8]>;
}

/// Pages that are being served. Dropping it ends that.
#[derive(Debug)]
pub struct MetricsServer {
    address: MetricsAddress,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// The page cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum MetricsServerError {
    /// Another socket has the address.
    #[error(
        "metrics cannot be served at {0}: another process listens there; choose another port, or leave the setting out"
    )]
    InUse(MetricsAddress),
    /// The system refuses the address.
    #[error(
        "metrics cannot be served at {address}: {source}; name an address of this machine, or leave the setting out"
    )]
    Bind {
        /// The address.
        address: MetricsAddress,
        /// The system's answer.
        source: io::Error,
    },
    /// The system refuses the thread, or what wakes it.
    #[error("cannot start the thread that serves metrics: {0}")]
    System(#[source] io::Error),
}

impl MetricsServer {
    /// Serves `registry` at `address`. A program binds its page before it opens what it serves, so that a
    /// wrong address changes nothing.
    ///
    /// # Errors
    /// `InUse`, `Bind` for other refusals of the address, `System` for a thread or descriptor.
    pub fn start(
        address: &MetricsAddress,
        registry: &'static MetricsRegistry,
    ) -> Result<MetricsServer, MetricsServerError> {
        MetricsServer::serve(address, "netram-metrics", Box::new(MetricsPages::new(registry)))
    }

    /// Serves the pages of `handler` at `address`, by a thread of this name.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn serve(
        address: &MetricsAddress,
        thread: &str,
        handler: Box<dyn PageHandler>,
    ) -> Result<MetricsServer, MetricsServerError> {
        let refused = |source: io::Error| match source.kind() {
            ErrorKind::AddrInUse => MetricsServerError::InUse(address.clone()),
            _ => MetricsServerError::Bind {
                address: address.clone(),
                source,
            },
        };
        let listener = PageListener::bind(address).map_err(refused)?;
        let address = listener.address().map_err(refused)?;
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| MetricsServerError::System(error.into()))?;
        let stop = Arc::new(stop);
        let page = Page {
            listener,
            handler,
            stop: Arc::clone(&stop),
            connections: Vec::with_capacity(CONNECTIONS_MAX),
            accept_after: None,
        };
        let thread = std::thread::Builder::new()
            .name(thread.to_owned())
            .spawn(move || page.run())
            .map_err(MetricsServerError::System)?;
        Ok(MetricsServer {
            address,
            stop,
            thread: Some(thread),
        })
    }

    /// Serves the metrics of this process at `address`. All that ask for the same address share the page: it
    /// ends with the last of them.
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub fn shared(address: &MetricsAddress) -> Result<Arc<MetricsServer>, MetricsServerError> {
        let registry = MetricsRegistry::of_process();
        // Each operation is one call on the list, so a panic elsewhere leaves it consistent.
        let mut pages = registry.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|(_, page)| page.strong_count() > 0);
        let found = pages.iter().find(|(asked, _)| asked == address);
        if let Some(page) = found.and_then(|(_, page)| page.upgrade()) {
            return Ok(page);
        }
        let page = Arc::new(MetricsServer::start(address, registry)?);
        pages.push((address.clone(), Arc::downgrade(&page)));
        Ok(page)
    }

    /// The address of the page, with the port that the system chose.
    pub fn address(&self) -> &MetricsAddress {
        &self.address
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        // An eventfd refuses only what would overflow it.
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic was printed where it happened.
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct Page {
    listener: PageListener,
    handler: Box<dyn PageHandler>,
    stop: Arc<OwnedFd>,
    connections: Vec<Connection>,
    /// When connections are accepted again, after the system refused one.
    accept_after: Option<Instant>,
}

struct Connection {
    stream: PageStream,
    begun: Instant,
    step: Step,
}

/// Progress of a connection.
enum Step {
    /// Bytes of the request so far.
    Receiving(Vec<u8>),
    /// A response, and the number of its bytes that were sent.
    Sending(Arc<[u8]>, usize),
    /// Bytes of the request that were dropped since the answer was sent: a close before they are read would
    /// reset the connection, and the reader would lose its answer.
    Ending(usize),
}

impl Page {
    fn run(mut self) {
        loop {
            let now = Instant::now();
            let patience = match self.connections.len() < CONNECTIONS_MAX {
                true => CONNECTION_TIMEOUT,
                false => CROWDED_TIMEOUT,
            };
            self.connections
                .retain(|connection| connection.begun + patience > now);
            self.accept_after = self.accept_after.filter(|after| *after > now);
            let accepts = self.accept_after.is_none() && self.connections.len() < CONNECTIONS_MAX;
            let deadlines = self
                .connections
                .iter()
                .map(|connection| connection.begun + patience);
            let next = deadlines.chain(self.accept_after).min();
            let Some(ready) = self.wait(accepts, next.map(|next| next - now)) else {
                return;
            };
            let (listens, ready) = ready;
            self.turn(&ready);
            if listens {
                self.accept();
            }
        }
    }

    /// Waits until a socket is ready. Returns whether the listener is, and which connections are; `None` when
    /// the page is to end.
    fn wait(&self, accepts: bool, timeout: Option<Duration>) -> Option<(bool, Vec<bool>)> {
        let mut sockets = Vec::with_capacity(2 + CONNECTIONS_MAX);
        sockets.push(PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN));
        let listens = if accepts {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        sockets.push(PollFd::from_borrowed_fd(self.listener.as_fd(), listens));
        sockets.extend(self.connections.iter().map(|connection| {
            let awaits = match connection.step {
                Step::Sending(..) => PollFlags::OUT,
                Step::Receiving(_) | Step::Ending(_) => PollFlags::IN,
            };
            PollFd::from_borrowed_fd(connection.stream.as_fd(), awaits)
        }));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        // An interrupted wait is repeated with a shorter timeout.
        let polled = poll(&mut sockets, timeout.as_ref()).is_ok();
        let ready = |socket: &PollFd| polled && !socket.revents().is_empty();
        if ready(&sockets[0]) {
            return None;
        }
        Some((
            accepts && ready(&sockets[1]),
            sockets[2..].iter().map(ready).collect(),
        ))
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(stream) => self.connections.push(Connection {
                stream,
                begun: Instant::now(),
                step: Step::Receiving(Vec::new()),
            }),
            // The reader has gone again.
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionAborted) => (),
            // Mostly there is no descriptor left. The reader stays in the queue.
            Err(_) => self.accept_after = Some(Instant::now() + ACCEPT_PAUSE),
        }
    }

    fn turn(&mut self, ready: &[bool]) {
        let mut connections = std::mem::take(&mut self.connections);
        let mut ready = ready.iter();
        let handler = &mut *self.handler;
        connections.retain_mut(|connection| match ready.next() {
            Some(true) => match connection.turn(handler) {
                Ok(goes_on) => goes_on,
                Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            },
            _ => true,
        });
        self.connections = connections;
    }
}

impl Connection {
    /// Handles a socket that is ready. Returns whether the connection goes on.
    fn turn(&mut self, handler: &mut dyn PageHandler) -> io::Result<bool> {
        let mut chunk = [0; REQUEST_BYTES_MAX];
        match &mut self.step {
            Step::Receiving(received) => {
                let room = REQUEST_BYTES_MAX - received.len();
                let bytes = self.stream.read(&mut chunk[..room])?;
                if bytes == 0 {
                    return Ok(false);
                }
                received.extend_from_slice(&chunk[..bytes]);
                if let Some(read) = PageRequest::read(received, self.stream.peer()) {
                    let response = match &read {
                        Ok(request) => handler.respond(request),
                        Err(refusal) => refusal.encode(),
                    };
                    self.step = Step::Sending(response, 0);
                }
            }
            Step::Sending(response, sent) => {
                *sent += self.stream.write(&response[*sent..])?;
                if *sent == response.len() {
                    self.stream.end_writing()?;
                    self.step = Step::Ending(0);
                }
            }
            Step::Ending(dropped) => {
                let bytes = self.stream.read(&mut chunk)?;
                *dropped += bytes;
                return Ok(bytes > 0 && *dropped < DISCARD_BYTES_MAX);
            }
        }
        Ok(true)
    }
}
