//! Writing lines to the standard error of a program that is not ours. It may be a pipe whose reader is gone
//! or does not read; that must neither kill the program (SIGPIPE) nor delay it.
//!
//! These functions do not allocate, take no lock and need no thread: the caller may serve the allocator,
//! handle a signal, or be the only thread of a forked child.

use std::fmt::{Arguments, Write as _};
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::{Errno, ReadWriteFlags, pwritev2, write};

/// Maximum bytes of a line; a pipe that is writable takes that many at once (`PIPE_BUF`). A longer line is
/// truncated.
const LINE_BYTES_MAX: usize = 4096;

/// Offset that stands for the file's current position.
const HERE: u64 = u64::MAX;

/// Writes a formatted line and a line feed, waiting at most `within` for the output. Returns `false` if the
/// line was dropped.
pub fn try_write_line(output: impl AsFd, sentence: Arguments<'_>, within: Duration) -> bool {
    let mut line = Line {
        bytes: [0; LINE_BYTES_MAX],
        used: 0,
    };
    // An error means that the line was truncated.
    let _ = line.write_fmt(sentence);
    line.bytes[line.used] = b'\n';
    try_write_bytes(output, &line.bytes[..=line.used], within)
}

/// Writes a whole line, waiting at most `within` for the output. Returns `false` if the line was dropped.
///
/// Takes no lock of the standard library, since another thread may hold it while it waits for a pipe that is
/// not read.
pub fn try_write_bytes(output: impl AsFd, line: &[u8], within: Duration) -> bool {
    let line = &line[..line.len().min(LINE_BYTES_MAX)];
    let output = output.as_fd();
    is_writable(output, Instant::now() + within) && put(output, line).is_ok()
}

/// Whether the output becomes writable before `until`. A pipe without a reader reports an error, and a full
/// one nothing.
fn is_writable(output: BorrowedFd<'_>, until: Instant) -> bool {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec {
            tv_sec: left.as_secs().cast_signed(),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        let mut polled = [PollFd::new(&output, PollFlags::OUT)];
        match poll(&mut polled, Some(&left)) {
            // Signals may arrive at any rate.
            Err(Errno::INTR) if Instant::now() < until => (),
            ready => return matches!(ready, Ok(1)) && polled[0].revents() == PollFlags::OUT,
        }
    }
}

/// Writes without waiting where the system can: another process may have filled the pipe since the check.
fn put(output: BorrowedFd<'_>, line: &[u8]) -> Result<usize, Errno> {
    if fstat(output).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo) {
        match pwritev2(output, &[IoSlice::new(line)], HERE, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => (),
            done => return done,
        }
    }
    write(output, line)
}

/// A line under construction, with room for the line feed.
struct Line {
    bytes: [u8; LINE_BYTES_MAX],
    used: usize,
}

impl std::fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let room = LINE_BYTES_MAX - 1 - self.used;
        let taken = text.len().min(room);
        self.bytes[self.used..self.used + taken].copy_from_slice(&text.as_bytes()[..taken]);
        self.used += taken;
        match taken == text.len() {
            true => Ok(()),
            false => Err(std::fmt::Error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write, pipe};
    use std::thread::sleep;

    use super::*;

    /// Longer than any step takes.
    const LONG: Duration = Duration::from_secs(60);

    fn say(output: impl AsFd, text: &str, within: Duration) -> bool {
        try_write_line(output, format_args!("netram: {text}"), within)
    }

    #[test]
    fn a_line_is_written_to_a_pipe_that_is_read() {
        let (mut reader, writer) = pipe().unwrap();
        assert!(say(&writer, "no lender counts", Duration::ZERO));
        assert!(say(&writer, &"x".repeat(10_000), Duration::ZERO));
        assert!(try_write_bytes(&writer, b"as it is\n", Duration::ZERO));
        drop(writer);
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert!(all.starts_with(b"netram: no lender counts\nnetram: xx"));
        assert!(all.ends_with(b"xx\nas it is\n"));
        assert_eq!(all.len(), 25 + LINE_BYTES_MAX + 9);
    }

    /// A plain write would kill a program that does not handle SIGPIPE in the first case, and wait for ever
    /// in the second.
    #[test]
    fn a_pipe_that_is_not_read_gets_no_line() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        assert!(!say(&writer, "no reader gets this", LONG));
        let (_reader, mut writer) = pipe().unwrap();
        writer.write_all(&vec![b'x'; 64 << 10]).unwrap();
        let since = Instant::now();
        assert!(!say(&writer, "there is no room for this", Duration::ZERO));
        assert!(!say(&writer, "nor for this", Duration::from_millis(20)));
        assert!((Duration::from_millis(20)..LONG).contains(&since.elapsed()));
    }

    /// Another process may fill the pipe between the check and the write.
    #[test]
    fn a_write_does_not_wait_for_a_pipe_that_was_just_filled() {
        let (_reader, mut writer) = pipe().unwrap();
        writer.write_all(&vec![b'x'; 64 << 10]).unwrap();
        let nowait = pwritev2(&writer, &[IoSlice::new(b"x")], HERE, ReadWriteFlags::NOWAIT);
        if nowait != Err(Errno::AGAIN) {
            let said = format!("\nSKIPPED a full pipe: this system waits for it nevertheless: {nowait:?}\n");
            drop(std::io::stderr().write_all(said.as_bytes()));
            return;
        }
        assert_eq!(put(writer.as_fd(), b"no room\n"), Err(Errno::AGAIN));
    }

    #[test]
    fn a_full_pipe_takes_a_line_once_it_is_read() {
        let (mut reader, mut writer) = pipe().unwrap();
        writer.write_all(&vec![b'x'; 64 << 10]).unwrap();
        let read = std::thread::spawn(move || {
            sleep(Duration::from_millis(5));
            let mut all = Vec::new();
            reader.read_to_end(&mut all).map(|_| all)
        });
        assert!(say(&writer, "last words", LONG));
        drop(writer);
        assert!(read.join().unwrap().unwrap().ends_with(b"xnetram: last words\n"));
    }
}
