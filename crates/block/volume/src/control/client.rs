//! Asking the process that has a volume open.

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use super::wire::{LineError, VolumeReply, VolumeRequest, read_line};
use super::{REPLY_BYTES_MAX, REPLY_TIMEOUT, REQUEST_TIMEOUT};
use crate::paths::VolumePaths;
use crate::scrub::TaskProgress;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket cannot be used.
    #[error("asking the process that has {volume} open: {source}")]
    Socket {
        /// The volume.
        volume: String,
        /// What the system said.
        source: io::Error,
    },
    /// No answer, or none that makes sense.
    #[error("the process that has {volume} open gave no answer: {reason}")]
    Answer {
        /// The volume.
        volume: String,
        /// What came instead.
        reason: String,
    },
    /// It would not or could not.
    #[error("{0}")]
    Refused(String),
}

/// Asks the process that has the volume at `place` open, and passes its progress on. `None`: nobody answers
/// there, or he has just closed it.
pub fn ask(
    place: &VolumePaths,
    ask: &VolumeRequest,
    each: &mut dyn FnMut(TaskProgress),
) -> Result<Option<VolumeReply>, ControlError> {
    let volume = || place.root().display().to_string();
    let failed = |source| ControlError::Socket {
        volume: volume(),
        source,
    };
    let mut stream = match connect(place) {
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
        Err(error) => return Err(failed(error)),
    };
    let mut line = serde_json::to_vec(ask).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    stream.set_write_timeout(Some(REQUEST_TIMEOUT)).map_err(failed)?;
    // If he hangs up now, reading finds that.
    let _ = stream.write_all(&line);
    let odd = |reason: String| ControlError::Answer {
        volume: volume(),
        reason,
    };
    let (mut rest, mut answered) = (Vec::new(), false);
    loop {
        let line = match read_line(&mut stream, &mut rest, REPLY_BYTES_MAX, REPLY_TIMEOUT) {
            Ok(line) => line,
            Err(LineError::CutOff | LineError::Io(_)) if !answered => return Ok(None),
            Err(error) => return Err(odd(error.to_string())),
        };
        answered = true;
        match serde_json::from_slice(&line) {
            Ok(VolumeReply::Progress(progress)) => each(progress),
            Ok(VolumeReply::Refused(why)) => return Err(ControlError::Refused(why)),
            Ok(told) => return Ok(Some(told)),
            Err(error) => return Err(odd(format!("{error}; it may be of another release"))),
        }
    }
}

fn connect(place: &VolumePaths) -> io::Result<UnixStream> {
    let (directory, name) = place.control()?;
    UnixStream::connect(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}
