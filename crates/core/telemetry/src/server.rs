//! The page of metrics: one thread serves `GET /metrics` and `GET /health`.
//!
//! The thread waits for its sockets together, so a slow reader delays nobody. Each connection has one answer
//! and a deadline. At most [`CONNECTIONS_MAX`] are open; all get the same text for [`TEXT_AGE_MAX`].

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::address::MetricsAddress;
use crate::limit::{
    ACCEPT_PAUSE, CONNECTION_TIMEOUT, CONNECTIONS_MAX, CROWDED_TIMEOUT, DISCARD_BYTES_MAX, REQUEST_BYTES_MAX,
    TEXT_AGE_MAX,
};
use crate::registry::MetricsRegistry;
use crate::request::{Answer, answer_to};
use crate::samples::MetricsFormat;
use crate::socket::{PageListener, PageStream};

/// A page of metrics that is being served. Dropping it ends that.
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
            registry,
            stop: Arc::clone(&stop),
            connections: Vec::with_capacity(CONNECTIONS_MAX),
            texts: [None, None],
            accept_after: None,
        };
        let thread = std::thread::Builder::new()
            .name("netram-metrics".to_owned())
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
        static PAGES: Mutex<Vec<(MetricsAddress, Weak<MetricsServer>)>> = Mutex::new(Vec::new());
        // Each operation is one call on the list, so a panic elsewhere leaves it consistent.
        let mut pages = PAGES.lock().unwrap_or_else(PoisonError::into_inner);
        pages.retain(|(_, page)| page.strong_count() > 0);
        let found = pages.iter().find(|(asked, _)| asked == address);
        if let Some(page) = found.and_then(|(_, page)| page.upgrade()) {
            return Ok(page);
        }
        let page = Arc::new(MetricsServer::start(address, MetricsRegistry::of_process())?);
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
    registry: &'static MetricsRegistry,
    stop: Arc<OwnedFd>,
    connections: Vec<Connection>,
    /// The last text of each format.
    texts: [Option<PageText>; 2],
    /// When connections are accepted again, after the system refused one.
    accept_after: Option<Instant>,
}

/// A response that is given to all that ask for a while.
#[derive(Clone)]
struct PageText {
    made: Instant,
    response: Arc<[u8]>,
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
        connections.retain_mut(|connection| match ready.next() {
            Some(true) => match connection.turn(&mut |answer| self.respond(answer)) {
                Ok(goes_on) => goes_on,
                Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
            },
            _ => true,
        });
        self.connections = connections;
    }

    fn respond(&mut self, answer: Answer) -> Arc<[u8]> {
        match answer {
            Answer::Metrics(format) => self.text(format),
            Answer::Health => response("200 OK", "text/plain; charset=utf-8", "ok\n"),
            Answer::Refused(status, why) => {
                response(status, "text/plain; charset=utf-8", &format!("{why}\n"))
            }
        }
    }

    fn text(&mut self, format: MetricsFormat) -> Arc<[u8]> {
        let kept = &mut self.texts[usize::from(format == MetricsFormat::Prometheus)];
        let now = Instant::now();
        if let Some(text) = kept.as_ref().filter(|text| now - text.made < TEXT_AGE_MAX) {
            return Arc::clone(&text.response);
        }
        let body = self.registry.text(format);
        let response = response("200 OK", format.content_type(), &body);
        *kept = Some(PageText {
            made: now,
            response: Arc::clone(&response),
        });
        response
    }
}

impl Connection {
    /// Handles a socket that is ready. Returns whether the connection goes on.
    fn turn(&mut self, respond: &mut dyn FnMut(Answer) -> Arc<[u8]>) -> io::Result<bool> {
        let mut chunk = [0; REQUEST_BYTES_MAX];
        match &mut self.step {
            Step::Receiving(received) => {
                let room = REQUEST_BYTES_MAX - received.len();
                let bytes = self.stream.read(&mut chunk[..room])?;
                if bytes == 0 {
                    return Ok(false);
                }
                received.extend_from_slice(&chunk[..bytes]);
                if let Some(answer) = answer_to(received) {
                    self.step = Step::Sending(respond(answer), 0);
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

fn response(status: &str, content_type: &str, body: &str) -> Arc<[u8]> {
    let bytes = body.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {bytes}\r\nAllow: GET\r\n\
         Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}"
    )
    .into_bytes()
    .into()
}
