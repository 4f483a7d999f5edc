//! Lines of a session.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::report::VolumeReport;
use crate::resync::ResyncOutcome;
use crate::scrub::{ScrubFindings, TaskProgress};

/// Request to a process that has a volume open. A new operation begins here and is served in
/// [`super::server`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum VolumeRequest {
    /// Return the status.
    Status,
    /// Make the volume larger.
    Grow {
        /// New size in bytes.
        bytes: u64,
    },
    /// Compare every block with its checksum.
    Scrub,
    /// Make the data lender's copy equal.
    Resync {
        /// Resync even a copy that has more than the volume, or another history.
        whole: bool,
    },
    /// Let the data lender have the volume's new wrapped key.
    Rekeyed,
}

/// Reply to a [`VolumeRequest`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeReply {
    /// Progress; more replies follow.
    Progress(TaskProgress),
    /// The status.
    Status(Box<VolumeReport>),
    /// The volume has grown.
    Grown {
        /// Former size in bytes.
        before: u64,
        /// New size in bytes.
        after: u64,
    },
    /// Every block was compared.
    Scrubbed(ScrubFindings),
    /// The data lender's copy is equal.
    Resynced(ResyncOutcome),
    /// The data lender gets the new wrapped key in its next session.
    Rekeyed {
        /// Whether the volume has a data lender.
        data_lender: bool,
    },
    /// The request was refused, for this reason.
    Refused(String),
}

/// Failure to read a line.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The connection ended before the line did.
    #[error("the connection ended in the middle of a line")]
    CutOff,
    /// The line was not complete in time.
    #[error("no complete line arrived in time")]
    TimedOut,
    /// The line is longer than the maximum.
    #[error("the line has more than {0} bytes")]
    TooLong(usize),
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Reads a line of at most `bytes_max` bytes within `patience`. Bytes behind it stay in `rest`.
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
        // Each read gets only the remaining time, so single bytes do not extend it.
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
    fn lines_are_read_one_by_one_however_they_arrive() {
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
    fn endless_and_silent_peers_are_given_up() {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let silent = read_line(&mut ours, &mut Vec::new(), 100, SHORT);
        assert!(matches!(silent, Err(LineError::TimedOut)), "{silent:?}");
        theirs.write_all(&[b'x'; 5000]).unwrap();
        let endless = read_line(&mut ours, &mut Vec::new(), 100, LONG);
        assert!(matches!(endless, Err(LineError::TooLong(100))), "{endless:?}");
    }

    #[test]
    fn requests_have_a_readable_json_form_and_unknown_fields_are_refused() {
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
