//! The supervisor's view of a server process: its offers, its health, its end.
//!
//! No function here blocks on a server except [`ServerProcess::offer`], which is for one that has no user
//! yet.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::handover::{HandoverMessage, send_message, try_receive_message};
use crate::process::ProcessIdentity;
use crate::server_handle::{ConnectedServer, ServerHandle};
use crate::server_part::REFUSAL;
use crate::thread_states::thread_states;
use crate::watchdog::{HEARTBEAT_INTERVAL, Watchdog};

/// Maximum bytes of an output line; longer lines are not for the supervisor.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of messages that are read at once: one server must not keep the supervisor from its
/// signals.
const MESSAGES_MAX: usize = 64;
/// Maximum number of messages that are read once the server has ended. A socket holds fewer, so none of them
/// is left.
const LAST_MESSAGES_MAX: usize = 1 << 16;

/// Failure of a server process.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The server could not be started or watched.
    #[error("cannot start the server process: {0}")]
    Start(io::Error),
    /// The server refused, with this reason.
    #[error("{0}")]
    Refused(String),
    /// The server ended without a message.
    #[error("the server process ended before it served anything ({0}); see its log")]
    Ended(ExitStatus),
}

/// A server that was started.
#[derive(Debug)]
pub struct ServerProcess {
    handle: ServerHandle,
    /// Socket for the messages in `handover.rs`.
    channel: UnixStream,
    output: File,
    /// Incomplete output of the server.
    line: Vec<u8>,
    watchdog: Watchdog,
    /// Whether it has reported that it continues another server's device.
    serving: bool,
    /// Whether it has reported that no other may continue.
    failed: bool,
}

impl ServerProcess {
    /// Starts a server, which is killed after a silence of `hung_after`.
    ///
    /// # Errors
    ///
    /// The system cannot start it.
    pub fn start(mut command: Command, hung_after: Option<Duration>) -> Result<ServerProcess, ServerError> {
        let (talk, theirs) = UnixStream::pair().map_err(ServerError::Start)?;
        let started = command
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .spawn();
        let mut child = started.map_err(ServerError::Start)?;
        let output = child.stdout.take().expect("the server's output is a pipe");
        ServerProcess::of(ServerHandle::Child(child), talk, output.into(), hung_after)
    }

    /// Takes a server that has connected, and gives it a pipe for its output.
    pub(crate) fn of_connection(
        handle: ConnectedServer,
        channel: UnixStream,
        hung_after: Option<Duration>,
    ) -> Result<ServerProcess, ServerError> {
        let (output, theirs) = io::pipe().map_err(ServerError::Start)?;
        send_message(&channel, &HandoverMessage::Output(theirs.into())).map_err(ServerError::Start)?;
        ServerProcess::of(
            ServerHandle::Connected(handle),
            channel,
            output.into(),
            hung_after,
        )
    }

    fn of(
        handle: ServerHandle,
        channel: UnixStream,
        output: OwnedFd,
        hung_after: Option<Duration>,
    ) -> Result<ServerProcess, ServerError> {
        let server = ServerProcess {
            handle,
            channel,
            output: output.into(),
            line: Vec::new(),
            watchdog: Watchdog::new(hung_after, Instant::now()),
            serving: false,
            failed: false,
        };
        match rustix::io::ioctl_fionbio(&server.output, true) {
            Ok(()) => Ok(server),
            Err(errno) => {
                server.give_up();
                Err(ServerError::Start(errno.into()))
            }
        }
    }

    /// The server's process.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn process(&self) -> Result<ProcessIdentity, ServerError> {
        self.handle.process().map_err(ServerError::Start)
    }

    /// Sends the server a message.
    ///
    /// # Errors
    ///
    /// The server is gone.
    pub fn say(&self, word: &HandoverMessage) -> io::Result<()> {
        send_message(&self.channel, word)
    }

    /// Sends the server a line, as its first message.
    ///
    /// # Errors
    ///
    /// The server is gone.
    pub fn say_line(&self, line: &dyn fmt::Display) -> io::Result<()> {
        writeln!(&self.channel, "{line}")
    }

    /// Requests the descriptor that another server would need to continue the file, if this kernel supports
    /// it. Waits for the answer as long as the server is healthy.
    pub fn take_control(&mut self) -> Option<OwnedFd> {
        self.say(&HandoverMessage::Give).ok()?;
        let mut heard = false;
        loop {
            // Checked first, because messages sent before its end arrive after it.
            let ended = self.watch(Instant::now(), heard);
            heard = false;
            while let Ok(Some(word)) = try_receive_message(&self.channel) {
                match word {
                    HandoverMessage::Yes(control) => return Some(control),
                    HandoverMessage::No => {
                        tracing::info!(
                            "this kernel (before Linux 6.9) does not allow another server to continue if this one dies"
                        );
                        return None;
                    }
                    word => heard |= self.note(&word),
                }
            }
            match ended {
                Ok(None) => wait_for(&self.channel).ok()?,
                // The reason for the end is reported by the next look.
                _ => return None,
            }
        }
    }

    /// Waits for the server's offer, as long as it is healthy.
    ///
    /// # Errors
    ///
    /// The server refused, or ended.
    pub fn offer<T>(&mut self, parse: fn(&str) -> Option<T>) -> Result<T, ServerError> {
        loop {
            // Checked first, because lines written before its end are read after it.
            let ended = self.look(Instant::now()).map_err(ServerError::Start)?;
            if let Some(offer) = self.offered(parse)? {
                return Ok(offer);
            }
            if let Some(status) = ended {
                return Err(ServerError::Ended(status));
            }
            wait_for(&self.output).map_err(ServerError::Start)?;
        }
    }

    /// The offer received by now: the first line that `parse` accepts. Other lines are ignored.
    ///
    /// # Errors
    ///
    /// The server refused.
    pub fn offered<T>(&mut self, parse: fn(&str) -> Option<T>) -> Result<Option<T>, ServerError> {
        self.read().map_err(ServerError::Start)?;
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            if let Some(offer) = parse(&line) {
                return Ok(Some(offer));
            }
            if let Some(reason) = line.strip_prefix(REFUSAL) {
                // It reaches a terminal, and the server may be another user's.
                let reason = reason.replace(char::is_control, " ");
                return Err(ServerError::Refused(reason));
            }
        }
        Ok(None)
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        while self.line.len() < LINE_BYTES_MAX {
            match self.output.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => self.line.extend_from_slice(&buffer[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads the server's messages, and kills it after too long a silence. Returns its exit status if it has
    /// ended.
    ///
    /// # Errors
    ///
    /// The server cannot be watched or killed.
    pub fn look(&mut self, now: Instant) -> io::Result<Option<ExitStatus>> {
        let heard = self.listen(MESSAGES_MAX);
        self.watch(now, heard)
    }

    /// Reads messages that have arrived. Returns whether one is a sign of health; an invalid one is not.
    fn listen(&mut self, messages_max: usize) -> bool {
        let mut heard = false;
        for _ in 0..messages_max {
            match try_receive_message(&self.channel) {
                Ok(Some(word)) => heard |= self.note(&word),
                _ => break,
            }
        }
        heard
    }

    /// Handles a message that is no answer. Returns whether it is a sign of health.
    fn note(&mut self, word: &HandoverMessage) -> bool {
        match word {
            HandoverMessage::Alive => (),
            HandoverMessage::Serving => self.serving = true,
            HandoverMessage::Failed => self.failed = true,
            HandoverMessage::Ending => self.watchdog.end(),
            HandoverMessage::Closed => self.handle.note_closed(),
            _ => return false,
        }
        true
    }

    /// Kills the server after too long a silence. Returns its exit status if it has ended.
    fn watch(&mut self, now: Instant, heard: bool) -> io::Result<Option<ExitStatus>> {
        if self.watchdog.look(now, heard) {
            let (server, silent) = (self.handle.id(), self.watchdog.silent());
            let threads = thread_states(server);
            tracing::warn!(
                server,
                ?silent,
                threads,
                "the server was silent for too long and seems to hang; killing it"
            );
            self.handle.kill()?;
        }
        if self.handle.has_ended()? {
            // The last messages say how a server ended that is no child, and whether another may continue.
            self.listen(LAST_MESSAGES_MAX);
        }
        self.handle.status()
    }

    /// Whether the server was healthy a moment ago.
    pub fn is_well(&self) -> bool {
        self.watchdog.is_fresh()
    }

    /// Whether the server has reported that it continues another's device.
    pub fn serves(&self) -> bool {
        self.serving
    }

    /// Whether the server has reported that no other may continue. Once its end is known, this is certain.
    pub fn has_failed(&self) -> bool {
        self.failed
    }

    /// Kills the server.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub fn kill(&mut self) -> io::Result<()> {
        self.handle.kill()
    }

    /// Waits until the server ends by itself, as its input is closed and its offer was not accepted. Returns
    /// its exit status, if it is a child of this process.
    pub fn give_up(self) -> Option<ExitStatus> {
        let ServerProcess {
            handle,
            channel: talk,
            output,
            ..
        } = self;
        drop((talk, output));
        handle.wait().ok().flatten()
    }

    /// A duplicate of the server's descriptor `number`.
    ///
    /// # Errors
    ///
    /// The server is gone, or is no child of this process.
    pub fn descriptor(&self, number: i32) -> io::Result<OwnedFd> {
        self.handle.descriptor(number)
    }
}

/// Waits until a server has sent something, at most a [`HEARTBEAT_INTERVAL`].
fn wait_for(where_it_speaks: impl AsFd) -> io::Result<()> {
    let mut spoken = [PollFd::new(&where_it_speaks, PollFlags::IN)];
    let beat = Timespec::try_from(HEARTBEAT_INTERVAL).expect("the interval is one second");
    match poll(&mut spoken, Some(&beat)) {
        Ok(_) | Err(Errno::INTR) => (),
        Err(errno) => return Err(errno.into()),
    }
    if spoken[0].revents().contains(PollFlags::HUP) {
        // The server is about to end or has ended; until that is visible, poll would not block.
        std::thread::sleep(HEARTBEAT_INTERVAL / 100);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::children;

    fn file(line: &str) -> Option<String> {
        line.strip_prefix("file ").map(str::to_owned)
    }

    fn shell(script: &str, hung_after: Option<Duration>) -> ServerProcess {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        children::start(|| ServerProcess::start(command, hung_after)).unwrap()
    }

    #[test]
    fn an_offer_is_found_among_other_lines_and_refusals_and_exits_are_reported() {
        let mut server = shell("echo hello; printf 'file '; sleep 0.1; echo 'b 7'", None);
        assert_eq!(server.offer(file).unwrap(), "b 7");
        let mut server = shell("echo refused no such volume; exit 1", None);
        let refused = server.offer(file).unwrap_err();
        assert!(
            matches!(&refused, ServerError::Refused(why) if why == "no such volume"),
            "{refused}"
        );
        let mut server = shell("echo file; exit 3", None);
        let ended = server.offer(file).unwrap_err();
        assert!(
            matches!(&ended, ServerError::Ended(status) if status.code() == Some(3)),
            "{ended}"
        );
    }

    #[test]
    fn a_server_that_ended_is_known_to_have_failed_however_much_it_said_before() {
        // More than is read in one look.
        let mut server = shell(
            "head -c 300 /dev/zero | tr '\\0' w >&0; printf f >&0; kill -9 $$",
            None,
        );
        let ended = loop {
            if let Some(ended) = server.look(Instant::now()).unwrap() {
                break ended;
            }
            std::thread::yield_now();
        };
        assert!(!ended.success() && server.has_failed());
        let mut server = shell("exit 1", None);
        while server.look(Instant::now()).unwrap().is_none() {
            std::thread::yield_now();
        }
        assert!(!server.has_failed());
    }

    #[test]
    fn a_silent_server_is_killed() {
        // The supervisor had waited for ever.
        let mut server = shell("exec sleep 600", Some(Duration::from_millis(300)));
        let ended = server.offer(file).unwrap_err();
        assert!(
            matches!(&ended, ServerError::Ended(status) if !status.success()),
            "{ended}"
        );
    }

    #[test]
    fn a_server_that_does_not_send_the_descriptor_is_killed() {
        // The supervisor had waited for ever.
        let mut server = shell("exec sleep 600", Some(Duration::from_millis(300)));
        assert!(server.take_control().is_none());
        let ended = server.handle.wait().unwrap().unwrap();
        assert!(!ended.success(), "{ended}");
    }

    #[test]
    fn a_server_asked_for_the_descriptor_may_send_heartbeats_first() {
        let mut server = shell("printf wwwww- >&0; exec sleep 600", None);
        assert!(server.take_control().is_none());
        assert!(
            !server.handle.has_ended().unwrap(),
            "the supervisor must stop waiting after the answer"
        );
        server.kill().unwrap();
        server.handle.wait().unwrap();
    }
}
