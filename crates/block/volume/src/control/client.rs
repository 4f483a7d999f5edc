//! Client of the control socket: sends a request to the process that has a volume open.

use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use netram_process::lines::{LineError, read_line};

use super::wire::{VolumeReply, VolumeRequest};
use super::{REPLY_BYTES_MAX, REPLY_TIMEOUT, REQUEST_TIMEOUT};
use crate::paths::VolumePaths;
use crate::scrub::TaskProgress;

/// Failure to get a reply.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The socket cannot be used.
    #[error("cannot talk to the process that has {volume} open: {source}")]
    Socket {
        /// Path of the volume.
        volume: String,
        /// Error from the operating system.
        source: io::Error,
    },
    /// No valid reply arrived.
    #[error("the process that has {volume} open sent no valid answer: {reason}")]
    Answer {
        /// Path of the volume.
        volume: String,
        /// Defect of the reply.
        reason: String,
    },
    /// The process refused or failed the request.
    #[error("{0}")]
    Refused(String),
}

/// Sends a request to the process that has the volume at `place` open, and passes its progress to `each`.
/// `None`: no process answers, or it has just closed the volume.
///
/// # Errors
///
/// [`ControlError`] if the socket fails, the reply is invalid, or the process refused.
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
        // No socket, or one of a killed process.
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
    // If the process has hung up, the read below finds out.
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
            Err(error) => return Err(odd(format!("{error}; that process may run another release"))),
        }
    }
}

fn connect(place: &VolumePaths) -> io::Result<UnixStream> {
    let (directory, name) = place.control()?;
    UnixStream::connect(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}
