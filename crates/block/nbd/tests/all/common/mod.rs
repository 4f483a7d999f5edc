//! A server of a memory device, and a client that sends exactly the given bytes.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_block::BlockDevice;
use netram_nbd::wire::request::NbdRequest;
use netram_nbd::{MemoryDevice, NbdExport, NbdServer, NbdServerConfig, TlsMode};
use netram_transport::NetAddress;

/// Longer than any step takes on a loaded machine; reaching it fails the test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A directory for sockets and files, removed when dropped.
pub(crate) struct SocketDirectory(tempfile::TempDir);

impl SocketDirectory {
    pub(crate) fn new() -> SocketDirectory {
        SocketDirectory(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("nbd")
    }
}

pub(crate) fn config(place: &SocketDirectory, device: Arc<dyn BlockDevice>) -> NbdServerConfig {
    NbdServerConfig {
        listen: vec![NetAddress::Unix(place.socket())],
        exports: vec![NbdExport {
            name: "volume".into(),
            description: "a test's volume".into(),
            device,
            read_only: false,
        }],
        tls: TlsMode::Off,
        insecure: false,
        other_users: false,
    }
}

/// A server of `bytes` of memory on the directory's socket.
pub(crate) fn serve(place: &SocketDirectory, bytes: u64) -> (NbdServer, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new(bytes));
    let server = NbdServer::start(config(place, device.clone())).unwrap();
    (server, device)
}

/// Waits until `done` returns `true`, or fails with `what`.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub(crate) struct Client {
    pub(crate) stream: UnixStream,
}

/// A reply to one request, as a client sees it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
}

impl Client {
    /// Connects and reads the greeting.
    pub(crate) fn connect(socket: &Path) -> Client {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        let mut client = Client { stream };
        assert_eq!(&client.take(18), b"NBDMAGICIHAVEOPT\x00\x03");
        client
    }

    /// Chooses the server's first export, with simple replies.
    pub(crate) fn ready(socket: &Path) -> Client {
        let mut client = Client::connect(socket);
        client.send(&3_u32.to_be_bytes());
        client.send(&option(1, b""));
        client.take(10);
        client
    }

    /// Chooses the server's first export, with structured replies and block status.
    pub(crate) fn structured(socket: &Path) -> Client {
        let mut client = Client::connect(socket);
        client.send(&3_u32.to_be_bytes());
        client.send(&option(8, b""));
        client.take(20);
        client.send(&option(10, b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation"));
        client.take(20 + 19 + 20);
        client.send(&option(1, b""));
        client.take(10);
        client
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub(crate) fn request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        self.send(&request(command, flags, cookie, offset, length));
    }

    pub(crate) fn reply(&mut self) -> Reply {
        let bytes = self.take(16);
        assert_eq!(bytes[..4], [0x67, 0x44, 0x66, 0x98], "a simple reply");
        Reply {
            error: u32::from_be_bytes(bytes[4..8].try_into().unwrap()),
            cookie: u64::from_be_bytes(bytes[8..16].try_into().unwrap()),
        }
    }

    /// Flags, kind, cookie and data of a chunk.
    pub(crate) fn chunk(&mut self) -> (u16, u16, u64, Vec<u8>) {
        let head = self.take(20);
        assert_eq!(head[..4], [0x66, 0x8e, 0x33, 0xef], "a chunk");
        let number = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let cookie = u64::from_be_bytes(head[8..16].try_into().unwrap());
        let length = u32::from_be_bytes(head[16..20].try_into().unwrap());
        (number(4), number(6), cookie, self.take(length as usize))
    }

    /// Whether the server closes without another byte.
    pub(crate) fn is_closed(&mut self) -> bool {
        // A socket closed with unread bytes sends a reset.
        !matches!(self.stream.read(&mut [0]), Ok(1..))
    }
}

pub(crate) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

pub(crate) fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> [u8; 28] {
    NbdRequest {
        flags,
        command,
        cookie,
        offset,
        length: length.into(),
    }
    .encode()
}

/// Bytes that differ from position to position.
pub(crate) fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    (0..length)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

/// Whether a program is installed; prints a note if a test is skipped because it is missing.
pub(crate) fn has(program: &str) -> bool {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(program).is_file()));
    if !found {
        eprintln!("skipped: no `{program}`; scripts/test-deps.sh installs it");
    }
    found
}

/// A Python with libnbd's module. The first one on the path need not be the system's, for which the package
/// is installed; `nbdsh` uses the path's. Prints a note if a test is skipped because it is missing.
pub(crate) fn nbd_python() -> Option<&'static str> {
    let found = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
        let output = Command::new(python).args(["-c", "import nbd"]).output();
        output.is_ok_and(|output| output.status.success())
    });
    if found.is_none() {
        eprintln!("skipped: no Python with libnbd; scripts/test-deps.sh installs it");
    }
    found
}

/// Runs a program to its end, with a timeout; returns its output for assertion messages.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
    let child = Command::new("timeout")
        .arg(PATIENCE.as_secs().to_string())
        .arg(program)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    child.unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Runs a program, which must succeed; returns its standard output.
pub(crate) fn succeed(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let (told, complained) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{told}\n{complained}",
        output.status
    );
    told.into_owned()
}
