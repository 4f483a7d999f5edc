//! Who claimed a journal, for people: the operator whose directory is fenced is told who did it, and when. It
//! decides nothing.
//!
//! It stands behind the view of the reign that claimed, in the view file and in what a data lender keeps, so
//! that both are durable at once. Readers of earlier releases pass over it.
//!
//! ```text
//!  0  time u64        seconds of the wall clock
//!  8  bytes u8 | text
//! ```

use alloc::string::String;
use alloc::vec::Vec;

use crate::limit::NOTE_BYTES_MAX;
use crate::wire::ByteReader;

/// Who claimed, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimNote {
    /// Seconds of the wall clock, there.
    pub time: u64,
    /// Which command on which machine.
    by: String,
}

impl ClaimNote {
    /// Says that `by` claimed at `time`. What is longer than [`NOTE_BYTES_MAX`] is cut off.
    pub fn new(time: u64, by: &str) -> ClaimNote {
        let mut end = by.len().min(NOTE_BYTES_MAX);
        while !by.is_char_boundary(end) {
            end -= 1;
        }
        let by = by[..end].chars().filter(|c| !c.is_control()).collect();
        ClaimNote { time, by }
    }

    /// Which command on which machine.
    pub fn by(&self) -> &str {
        &self.by
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.time.to_le_bytes());
        bytes.push(self.by.len() as u8);
        bytes.extend_from_slice(self.by.as_bytes());
    }

    /// What stands behind a view. A view without one is as good.
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
    fn a_note_comes_back_and_what_is_cut_off_is_none() {
        let long = "ä".repeat(NOTE_BYTES_MAX);
        for by in [
            "netram disk restore on db7 (process 4211)",
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
