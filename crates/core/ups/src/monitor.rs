//! The thread that talks to `upsd`.
//!
//! | thread | does |
//! |---|---|
//! | `netram-ups` | the socket, the clock, and the owner's function |
//! | `netram-ups-dial` | short-lived: a name's addresses and a connection, which may block |

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::limit::{CONNECT_TIMEOUT, LINE_BYTES_MAX, STOP_TIMEOUT};
use crate::login::UpsLogin;
use crate::name::UpsName;
use crate::power::PowerStatus;
use crate::watch::{UpsAction, UpsEvent, UpsWatch};

/// A UPS that is being watched. Dropping it ends the watch, as [`stop`](Self::stop) does.
#[derive(Debug)]
pub struct UpsMonitor {
    shared: Arc<MonitorState>,
    /// A byte here wakes the thread.
    waker: UnixStream,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct MonitorState {
    stopping: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
}

impl UpsMonitor {
    /// Watches `name`. `on_change` is called on the watching thread with each new status; it must not block.
    ///
    /// # Errors
    ///
    /// No thread or descriptor is left.
    pub fn start(
        name: &UpsName,
        login: Option<UpsLogin>,
        on_change: impl FnMut(&PowerStatus) + Send + 'static,
    ) -> io::Result<UpsMonitor> {
        let (waker, woken) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        waker.set_nonblocking(true)?;
        let shared = Arc::new(MonitorState::default());
        let thread = MonitorThread {
            shared: Arc::clone(&shared),
            name: name.clone(),
            watch: UpsWatch::new(name.ups.clone(), login),
            origin: Instant::now(),
            waker: waker.try_clone()?,
            woken,
            dialing: None,
            link: None,
            on_change: Box::new(on_change),
        };
        let thread = std::thread::Builder::new()
            .name("netram-ups".to_owned())
            .spawn(move || thread.run())?;
        Ok(UpsMonitor {
            shared,
            waker,
            thread: Some(thread),
        })
    }

    /// Logs out and ends the watch. The function is not called any more, unless it has blocked for
    /// [`STOP_TIMEOUT`].
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.shared.stopping.store(true, Ordering::SeqCst);
        // If the buffer is full, the thread is being woken.
        let _ = (&self.waker).write(&[0]);
        let ended = self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let running = |ended: &mut bool| !*ended;
        let waited = self.shared.end.wait_timeout_while(ended, STOP_TIMEOUT, running);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            // The panic was printed where it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for UpsMonitor {
    fn drop(&mut self) {
        self.end();
    }
}

struct MonitorThread {
    shared: Arc<MonitorState>,
    name: UpsName,
    watch: UpsWatch,
    origin: Instant,
    waker: UnixStream,
    woken: UnixStream,
    /// A connection that is being made. One that was given up may still be: then no second one is begun.
    dialing: Option<Receiver<io::Result<TcpStream>>>,
    link: Option<TcpStream>,
    on_change: Box<dyn FnMut(&PowerStatus) + Send>,
}

impl MonitorThread {
    fn run(mut self) {
        let _end = EndGuard(Arc::clone(&self.shared));
        self.handle(UpsEvent::Tick);
        while !self.shared.stopping.load(Ordering::SeqCst) {
            self.wait();
            self.hear_dialer();
            if self.link.is_some() {
                self.receive();
            }
            self.handle(UpsEvent::Tick);
        }
        if let Some(mut link) = self.link {
            // Its answer is of no use, and neither is an error.
            let _ = link.write(b"LOGOUT\n");
        }
    }

    /// Waits for bytes, a connection, the end, or the watch's deadline.
    fn wait(&mut self) {
        let left = self.watch.deadline().saturating_sub(self.origin.elapsed());
        let timeout = Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        };
        let mut polled = vec![PollFd::new(&self.woken, PollFlags::IN)];
        polled.extend(self.link.iter().map(|link| PollFd::new(link, PollFlags::IN)));
        if let Err(error) = poll(&mut polled, Some(&timeout))
            && error != rustix::io::Errno::INTR
        {
            tracing::error!(%error, "cannot wait for upsd; trying again");
            std::thread::sleep(Duration::from_millis(100));
        }
        let mut drained = [0; 16];
        while matches!((&self.woken).read(&mut drained), Ok(count) if count > 0) {}
    }

    fn handle(&mut self, event: UpsEvent<'_>) {
        self.watch.handle(self.origin.elapsed(), event);
        self.act();
    }

    /// Does what the watch wants done.
    fn act(&mut self) {
        while let Some(action) = self.watch.poll_action() {
            match action {
                UpsAction::Connect => self.dial(),
                UpsAction::Disconnect => self.link = None,
                UpsAction::Send(command) => {
                    let Some(link) = &mut self.link else { continue };
                    // A line always fits an idle socket's buffer.
                    let sent = link.write(command.as_bytes());
                    if !matches!(sent, Ok(count) if count == command.as_bytes().len()) {
                        self.watch.handle(self.origin.elapsed(), UpsEvent::Closed);
                    }
                }
                UpsAction::Report(status) => {
                    if !self.shared.stopping.load(Ordering::SeqCst) {
                        (self.on_change)(&status);
                    }
                }
            }
        }
    }

    fn receive(&mut self) {
        let mut bytes = [0; LINE_BYTES_MAX];
        let Some(link) = &mut self.link else { return };
        match link.read(&mut bytes) {
            Ok(0) => self.handle(UpsEvent::Closed),
            Ok(count) => self.handle(UpsEvent::Received(&bytes[..count])),
            Err(error) if is_passing(&error) => (),
            Err(_) => self.handle(UpsEvent::Closed),
        }
    }

    /// Begins to connect.
    fn dial(&mut self) {
        self.link = None;
        if self.dialing.is_some() {
            return;
        }
        let (sender, receiver) = channel();
        let (host, port) = (self.name.host.clone(), self.name.port);
        let begun = self.waker.try_clone().and_then(|mut waker| {
            let dial = move || {
                let _ = sender.send(connect(&host, port));
                let _ = waker.write(&[0]);
            };
            let thread = std::thread::Builder::new().name("netram-ups-dial".to_owned());
            thread.spawn(dial)
        });
        match begun {
            Ok(_) => self.dialing = Some(receiver),
            Err(error) => {
                let event = UpsEvent::Unreachable(error.to_string());
                self.watch.handle(self.origin.elapsed(), event);
            }
        }
    }

    /// Takes the dialer's result, if it is there.
    fn hear_dialer(&mut self) {
        let Some(dialing) = &self.dialing else { return };
        let result = match dialing.try_recv() {
            Ok(result) => result,
            Err(TryRecvError::Empty) => return,
            Err(TryRecvError::Disconnected) => Err(io::Error::other("the connecting thread panicked")),
        };
        self.dialing = None;
        match result {
            Ok(link) => {
                self.link = Some(link);
                self.handle(UpsEvent::Connected);
            }
            Err(error) => self.handle(UpsEvent::Unreachable(error.to_string())),
        }
    }
}

/// Whether the next attempt may succeed.
fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, WouldBlock};
    matches!(error.kind(), WouldBlock | Interrupted)
}

/// Looks the host up and connects to the first address that takes it.
fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT / 2) {
            Ok(link) => {
                link.set_nodelay(true)?;
                link.set_nonblocking(true)?;
                return Ok(link);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Says that the thread has ended, however it did.
struct EndGuard(Arc<MonitorState>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        *self.0.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.end.notify_all();
    }
}
