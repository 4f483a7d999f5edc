//! The lines of a conversation.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::report::VolumeReport;
use crate::resync::ResyncOutcome;
use crate::scrub::{ScrubFindings, TaskProgress};

/// What may be asked of a process that has a volume open. A new operation begins here; [`super::server`] does
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum VolumeRequest {
    /// How does it stand?
    Status,
    /// Make it larger.
    Grow {
        /// Bytes from now on.
        bytes: u64,
    },
    /// Read all of it and compare it with its checksums.
    Scrub,
    /// Have the data lender's copy made equal.
    Resync {
        /// Even one that has more than the volume, or another history.
        whole: bool,
    },
}

/// What is answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeReply {
    /// More is to come.
    Progress(TaskProgress),
    /// The status.
    Status(Box<VolumeReport>),
    /// It has grown.
    Grown {
        /// Bytes it had.
        before: u64,
        /// Bytes it has.
        after: u64,
    },
    /// It was read.
    Scrubbed(ScrubFindings),
    /// The data lender's copy is equal.
    Resynced(ResyncOutcome),
    /// Why it was not done.
    Refused(String),
}

/// Why no line came.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The connection ended before the line did.
    #[error("the connection ended in the middle of a line")]
    CutOff,
    /// Not in time.
    #[error("nothing came in time")]
    TimedOut,
    /// Longer than any that makes sense.
    #[error("a line of more than {0} bytes")]
    TooLong(usize),
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Reads a line of at most `bytes_max` bytes, in at most `patience`. What came behind it stays in `rest`.
pub(crate) fn read_line(
    stream: &mut UnixStream,
    rest: &mut Vec<u8>,
    bytes_max: usize,
    patience: Duration,
) -> Result<Vec<u8>, LineError> {
    let deadline = Instant::now() + patience;
    let mut looked = 0;
    loop {
        if let Some(end) = rest[looked..].iter().position(|byte| *byte == b'\n') {
            let behind = rest.split_off(looked + end + 1);
            let mut line = std::mem::replace(rest, behind);
            line.pop();
            return Ok(line);
        }
        looked = rest.len();
        if looked > bytes_max {
            return Err(LineError::TooLong(bytes_max));
        }
        // Each read has what is left of the time: a byte now and then does not prolong it.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LineError::TimedOut);
        }
        stream.set_read_timeout(Some(left))?;
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(0) => return Err(LineError::CutOff),
            Ok(count) => rest.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(LineError::TimedOut),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const SHORT: Duration = Duration::from_millis(20);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn lines_are_taken_one_by_one_however_they_arrive() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(b"one\ntwo\nthr").unwrap();
        let mut rest = Vec::new();
        let mut next = |ours: &mut UnixStream| read_line(ours, &mut rest, 100, LONG);
        assert_eq!(next(&mut ours).unwrap(), b"one");
        assert_eq!(next(&mut ours).unwrap(), b"two");
        theirs.write_all(b"ee\nfo").unwrap();
        assert_eq!(next(&mut ours).unwrap(), b"three");
        drop(theirs);
        assert!(matches!(next(&mut ours), Err(LineError::CutOff)));
    }

    #[test]
    fn endless_and_silent_ones_are_given_up() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let silent = read_line(&mut ours, &mut Vec::new(), 100, SHORT);
        assert!(matches!(silent, Err(LineError::TimedOut)), "{silent:?}");
        theirs.write_all(&[b'x'; 5000]).unwrap();
        let endless = read_line(&mut ours, &mut Vec::new(), 100, LONG);
        assert!(matches!(endless, Err(LineError::TooLong(100))), "{endless:?}");
    }

    #[test]
    fn what_is_asked_reads_as_people_would_write_it() {
        let read = |text: &str| serde_json::from_str::<VolumeRequest>(text);
        assert_eq!(read(r#"{"ask":"status"}"#).unwrap(), VolumeRequest::Status);
        assert_eq!(
            read(r#"{"ask":"grow","bytes":4096}"#).unwrap(),
            VolumeRequest::Grow { bytes: 4096 }
        );
        for wrong in [
            r#"{"ask":"grow"}"#,
            r#"{"ask":"grow","bytes":-1}"#,
            r#"{"ask":"grow","bytes":1,"more":2}"#,
            r#"{"ask":"erase"}"#,
            "[]",
            "",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
