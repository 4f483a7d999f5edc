//! A server's process, as its supervisor has it: what it offers, whether it is well, how it ended.
//!
//! Nothing here waits for a server but [`ServerProcess::offer`], which is for one that nobody waits for yet.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::handover::{HandoverMessage, send_message, try_receive_message};
use crate::process::ProcessIdentity;
use crate::serve::{OFFER, REFUSAL, SOCKET_OFFER};
use crate::supervise::AttachError;
use crate::ublk::{self, UblkStart};
use crate::watchdog::{HEARTBEAT_INTERVAL, Watchdog};

/// Bytes of an output line; a server that says more says nothing that is meant for the supervisor.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// What a server offers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DeviceOffer {
    /// A file, to put a loop device on.
    File(PathBuf),
    /// A socket, under the server's number of it, and what the kernel is to be told.
    Socket { number: i32, bytes: u64, flags: u16 },
    /// A device of its own, by its number.
    Device(u32),
}

impl DeviceOffer {
    fn parse(line: &str) -> Option<DeviceOffer> {
        if let Some(path) = line.strip_prefix(OFFER) {
            return Some(DeviceOffer::File(path.into()));
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
    child: Child,
    /// Where it says what stands in `handover.rs`.
    channel: UnixStream,
    output: ChildStdout,
    /// The beginning of a line of it.
    line: Vec<u8>,
    watchdog: Watchdog,
    /// It has said that it goes on with what another has begun.
    serving: bool,
}

impl ServerProcess {
    /// Starts it; after `hung_after` of silence it is killed.
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
        let output = child.stdout.take().expect("its output is a pipe");
        let server = ServerProcess {
            child,
            channel: talk,
            output,
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
        ProcessIdentity::of(self.child.id()).map_err(AttachError::Start)
    }

    pub(crate) fn say(&self, word: &HandoverMessage) -> io::Result<()> {
        send_message(&self.channel, word)
    }

    /// Tells it which ublk device it is to serve.
    pub(crate) fn begin(&self, how: &UblkStart) -> io::Result<()> {
        writeln!(&self.channel, "{how}")
    }

    /// What another server would need to go on with the file, if this kernel lets it.
    /// Waits for its answer for as long as it is well.
    pub(crate) fn take_control(&mut self) -> Option<OwnedFd> {
        self.say(&HandoverMessage::Give).ok()?;
        let mut heard = false;
        loop {
            // First: what it said before it ended is heard after that.
            let ended = self.watch(Instant::now(), heard);
            heard = false;
            while let Ok(Some(word)) = try_receive_message(&self.channel) {
                match word {
                    HandoverMessage::Yes(control) => return Some(control),
                    HandoverMessage::No => {
                        tracing::info!(
                            "this kernel (before Linux 6.9) does not let another server go on, should this one die"
                        );
                        return None;
                    }
                    word => heard |= self.note(&word),
                }
            }
            match ended {
                Ok(None) => wait_for(&self.channel).ok()?,
                // How is seen by whoever looks next.
                _ => return None,
            }
        }
    }

    /// What it offers: waits until it does, for as long as it is well.
    pub(crate) fn offer(&mut self) -> Result<DeviceOffer, AttachError> {
        loop {
            // First: what it said before it ended is read after that.
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

    /// What it has offered by now. Other lines are for whoever reads along.
    pub(crate) fn offered(&mut self) -> Result<Option<DeviceOffer>, AttachError> {
        self.read().map_err(AttachError::Start)?;
        while let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line[..end]);
            if let Some(offer) = DeviceOffer::parse(&line) {
                return Ok(Some(offer));
            }
            if let Some(reason) = line.strip_prefix(REFUSAL) {
                return Err(AttachError::Refused(reason.to_owned()));
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

    /// Hears what it says, and kills it if it has been silent for too long; how it ended, if it has.
    pub(crate) fn look(&mut self, now: Instant) -> io::Result<Option<ExitStatus>> {
        let mut heard = false;
        // What makes no sense is no sign of being well.
        while let Ok(Some(word)) = try_receive_message(&self.channel) {
            heard |= self.note(&word);
        }
        self.watch(now, heard)
    }

    /// Takes note of a word that is no answer; whether it is a sign of being well.
    fn note(&mut self, word: &HandoverMessage) -> bool {
        match word {
            HandoverMessage::Alive => (),
            HandoverMessage::Serving => self.serving = true,
            HandoverMessage::Ending => self.watchdog.end(),
            _ => return false,
        }
        true
    }

    /// Kills it if it has been silent for too long; how it ended, if it has.
    fn watch(&mut self, now: Instant, heard: bool) -> io::Result<Option<ExitStatus>> {
        if self.watchdog.look(now, heard) {
            let (server, silent) = (self.child.id(), self.watchdog.silent());
            tracing::warn!(
                server,
                ?silent,
                "the server has said nothing for so long that it must hang; it is killed"
            );
            self.child.kill()?;
        }
        self.child.try_wait()
    }

    /// Whether it was well a moment ago.
    pub(crate) fn is_well(&self) -> bool {
        self.watchdog.is_fresh()
    }

    /// Whether it has said that it goes on with what another has begun.
    pub(crate) fn serves(&self) -> bool {
        self.serving
    }

    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()
    }

    /// It ends by itself: nobody holds what it offers, and its input ends. Returns the reason, or how it
    /// ended.
    pub(crate) fn give_up(self, error: AttachError) -> AttachError {
        let ServerProcess {
            mut child,
            channel: talk,
            output,
            ..
        } = self;
        drop((talk, output));
        match (error, child.wait()) {
            (AttachError::Ended(_), Ok(status)) => AttachError::Ended(status),
            (error, _) => error,
        }
    }

    /// The socket that the server has under `number`.
    pub(crate) fn socket(&self, number: i32) -> Result<OwnedFd, AttachError> {
        let taken = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())
            .and_then(|server| pidfd_getfd(server.as_fd(), number, PidfdGetfdFlags::empty()));
        taken.map_err(|errno| AttachError::Socket(errno.into()))
    }
}

/// Waits until a server has said something, at most a [`HEARTBEAT_INTERVAL`].
fn wait_for(where_it_speaks: impl AsFd) -> io::Result<()> {
    let mut spoken = [PollFd::new(&where_it_speaks, PollFlags::IN)];
    let beat = Timespec::try_from(HEARTBEAT_INTERVAL).expect("it is a second");
    match poll(&mut spoken, Some(&beat)) {
        Ok(_) | Err(Errno::INTR) => (),
        Err(errno) => return Err(errno.into()),
    }
    if spoken[0].revents().contains(PollFlags::HUP) {
        // It is about to end, or has; until that can be seen this would not wait.
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
    fn an_offer_is_found_among_other_lines_and_a_refusal_and_an_end_are_told() {
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
    fn a_server_that_says_nothing_is_killed() {
        // It was waited for without end.
        let mut server = shell("exec sleep 600", Some(Duration::from_millis(300)));
        let ended = server.offer().unwrap_err();
        assert!(
            matches!(&ended, AttachError::Ended(status) if !status.success()),
            "{ended}"
        );
    }

    #[test]
    fn a_server_that_does_not_say_what_another_would_need_is_killed() {
        // It was waited for without end.
        let mut server = shell("exec sleep 600", Some(Duration::from_millis(300)));
        assert!(server.take_control().is_none());
        let ended = server.child.wait().unwrap();
        assert!(!ended.success(), "{ended}");
    }

    #[test]
    fn a_server_that_is_asked_for_what_another_would_need_may_say_that_it_is_well_first() {
        let mut server = shell("printf wwwww- >&0; exec sleep 600", None);
        assert!(server.take_control().is_none());
        assert!(
            server.child.try_wait().unwrap().is_none(),
            "it was not waited for any longer"
        );
        server.kill().unwrap();
        server.child.wait().unwrap();
    }
}
