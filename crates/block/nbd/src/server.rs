//! The server: its listeners, and a thread for each connection.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_transport::pending_connections::{Admission, PendingConnections, PendingLimits};
use netram_transport::{
    Interest, ListenError, ListenScope, ListenSocket, NetAddress, Poller, ReadyEvents, Waker,
};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle};
use rustix::net::{Shutdown, shutdown};
use rustls::pki_types::CertificateDer;

use crate::config::{NbdExport, NbdServerConfig, NbdStartError, TlsMode, check};
use crate::connection::{self, ChosenExport};
use crate::limit::{CONNECTIONS_MAX, HANDSHAKE_TIMEOUT, PENDING_CONNECTIONS_MAX, PENDING_GRACE, STOP_GRACE};
use crate::stats::{NbdCounters, NbdStats};
use crate::tls::{TlsError, TlsKeys};

/// Delay after a failed `accept`, for example when file descriptors have run out.
const PAUSE: Duration = Duration::from_millis(50);
/// Idle time after which TCP keepalive probes a connection.
const KEEPALIVE: Duration = Duration::from_secs(60);
const WAKER: u64 = u64::MAX;
const EVENTS: usize = 64;

/// The server's entry for a connection.
struct ConnectionEntry {
    fd: Arc<OwnedFd>,
    /// Index among the connections whose client has not chosen an export yet; `None` once it has.
    pending: Option<usize>,
    /// Certificates that the client has shown, and the index of its export, once it has chosen one.
    shown: Option<(Vec<CertificateDer<'static>>, usize)>,
}

struct Connections {
    entries: HashMap<u64, ConnectionEntry>,
    /// Ids of the connections whose client has not chosen an export yet. The threads keep the deadline.
    pending: PendingConnections<u64>,
    next: u64,
    /// Threads of all entries, and of some that have ended.
    threads: Vec<JoinHandle<()>>,
}

impl Default for Connections {
    fn default() -> Connections {
        Connections {
            entries: HashMap::new(),
            pending: PendingConnections::new(PendingLimits {
                // All take an admitted place: each has a thread from the start.
                strangers_max: 0,
                admitted_max: PENDING_CONNECTIONS_MAX,
                grace: PENDING_GRACE,
                patience: HANDSHAKE_TIMEOUT,
            }),
            next: 0,
            threads: Vec::new(),
        }
    }
}

impl Connections {
    /// Adds a connection. If too many clients have not chosen an export, the one that has been silent for
    /// longest is disconnected, unless it has just come. `None`: there is no room.
    fn insert(&mut self, fd: &Arc<OwnedFd>) -> Option<u64> {
        if self.entries.len() >= CONNECTIONS_MAX {
            return None;
        }
        let now = Instant::now();
        match self.pending.make_room(now) {
            Admission::Full => return None,
            Admission::Free => (),
            Admission::Evicted(silent) => {
                if let Some(entry) = self.entries.get_mut(&silent) {
                    entry.pending = None;
                    // Its thread ends. The connection may be closed already.
                    let _ = shutdown(&*entry.fd, Shutdown::Both);
                }
            }
        }
        let id = self.next;
        self.next += 1;
        let pending = self.pending.insert(now, now + HANDSHAKE_TIMEOUT, true, id);
        let entry = ConnectionEntry {
            fd: Arc::clone(fd),
            pending: Some(pending),
            shown: None,
        };
        self.entries.insert(id, entry);
        Some(id)
    }

    /// Notes that a client has chosen an export.
    fn on_chosen(&mut self, id: u64) {
        if let Some(pending) = self.entries.get_mut(&id).and_then(|entry| entry.pending.take()) {
            self.pending.remove(pending);
        }
    }

    fn remove(&mut self, id: u64) {
        self.on_chosen(id);
        self.entries.remove(&id);
    }
}

/// State shared by all threads.
pub(crate) struct NbdServerState {
    pub(crate) exports: Vec<NbdExport>,
    tls: Mutex<TlsMode>,
    pub(crate) counters: NbdCounters,
    stopping: AtomicBool,
    connections: Mutex<Connections>,
    /// Signals that a connection has ended.
    ended: Condvar,
}

impl NbdServerState {
    pub(crate) fn new(exports: Vec<NbdExport>, tls: TlsMode) -> NbdServerState {
        NbdServerState {
            exports,
            tls: Mutex::new(tls),
            counters: NbdCounters::default(),
            stopping: AtomicBool::new(false),
            connections: Mutex::default(),
            ended: Condvar::new(),
        }
    }

    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Encryption of new connections. Keys are shared, not copied.
    pub(crate) fn tls(&self) -> TlsMode {
        self.tls
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
            .clone()
    }

    /// Notes that a client has chosen an export; `false` if new keys do not admit it any more.
    fn on_chosen(&self, id: u64, choice: ChosenExport) -> bool {
        let export = choice.session.export;
        let mut connections = self.connections();
        connections.on_chosen(id);
        let Some((certificates, keys)) = choice.shown else {
            return true;
        };
        if let Some(entry) = connections.entries.get_mut(&id) {
            entry.shown = Some((certificates.clone(), export));
        }
        drop(connections);
        // Keys that come from here on look at the entry.
        let now = self.tls();
        let now = now.keys().expect("a server never stops to have keys");
        Arc::ptr_eq(&now.config, &keys.config) || now.admits(&certificates, &self.exports[export].name)
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        // No code under this lock panics halfway through a change, so the map stays valid.
        self.connections
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Removes a connection's entry however its thread ends.
struct ConnectionGuard {
    shared: Arc<NbdServerState>,
    id: u64,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.shared.connections().remove(self.id);
        self.shared.ended.notify_all();
    }
}

/// A running server. Dropping it stops it as [`NbdServer::stop`] does.
pub struct NbdServer {
    shared: Arc<NbdServerState>,
    addresses: Vec<NetAddress>,
    waker: Arc<Waker>,
    acceptor: Option<JoinHandle<()>>,
}

impl NbdServer {
    /// Listens and serves until stopped.
    ///
    /// # Errors
    ///
    /// [`NbdStartError`] if the configuration is invalid, an address is not available, or the operating
    /// system refuses a thread.
    pub fn start(config: NbdServerConfig) -> Result<NbdServer, NbdStartError> {
        check(&config)?;
        let secret = matches!(config.tls, TlsMode::Require(_));
        let reach = ListenScope {
            other_machines: secret || config.insecure,
            other_users: config.other_users,
        };
        let mut ports = Vec::new();
        for address in &config.listen {
            let port = ListenSocket::bind(address, reach).map_err(|error| match error {
                ListenError::InsecureRefused { address } => NbdStartError::InsecureRefused { address },
                other => NbdStartError::Bind(other),
            })?;
            ports.push(port);
        }
        let addresses = ports.iter().map(|port| port.address().clone()).collect();
        let waker = Arc::new(Waker::new()?);
        let poller = Poller::new()?;
        poller.add(&*waker, WAKER, Interest::Read)?;
        for (index, port) in ports.iter().enumerate() {
            poller.add(port, index as u64, Interest::Read)?;
        }
        let shared = Arc::new(NbdServerState::new(config.exports, config.tls));
        let theirs = Arc::clone(&shared);
        let acceptor = std::thread::Builder::new()
            .name("netram-nbd".into())
            .spawn(move || accept_all(&theirs, &poller, &ports))?;
        Ok(NbdServer {
            shared,
            addresses,
            waker,
            acceptor: Some(acceptor),
        })
    }

    /// Addresses with resolved names and the ports chosen by the operating system.
    pub fn addresses(&self) -> &[NetAddress] {
        &self.addresses
    }

    /// Uses these certificates, revocations and names of clients from now on, and ends the sessions that they
    /// do not admit. Other sessions go on. Returns the number of sessions ended.
    ///
    /// # Errors
    ///
    /// [`TlsError::NotRevoked`] if the list of revoked certificates is gone. The former keys stay in use.
    pub fn reload(&self, keys: TlsKeys) -> Result<usize, TlsError> {
        {
            let mut tls = self
                .shared
                .tls
                .lock()
                .unwrap_or_else(|poisoned| poisoned.into_inner());
            if let Some(former) = tls.keys() {
                keys.check_successor_of(former)?;
            }
            match &mut *tls {
                TlsMode::Off => return Ok(0),
                TlsMode::On(present) | TlsMode::Require(present) => *present = keys.clone(),
            }
        }
        let mut ended = 0;
        for entry in self.shared.connections().entries.values() {
            let Some((certificates, export)) = &entry.shown else {
                continue;
            };
            if !keys.admits(certificates, &self.shared.exports[*export].name) {
                // It may be closed already.
                let _ = shutdown(&*entry.fd, Shutdown::Both);
                ended += 1;
            }
        }
        Ok(ended)
    }

    /// Counts so far.
    pub fn stats(&self) -> NbdStats {
        self.shared.counters.read()
    }

    /// Number of present connections, including those without an export yet.
    pub fn connections(&self) -> usize {
        self.shared.connections().entries.len()
    }

    /// Accepts no more connections and requests, finishes and answers those that were started, then closes.
    /// Returns the number of connections that did not end because the device does not answer; their threads
    /// still hold it.
    pub fn stop(mut self) -> usize {
        self.end()
    }

    fn end(&mut self) -> usize {
        let Some(acceptor) = self.acceptor.take() else {
            return 0;
        };
        self.shared.stopping.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            panic!("cannot wake the accepting thread: {error}");
        }
        if acceptor.join().is_err() {
            tracing::error!("the accepting thread panicked");
        }
        // First the receiving side is closed, so that threads waiting for requests see the end. After the
        // grace the sending side is closed too, so that threads waiting for a client to read its replies end.
        self.shut(Shutdown::Read);
        if self.wait_for_end(STOP_GRACE) > 0 {
            self.shut(Shutdown::Both);
        }
        let left = self.wait_for_end(STOP_GRACE);
        if left > 0 {
            tracing::error!(
                connections = left,
                "connections did not end because their device does not answer"
            );
            return left;
        }
        // Their entries are removed; once joined, the threads do not hold the device either.
        let threads = std::mem::take(&mut self.shared.connections().threads);
        for thread in threads {
            // The panic message was printed by the thread; it ended one connection.
            let _ = thread.join();
        }
        0
    }

    fn shut(&self, how: Shutdown) {
        for entry in self.shared.connections().entries.values() {
            // The connection may be closed already.
            let _ = shutdown(&*entry.fd, how);
        }
    }

    fn wait_for_end(&self, grace: Duration) -> usize {
        let deadline = Instant::now() + grace;
        let mut connections = self.shared.connections();
        while !connections.entries.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            connections = match self.shared.ended.wait_timeout(connections, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        connections.entries.len()
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.end();
    }
}

fn accept_all(shared: &Arc<NbdServerState>, poller: &Poller, ports: &[ListenSocket]) {
    let mut events = ReadyEvents::with_capacity(EVENTS);
    while !shared.stopping() {
        if let Err(error) = poller.wait(&mut events, None) {
            panic!("cannot wait for clients: {error}");
        }
        for ready in events.iter().filter(|ready| ready.token != WAKER) {
            accept_at(shared, &ports[ready.token as usize]);
        }
    }
}

fn accept_at(shared: &Arc<NbdServerState>, port: &ListenSocket) {
    loop {
        match port.accept() {
            Ok(Some((socket, peer))) => admit(shared, socket, peer),
            Ok(None) => return,
            Err(error) => {
                tracing::error!(%error, "cannot accept a connection; retrying");
                std::thread::sleep(PAUSE);
                return;
            }
        }
    }
}

/// Starts a client's thread, or closes the connection if there are too many.
fn admit(shared: &Arc<NbdServerState>, socket: OwnedFd, peer: String) {
    if let Err(error) = rustix::io::ioctl_fionbio(&socket, false) {
        tracing::error!(peer, "cannot make a connection blocking: {error}");
        return;
    }
    // Without keepalive, a client machine that is gone for good would hold its connection for ever. Unix
    // sockets do not support it, and do not need it.
    let _ = set_socket_keepalive(&socket, true);
    let _ = set_tcp_keepidle(&socket, KEEPALIVE);
    let fd = Arc::new(socket);
    let registered = {
        // The guard is dropped before a warning is logged.
        let inserted = shared.connections().insert(&fd);
        let Some(id) = inserted else {
            tracing::warn!(peer, "client refused: too many connections");
            return;
        };
        ConnectionGuard {
            shared: Arc::clone(shared),
            id,
        }
    };
    let spawned = std::thread::Builder::new()
        .name(format!("netram-nbd-{}", registered.id))
        .spawn(move || {
            let registered = registered;
            let shared = Arc::clone(&registered.shared);
            connection::serve(&shared, fd, &peer, |choice| {
                shared.on_chosen(registered.id, choice)
            });
        });
    match spawned {
        Ok(thread) => {
            let mut connections = shared.connections();
            connections.threads.retain(|thread| !thread.is_finished());
            connections.threads.push(thread);
        }
        Err(error) => tracing::error!(%error, "client refused: cannot start its thread"),
    }
}
