//! The server: its socket, and one virtual machine after the other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use netram_block::BlockDevice;
use netram_transport::{ListenError, ListenScope, ListenSocket, NetAddress};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::retry_on_intr;
use vhost::vhost_user::{Error as ProtocolError, Listener};
use vhost_user_backend::{Error as DaemonError, ShutdownHandle, VhostUserDaemon};
use vm_memory::{GuestMemoryAtomic, GuestMemoryMmap};

use crate::backend::DiskBackend;
use crate::batch::GuestDisk;
use crate::limit::SERIAL_BYTES;
use crate::stats::{VhostCounters, VhostStats};

/// Delay after a connection that could not be served, for example when file descriptors have run out.
const PAUSE: Duration = Duration::from_millis(50);

/// Configuration of a [`VhostServer`].
pub struct VhostServerConfig {
    /// Path of the Unix socket. A virtual machine's process connects to it: whoever can, reads and changes
    /// everything.
    pub socket: PathBuf,
    /// Device to serve.
    pub device: Arc<dyn BlockDevice>,
    /// Name that guests read as the disk's serial number. Its first 20 bytes count.
    pub name: String,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Let other users of this machine connect, if the directory's permissions do.
    pub other_users: bool,
}

/// Failure to start a server.
#[derive(Debug, thiserror::Error)]
pub enum VhostStartError {
    /// The path is in use or not available.
    #[error(transparent)]
    Bind(#[from] ListenError),
    /// The operating system has no more threads or file descriptors.
    #[error("cannot start the server: {0}")]
    System(#[from] io::Error),
}

struct ServerState {
    socket: ListenSocket,
    disk: Arc<GuestDisk>,
    counters: Arc<VhostCounters>,
    stopping: AtomicBool,
    stop: OwnedFd,
    /// The present connection.
    connection: Mutex<Option<(ShutdownHandle, Arc<DiskBackend>)>>,
}

/// A running server. Dropping it stops it: requests that have begun are answered first.
pub struct VhostServer {
    state: Arc<ServerState>,
    thread: Option<JoinHandle<()>>,
}

impl VhostServer {
    /// Listens and serves until stopped.
    ///
    /// # Errors
    ///
    /// [`VhostStartError`] if the path is not available, or the operating system refuses a thread.
    pub fn start(config: VhostServerConfig) -> Result<VhostServer, VhostStartError> {
        let reach = ListenScope {
            other_machines: false,
            other_users: config.other_users,
        };
        let socket = ListenSocket::bind(&NetAddress::Unix(config.socket), reach)?;
        let mut serial = [0; SERIAL_BYTES];
        let named = config.name.len().min(SERIAL_BYTES);
        serial[..named].copy_from_slice(&config.name.as_bytes()[..named]);
        let state = Arc::new(ServerState {
            socket,
            disk: Arc::new(GuestDisk {
                device: config.device,
                read_only: config.read_only,
                serial,
            }),
            counters: Arc::default(),
            stopping: AtomicBool::new(false),
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?,
            connection: Mutex::default(),
        });
        let theirs = Arc::clone(&state);
        let thread = std::thread::Builder::new()
            .name("netram-vhost".to_owned())
            .spawn(move || theirs.run())?;
        Ok(VhostServer {
            state,
            thread: Some(thread),
        })
    }

    /// Address of the socket.
    pub fn address(&self) -> &NetAddress {
        self.state.socket.address()
    }

    /// Whether a virtual machine is connected.
    pub fn is_connected(&self) -> bool {
        self.state.connection().is_some()
    }

    /// Counts since the start.
    pub fn stats(&self) -> VhostStats {
        self.state.counters.read()
    }
}

impl Drop for VhostServer {
    fn drop(&mut self) {
        self.state.stopping.store(true, Ordering::SeqCst);
        let connection = self.state.connection().clone();
        if let Some((connection, backend)) = connection {
            backend.drain();
            connection.shutdown();
        }
        // The counter has room for one.
        let _ = rustix::io::write(&self.state.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The panic was printed where it happened.
            let _ = thread.join();
        }
    }
}

impl ServerState {
    fn connection(&self) -> MutexGuard<'_, Option<(ShutdownHandle, Arc<DiskBackend>)>> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while self.wait_for_connection() {
            match self.serve_connection() {
                Ok(()) => {
                    tracing::info!(address = %self.socket.address(), "the virtual machine has disconnected")
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection of a virtual machine ended");
                    std::thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Waits until a virtual machine connects; `false` if the server stops.
    fn wait_for_connection(&self) -> bool {
        let mut polled = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(&self.stop, PollFlags::IN),
        ];
        let ready = retry_on_intr(|| poll(&mut polled, None));
        if let Err(error) = ready {
            tracing::error!(%error, "cannot wait for virtual machines; none is served any more");
        }
        ready.is_ok() && !self.stopping.load(Ordering::SeqCst)
    }

    fn serve_connection(&self) -> Result<(), DaemonError> {
        let memory = GuestMemoryAtomic::new(GuestMemoryMmap::new());
        let backend = Arc::new(DiskBackend::new(
            Arc::clone(&self.disk),
            Arc::clone(&self.counters),
            memory.clone(),
        ));
        let served = self.serve_backend(&backend, memory);
        backend.close();
        served
    }

    fn serve_backend(
        &self,
        backend: &Arc<DiskBackend>,
        memory: GuestMemoryAtomic<GuestMemoryMmap>,
    ) -> Result<(), DaemonError> {
        let mut daemon = VhostUserDaemon::new("netram-vhost-vm".to_owned(), Arc::clone(backend), memory)?;
        let socket = self
            .socket
            .as_fd()
            .try_clone_to_owned()
            .map_err(DaemonError::StartDaemon)?;
        daemon.start(&mut Listener::from(UnixListener::from(socket)))?;
        self.counters.add(&VhostStats {
            sessions: 1,
            ..VhostStats::default()
        });
        tracing::info!(address = %self.socket.address(), "a virtual machine has connected");
        *self.connection() = daemon
            .shutdown_handle()
            .map(|handle| (handle, Arc::clone(backend)));
        if self.stopping.load(Ordering::SeqCst) {
            backend.drain();
            daemon.request_shutdown();
        }
        let ended = daemon.wait();
        *self.connection() = None;
        // Ends its threads, after the requests that have begun.
        drop(daemon);
        match ended {
            Err(DaemonError::HandleRequest(ProtocolError::Disconnected | ProtocolError::PartialMessage)) => {
                Ok(())
            }
            other => other,
        }
    }
}
