//! Local control of a served region: status, and accepting losses. Other processes of this machine connect to
//! a Unix socket in the region's directory.
//!
//! ```text
//! asked:     {"ask":"status"}                    one line
//!            {"ask":"accept-loss","node":7}
//! answered:  {"status":{...}}                    one line
//!            {"accepted":{...}}                  what was in doubt
//!            {"refused":"why"}
//! ```
//!
//! The socket belongs to the process that has the region's lock. A socket that exists when the region has
//! just been opened was left by a killed process, and is replaced. Only the owner of the directory can use
//! it.

use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_shared_machine::NodeId;
use serde::{Deserialize, Serialize};

use super::mailbox::DriverMailbox;
use super::report::{ServerReport, StuckReport};
use crate::limit::{REPLY_BYTES_MAX, REQUEST_BYTES_MAX, STATUS_TIMEOUT};

const NAME: &str = "control";
/// Pause after a failed accept, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
enum ControlRequest {
    Status,
    AcceptLoss { node: u64 },
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ControlReply {
    Status(Box<ServerReport>),
    Accepted(StuckReport),
    Refused(String),
}

impl ControlReply {
    /// Encodes the reply, in at most [`REPLY_BYTES_MAX`] bytes.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        let json =
            |told: &ControlReply| serde_json::to_vec(told).expect("every field can be encoded as JSON");
        let bytes = json(&self);
        match self {
            ControlReply::Status(report) if bytes.len() > REPLY_BYTES_MAX => {
                json(&ControlReply::Status(Box::new(report.shortened())))
            }
            _ => bytes,
        }
    }
}

/// Failure of a request.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The socket cannot be used.
    #[error("cannot ask the process that serves {root}: {cause}")]
    Socket {
        /// The region's directory.
        root: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The server refused the request, for this reason.
    #[error("{0}")]
    Refused(String),
    /// The reply is invalid.
    #[error("the process that serves {root} gave no valid answer: {reason}")]
    Answer {
        /// The region's directory.
        root: PathBuf,
        /// The defect.
        reason: String,
    },
}

/// Answers requests until it is dropped.
pub(super) struct RegionControl {
    root: PathBuf,
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl RegionControl {
    /// Listens in the directory of a region that this process has just opened.
    pub(super) fn start(root: &Path, post: Arc<DriverMailbox>) -> io::Result<RegionControl> {
        let directory = File::open(root)?;
        let path = through(&directory);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => (),
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let stopping = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&stopping);
        let answer = move || answer_all(&listener, &asked, &post);
        let thread = std::thread::Builder::new()
            .name("netram-command".to_owned())
            .spawn(answer)?;
        Ok(RegionControl {
            root: root.to_owned(),
            stopping,
            thread: Some(thread),
        })
    }
}

impl Drop for RegionControl {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wakes the accepting thread. The region is still this process's, and so is the socket.
        let woken = File::open(&self.root).and_then(|directory| {
            let woken = UnixStream::connect(through(&directory));
            let _ = fs::remove_file(through(&directory));
            woken
        });
        // If the wake-up failed, no client can reach the thread any more: it ends with the process.
        if let Some(thread) = self.thread.take().filter(|_| woken.is_ok()) {
            // The thread has reported a panic itself.
            let _ = thread.join();
        }
    }
}

/// Path of the socket by way of the open directory, because a socket's address has at most 107 bytes.
fn through(directory: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{NAME}", directory.as_raw_fd()))
}

/// Answers one client at a time: each is bounded in time, and only the region's owner can connect.
fn answer_all(listener: &UnixListener, stopping: &AtomicBool, post: &DriverMailbox) {
    while !stopping.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok(_) if stopping.load(Ordering::SeqCst) => return,
            Ok((stream, _)) => {
                if let Err(error) = answer(stream, post) {
                    tracing::debug!(%error, "a client of the control socket has disconnected");
                }
            }
            Err(error) => {
                tracing::error!(%error, "cannot accept clients of the control socket; trying again");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn answer(mut stream: UnixStream, post: &DriverMailbox) -> io::Result<()> {
    let line = read_line(&mut stream, REQUEST_BYTES_MAX)?;
    let busy = || ControlReply::Refused("the server is busy; try again".to_owned());
    let told = match serde_json::from_slice(&line) {
        Ok(ControlRequest::Status) => match super::ask(post) {
            Some(report) => ControlReply::Status(Box::new(report)),
            None => busy(),
        },
        Ok(ControlRequest::AcceptLoss { node }) => match super::accept_loss(post, NodeId(node)) {
            Some(Ok(stuck)) => ControlReply::Accepted(stuck),
            Some(Err(why)) => ControlReply::Refused(why.to_string()),
            None => busy(),
        },
        Err(error) => ControlReply::Refused(format!(
            "this release of the server does not understand the request: {error}"
        )),
    };
    let mut line = told.into_bytes();
    line.push(b'\n');
    stream.set_write_timeout(Some(STATUS_TIMEOUT))?;
    stream.write_all(&line)
}

/// Asks the process that serves the region in `root` for its status. Returns `None` if no process serves it.
///
/// # Errors
///
/// [`AskError`] if the socket cannot be used, the server refuses, or the reply is invalid.
pub fn ask(root: &Path) -> Result<Option<ServerReport>, AskError> {
    match exchange(root, ControlRequest::Status)? {
        None => Ok(None),
        Some(ControlReply::Status(report)) => Ok(Some(*report)),
        Some(other) => Err(odd(root, format!("it answered {other:?}"))),
    }
}

/// Tells the process that serves the region in `root` to give up a dead node's records that cannot be proven.
/// Returns what was in doubt; `None`: no process serves the region.
///
/// # Errors
///
/// [`AskError`] if the socket cannot be used, the node is not stuck, or the reply is invalid.
pub fn accept_loss(root: &Path, node: NodeId) -> Result<Option<StuckReport>, AskError> {
    match exchange(root, ControlRequest::AcceptLoss { node: node.0 })? {
        None => Ok(None),
        Some(ControlReply::Accepted(stuck)) => Ok(Some(stuck)),
        Some(other) => Err(odd(root, format!("it answered {other:?}"))),
    }
}

fn odd(root: &Path, reason: String) -> AskError {
    let root = root.to_owned();
    AskError::Answer { root, reason }
}

/// Sends one request and reads its reply. Returns `None` if no process serves the region.
fn exchange(root: &Path, ask: ControlRequest) -> Result<Option<ControlReply>, AskError> {
    let socket = |cause| AskError::Socket {
        root: root.to_owned(),
        cause,
    };
    let directory = File::open(root).map_err(socket)?;
    let mut stream = match UnixStream::connect(through(&directory)) {
        Ok(stream) => stream,
        // There is no socket, or the process that made it was killed.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(socket(error)),
    };
    let mut line = serde_json::to_vec(&ask).map_err(|error| socket(error.into()))?;
    line.push(b'\n');
    stream.set_write_timeout(Some(STATUS_TIMEOUT)).map_err(socket)?;
    stream.write_all(&line).map_err(socket)?;
    let line = read_line(&mut stream, REPLY_BYTES_MAX).map_err(|error| odd(root, error.to_string()))?;
    match serde_json::from_slice(&line) {
        Ok(ControlReply::Refused(why)) => Err(AskError::Refused(why)),
        Ok(told) => Ok(Some(told)),
        Err(error) => Err(odd(
            root,
            format!("{error}; the server may be of another release"),
        )),
    }
}

/// Reads a line of at most `bytes_max` bytes, within twice the time that the server may take to answer.
fn read_line(stream: &mut UnixStream, bytes_max: usize) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + 2 * STATUS_TIMEOUT;
    let mut line = Vec::new();
    loop {
        // Each read gets the remaining time, so that single bytes do not prolong it.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; 4096];
        let count = match stream.read(&mut chunk) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if let Some(end) = chunk[..count].iter().position(|byte| *byte == b'\n') {
            line.extend_from_slice(&chunk[..end]);
            return Ok(line);
        }
        line.extend_from_slice(&chunk[..count]);
        if line.len() > bytes_max {
            return Err(io::Error::other("the line is too long"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LOCKS_REPORTED_MAX;
    use crate::server::serve::report::{HolderReport, LockReport, NodeReport};
    use crate::server::table::NODES_MAX;
    use netram_proto::limit::{ADDRESS_BYTES_MAX, MEMBERS_MAX};
    use netram_shared_machine::limit::NODE_NAME_BYTES_MAX;

    /// The largest possible status, with `letter` in every text that peers choose.
    fn largest(letter: &str) -> ServerReport {
        let address = letter.repeat(ADDRESS_BYTES_MAX);
        let holder = HolderReport {
            node: u64::MAX,
            exclusive: false,
        };
        let lock = LockReport {
            lock: u32::MAX,
            waiting: NODES_MAX,
            holders: vec![holder; NODES_MAX],
        };
        let node = NodeReport {
            node: u64::MAX,
            name: letter.repeat(NODE_NAME_BYTES_MAX),
            standing: "stuck".to_owned(),
            lenders: vec![address.clone(); MEMBERS_MAX],
            stuck: Some(StuckReport {
                reason: address.repeat(MEMBERS_MAX),
                lenders: vec![address; MEMBERS_MAX],
                attempts: 7,
                seconds: u64::MAX,
            }),
            ..NodeReport::default()
        };
        ServerReport {
            nodes: vec![node; NODES_MAX],
            waited_for: vec![lock; LOCKS_REPORTED_MAX],
            ..ServerReport::default()
        }
    }

    fn told(report: &ServerReport) -> ServerReport {
        let bytes = ControlReply::Status(Box::new(report.clone())).into_bytes();
        assert!(bytes.len() <= REPLY_BYTES_MAX, "{}", bytes.len());
        match serde_json::from_slice(&bytes).unwrap() {
            ControlReply::Status(told) => *told,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_status_of_usual_names_is_told_whole() {
        let report = largest("n");
        assert_eq!(told(&report), report);
    }

    /// Such a status was refused, here and over links. So no operator could see of which node a loss had to
    /// be accepted.
    #[test]
    fn a_status_with_unprintable_names_is_sent_without_them() {
        let report = largest("\u{1}");
        let told = told(&report);
        assert!(told.shortened);
        assert_eq!(told.nodes.len(), NODES_MAX);
        assert!(told.nodes.iter().all(|node| node.node == u64::MAX
            && node.name.is_empty()
            && node.stuck.as_ref().is_some_and(|stuck| stuck.attempts == 7)));
        assert_eq!(told.waited_for, report.waited_for);
    }
}
