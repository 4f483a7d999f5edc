//! The supervisor's view of a server process: its offers, its health, its end.
//!
//! No function here blocks on a server except [`ServerProcess::offer`], which is for one that has no user
//! yet.

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
use crate::serve::{OFFER, REFUSAL, SOCKET_OFFER};
use crate::server_handle::{ConnectedServer, ServerHandle};
use crate::supervise::AttachError;
use crate::ublk::{self, UblkStart};
use crate::watchdog::{HEARTBEAT_INTERVAL, Watchdog};

/// Maximum bytes of an output line; longer lines are not for the supervisor.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Maximum number of messages that are read at once: one server must not keep the supervisor from its
/// signals.
const MESSAGES_MAX: usize = 64;

/// Offer of a server.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DeviceOffer {
    /// Name of the file to bind a loop device to, in the mount that the server was given.
    File(String),
    /// A socket: the server's descriptor number, and the description for the kernel.
    Socket { number: i32, bytes: u64, flags: u16 },
    /// A ublk device, by its number.
    Device(u32),
}

impl DeviceOffer {
    fn parse(line: &str) -> Option<DeviceOffer> {
        if let Some(name) = line.strip_prefix(OFFER) {
            return Some(DeviceOffer::File(name.into()));
        }
        if let Some(number) = line.strip_prefix(ublk::OFFER) {
            return Some(DeviceOffer::Device(number.parse().ok()?));
        }
        let mut words = line.strip_prefix(SOCKET_OFFER)?.split(' ');
        Some(DeviceOffer::Socket {
            number: words.next()?.parse().ok()?,
            bytes: words.next()?.parse().ok()?,
            flags: words.next()?.parse().ok()?,
        })
    }
}

/// A server that was started.
#[derive(Debug)]
pub(crate) struct ServerProcess {
    handle: ServerHandle,
    /// Socket for the messages in `handover.rs`.
    channel: UnixStream,
    output: File,
    /// Incomplete output of the server.
    line: Vec<u8>,
    watchdog: Watchdog,
    /// Whether it has reported that it continues another server's device.
    serving: bool,
}

impl ServerProcess {
    /// Starts a server, which is killed after a silence of `hung_after`.
    pub(crate) fn start(
        mut command: Command,
        hung_after: Option<Duration>,
    ) -> Result<ServerProcess, AttachError> {
        let (talk, theirs) = UnixStream::pair().map_err(AttachError::Start)?;
        let started = command
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::piped())
            .spawn();
        let mut child = started.map_err(AttachError::Start)?;
        let output = child.stdout.take().expect("the server's output is a pipe");
        ServerProcess::of(ServerHandle::Child(child), talk, output.into(), hung_after)
    }

    /// Takes a server that has connected, and gives it a pipe for its output.
    pub(crate) fn of_connection(
        handle: ConnectedServer,
        channel: UnixStream,
        hung_after: Option<Duration>,
    ) -> Result<ServerProcess, AttachError> {
        let (output, theirs) = io::pipe().map_err(AttachError::Start)?;
        send_message(&channel, &HandoverMessage::Output(theirs.into())).map_err(AttachError::Start)?;
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
    ) -> Result<ServerProcess, AttachError> {
        let server = ServerProcess {
            handle,
            channel,
            output: output.into(),
            line: Vec::new(),
            watchdog: Watchdog::new(hung_after, Instant::now()),
            serving: false,
        };
        match rustix::io::ioctl_fionbio(&server.output, true) {
            Ok(()) => Ok(server),
            Err(errno) => Err(server.give_up(AttachError::Start(errno.into()))),
        }
    }

    pub(crate) fn process(&self) -> Result<ProcessIdentity, AttachError> {
        self.handle.process().map_err(AttachError::Start)
    }

    pub(crate) fn say(&self, word: &HandoverMessage) -> io::Result<()> {
        send_message(&self.channel, word)
    }

    /// Tells the server which ublk device to serve.
    pub(crate) fn begin(&self, how: &UblkStart) -> io::Result<()> {
        writeln!(&self.channel, "{how}")
    }

    /// Requests the descriptor that another server would need to continue the file, if this kernel supports
    /// it. Waits for the answer as long as the server is healthy.
    pub(crate) fn take_control(&mut self) -> Option<OwnedFd> {
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
    pub(crate) fn offer(&mut self) -> Result<DeviceOffer, AttachError> {
        loop {
            // Checked first, because lines written before its end are read after it.
            let ended = self.look(Instant::now()).map_err(AttachError::Start)?;
            if let Some(offer) = self.offered()? {
                return Ok(offer);
            }
            if let Some(status) = ended {
                return Err(AttachError::Ended(status));
            }
            wait_for(&self.output).map_err(AttachError::Start)?;
        }
    }

    /// The offer received by now. Other lines are ignored.
    pub(crate) fn offered(&mut self) -> Result<Option<DeviceOffer>, AttachError> {
        self.read().map_err(AttachError::Start)?;
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            if let Some(offer) = DeviceOffer::parse(&line) {
                return Ok(Some(offer));
            }
            if let Some(reason) = line.strip_prefix(REFUSAL) {
                // It reaches a terminal, and the server may be another user's.
                let reason = reason.replace(char::is_control, " ");
                return Err(AttachError::Refused(reason));
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
    pub(crate) fn look(&mut self, now: Instant) -> io::Result<Option<ExitStatus>> {
        let heard = self.listen();
        self.watch(now, heard)
    }

    /// Reads messages that have arrived. Returns whether one is a sign of health; an invalid one is not.
    fn listen(&mut self) -> bool {
        let mut heard = false;
        for _ in 0..MESSAGES_MAX {
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
            tracing::warn!(
                server,
                ?silent,
                "the server was silent for too long and seems to hang; killing it"
            );
            self.handle.kill()?;
        }
        if self.handle.has_ended()? {
            // A server that is not a child says by its last message how it ended.
            self.listen();
        }
        self.handle.status()
    }

    /// Whether the server was healthy a moment ago.
    pub(crate) fn is_well(&self) -> bool {
        self.watchdog.is_fresh()
    }

    /// Whether the server has reported that it continues another's device.
    pub(crate) fn serves(&self) -> bool {
        self.serving
    }

    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.handle.kill()
    }

    /// Waits until the server ends by itself, as its input is closed and its offer was not accepted. Returns
    /// `error`, or its exit status.
    pub(crate) fn give_up(self, error: AttachError) -> AttachError {
        let ServerProcess {
            handle,
            channel: talk,
            output,
            ..
        } = self;
        drop((talk, output));
        match (error, handle.wait()) {
            (AttachError::Ended(_), Ok(Some(status))) => AttachError::Ended(status),
            (error, _) => error,
        }
    }

    /// A duplicate of the server's socket with descriptor `number`.
    pub(crate) fn socket(&self, number: i32) -> Result<OwnedFd, AttachError> {
        self.handle.descriptor(number).map_err(AttachError::Socket)
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

    fn shell(script: &str, hung_after: Option<Duration>) -> ServerProcess {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        children::start(|| ServerProcess::start(command, hung_after)).unwrap()
    }

    #[test]
    fn an_offer_is_found_among_other_lines_and_refusals_and_exits_are_reported() {
        let mut server = shell("echo hello; printf 'socket 7 '; sleep 0.1; echo '4096 5'", None);
        assert_eq!(
            server.offer().unwrap(),
            DeviceOffer::Socket {
                number: 7,
                bytes: 4096,
                flags: 5
            }
        );
        let mut server = shell("echo refused no such volume; exit 1", None);
        let refused = server.offer().unwrap_err();
        assert!(
            matches!(&refused, AttachError::Refused(why) if why == "no such volume"),
            "{refused}"
        );
        let mut server = shell("echo file; exit 3", None);
        let ended = server.offer().unwrap_err();
        assert!(
            matches!(&ended, AttachError::Ended(status) if status.code() == Some(3)),
            "{ended}"
        );
    }

    #[test]
    fn a_silent_server_is_killed() {
        // The supervisor had waited for ever.
        let mut server = shell("exec sleep 600", Some(Duration::from_millis(300)));
        let ended = server.offer().unwrap_err();
        assert!(
            matches!(&ended, AttachError::Ended(status) if !status.success()),
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
