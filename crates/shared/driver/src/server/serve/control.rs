//! The status of a region that is served, and the word of whoever looks after it: for other processes of this
//! machine, through a Unix socket in the region's directory.
//!
//! ```text
//! asked:     {"ask":"status"}                    one line
//!            {"ask":"accept-loss","node":7}
//! answered:  {"status":{...}}                    one line
//!            {"accepted":{...}}                  what was in doubt
//!            {"refused":"why"}
//! ```
//!
//! The socket belongs to whoever has the region's lock: one that is there when the region has just been
//! opened is a killed process's, and is replaced. The directory is its owner's only, and so is the socket.

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
/// After a failed accept, as when descriptors have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
enum ControlRequest {
    Status,
    AcceptLoss { node: u64 },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ControlReply {
    Status(Box<ServerReport>),
    Accepted(StuckReport),
    Refused(String),
}

impl ControlReply {
    /// As it travels: of at most [`REPLY_BYTES_MAX`].
    pub(super) fn into_bytes(self) -> Vec<u8> {
        let json = |told: &ControlReply| serde_json::to_vec(told).expect("it has nothing that JSON has not");
        let bytes = json(&self);
        match self {
            ControlReply::Status(report) if bytes.len() > REPLY_BYTES_MAX => {
                json(&ControlReply::Status(Box::new(report.shortened())))
            }
            _ => bytes,
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// The socket cannot be used.
    #[error("asking the process that serves {root}: {cause}")]
    Socket {
        /// The region's directory.
        root: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// It says why not.
    #[error("{0}")]
    Refused(String),
    /// No answer that makes sense.
    #[error("the process that serves {root} gave no answer: {reason}")]
    Answer {
        /// The region's directory.
        root: PathBuf,
        /// What came instead.
        reason: String,
    },
}

/// Answers until it is dropped.
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
            .name("netram-asked".to_owned())
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
        // Ends the accept; the region is still this process's, and so is the socket.
        let woken = File::open(&self.root).and_then(|directory| {
            let woken = UnixStream::connect(through(&directory));
            let _ = fs::remove_file(through(&directory));
            woken
        });
        // Otherwise nobody can reach the thread any more: it ends with the process.
        if let Some(thread) = self.thread.take().filter(|_| woken.is_ok()) {
            // A panic of the thread has been reported by itself.
            let _ = thread.join();
        }
    }
}

/// The path that leads there however long the directory's own is: a socket's address has 107 bytes.
fn through(directory: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{NAME}", directory.as_raw_fd()))
}

/// One at a time: each is bounded in time, and whoever may ask is the region's owner.
fn answer_all(listener: &UnixListener, stopping: &AtomicBool, post: &DriverMailbox) {
    while !stopping.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok(_) if stopping.load(Ordering::SeqCst) => return,
            Ok((stream, _)) => {
                if let Err(error) = answer(stream, post) {
                    tracing::debug!(%error, "whoever asked for the status has gone");
                }
            }
            Err(error) => {
                tracing::error!(%error, "whoever asks for the status cannot be let in; trying again");
                std::thread::sleep(ACCEPT_PAUSE);
            }
        }
    }
}

fn answer(mut stream: UnixStream, post: &DriverMailbox) -> io::Result<()> {
    let line = read_line(&mut stream, REQUEST_BYTES_MAX)?;
    let busy = || ControlReply::Refused("the server is busy; ask again".to_owned());
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
        Err(error) => {
            ControlReply::Refused(format!("this release does not understand what is asked: {error}"))
        }
    };
    let mut line = told.into_bytes();
    line.push(b'\n');
    stream.set_write_timeout(Some(STATUS_TIMEOUT))?;
    stream.write_all(&line)
}

/// Asks whoever serves the region in `root` how it stands. `None`: nobody does.
pub fn ask(root: &Path) -> Result<Option<ServerReport>, AskError> {
    match exchange(root, ControlRequest::Status)? {
        None => Ok(None),
        Some(ControlReply::Status(report)) => Ok(Some(*report)),
        Some(other) => Err(odd(root, format!("it answered {other:?}"))),
    }
}

/// Has whoever serves the region in `root` give up what cannot be proven of a dead node. Returns what was in
/// doubt; `None`: nobody serves it.
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

/// One question, one answer. `None`: nobody is there.
fn exchange(root: &Path, ask: ControlRequest) -> Result<Option<ControlReply>, AskError> {
    let socket = |cause| AskError::Socket {
        root: root.to_owned(),
        cause,
    };
    let directory = File::open(root).map_err(socket)?;
    let mut stream = match UnixStream::connect(through(&directory)) {
        Ok(stream) => stream,
        // No socket, or one of a process that was killed.
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
        Err(error) => Err(odd(root, format!("{error}; it may be of another release"))),
    }
}

/// Reads a line of at most `bytes_max`, in twice the time that the other side may take to think.
fn read_line(stream: &mut UnixStream, bytes_max: usize) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + 2 * STATUS_TIMEOUT;
    let mut line = Vec::new();
    loop {
        // Each read has what is left of the time: a byte now and then does not prolong it.
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
            return Err(io::Error::other("a line that is too long"));
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

    /// As large as a region's status can be, with `letter` where peers choose.
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

    /// It was refused, here and over links: nobody could see any more of which node a loss is to be accepted.
    #[test]
    fn names_that_nobody_can_tell_keep_nobody_from_the_rest() {
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
