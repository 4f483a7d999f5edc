//! A note for people about the process that claimed a journal: it tells the operator of a fenced directory
//! which command fenced it, and when. It influences no decision.
//!
//! It follows the claiming epoch's view, in the view file and at a data lender, so that both become durable
//! together. Readers of earlier releases ignore it.
//!
//! ```text
//!  0  time u64        wall clock, seconds
//!  8  bytes u8 | text
//! ```

use alloc::string::String;
use alloc::vec::Vec;

use crate::limit::NOTE_BYTES_MAX;
use crate::wire::ByteReader;

/// The command that claimed a journal, and the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimNote {
    /// Wall-clock time of the claiming machine, in seconds.
    pub time: u64,
    /// The command and its machine.
    by: String,
}

impl ClaimNote {
    /// A note that `by` claimed at `time`. The text is truncated to [`NOTE_BYTES_MAX`] bytes.
    pub fn new(time: u64, by: &str) -> ClaimNote {
        let mut end = by.len().min(NOTE_BYTES_MAX);
        while !by.is_char_boundary(end) {
            end -= 1;
        }
        let by = by[..end].chars().filter(|c| !c.is_control()).collect();
        ClaimNote { time, by }
    }

    /// The command and its machine.
    pub fn by(&self) -> &str {
        &self.by
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.time.to_le_bytes());
        bytes.push(self.by.len() as u8);
        bytes.extend_from_slice(self.by.as_bytes());
    }

    /// Reads the note that follows a view; `None` if there is none, which is not an error.
    pub(super) fn decode(cursor: &mut ByteReader<'_>) -> Option<ClaimNote> {
        let time = cursor.u64().ok()?;
        let length = cursor.u8().ok()?;
        let text = cursor.bytes(usize::from(length)).ok()?;
        Some(ClaimNote::new(time, core::str::from_utf8(text).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_survives_encoding_and_a_truncated_one_is_ignored() {
        let long = "ä".repeat(NOTE_BYTES_MAX);
        for by in [
            "netram volume restore on db7 (process 4211)",
            "",
            &long,
            "two\nlines",
        ] {
            let note = ClaimNote::new(1_700_000_000, by);
            assert!(note.by().len() <= NOTE_BYTES_MAX && !note.by().contains('\n'));
            let mut bytes = Vec::new();
            note.encode(&mut bytes);
            assert_eq!(ClaimNote::decode(&mut ByteReader::new(&bytes)), Some(note));
            for cut in 0..bytes.len() {
                assert_eq!(ClaimNote::decode(&mut ByteReader::new(&bytes[..cut])), None);
            }
        }
    }
}
