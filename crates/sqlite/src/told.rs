//! Sentences on the standard error of a program that is not ours. It may be a pipe whose reader has gone, or that nobody reads:
//! that must neither end the program (SIGPIPE) nor hold up a commit.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::write;

/// A pipe that takes anything takes so much at once (`PIPE_BUF`). A longer sentence is cut.
const LINE_BYTES_MAX: usize = 4096;

/// Writes a sentence if that can be done at once. `false`: it was dropped.
///
/// No lock of the standard library's is taken: another thread may wait with it for a pipe that nobody reads.
pub(crate) fn tell(output: impl AsFd, text: &str) -> bool {
    let line = format!("netram: {text}\n");
    let line = &line.as_bytes()[..line.len().min(LINE_BYTES_MAX)];
    // Of a pipe without a reader this says that there is an error, and of a full one nothing.
    let mut polled = [PollFd::new(&output, PollFlags::OUT)];
    let ready = poll(&mut polled, Some(&Timespec::default()));
    let takes = matches!(ready, Ok(1)) && polled[0].revents() == PollFlags::OUT;
    takes && write(&output, line).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write, pipe};

    #[test]
    fn a_sentence_is_written_where_somebody_reads() {
        let (mut reader, writer) = pipe().unwrap();
        assert!(tell(&writer, "no lender counts"));
        assert!(tell(&writer, &"x".repeat(10_000)));
        drop(writer);
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        assert!(all.starts_with(b"netram: no lender counts\nnetram: xx"));
        assert_eq!(all.len(), 25 + LINE_BYTES_MAX);
    }

    /// Written all the same, the one would kill a program that takes SIGPIPE as it comes, and the other would wait for ever.
    #[test]
    fn a_pipe_that_nobody_reads_is_left_alone() {
        let (reader, writer) = pipe().unwrap();
        drop(reader);
        assert!(!tell(&writer, "nobody hears this"));
        let (_reader, mut writer) = pipe().unwrap();
        writer.write_all(&vec![b'x'; 64 << 10]).unwrap();
        assert!(!tell(&writer, "there is no room for this"));
    }
}
