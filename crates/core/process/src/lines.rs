//! Lines from a process of this machine that is not trusted to send any.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

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
///
/// # Errors
///
/// [`LineError`] if the line is cut off, late or too long, or the connection fails.
pub fn read_line(
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

/// Whether this process's user or root is at the other end.
pub fn is_ours(stream: &UnixStream) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(stream);
    peer.is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
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
}
