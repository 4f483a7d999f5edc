//! References as text, one on each line, as other tools write them. A study can also be checked against them.
//! Reading is a hundred times slower than the other ways.
//!
//! ```text
//! R 7ffe4530 8          ours: read or write, address, bytes in decimal
//! W 0x7ffe4530 8
//!  L 1ffeffe7e0,8       valgrind's, `--tool=lackey --trace-mem=yes`: load, store, modify; instructions (I) are passed over
//!  S 1ffeffe7e0,8
//!  M 0421c7cc,4
//! ==1234== anything     valgrind's remarks, passed over
//! ```

use std::io::{self, BufRead};

use netram_far_machine::paging::PageAccess;

use crate::workload::ReferenceSink;

/// Longest reference in bytes; no instruction makes a longer one.
const BYTES_MAX: u32 = 1 << 14;

/// A trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Reading the file failed.
    #[error("{0}")]
    Read(#[from] io::Error),
    /// A line is not a reference.
    #[error(
        "line {line}: `{text}` is not a reference; write `R ADDRESS BYTES` or `W ADDRESS BYTES`, or pass the output of valgrind's lackey"
    )]
    Line {
        /// Number of the line, from 1.
        line: u64,
        /// Text of the line.
        text: String,
    },
}

/// Meaning of a line.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    Reference(u64, u32, PageAccess),
    Modify(u64, u32),
    Nothing,
}

/// Passes all references of a trace to `memory`. Returns their number.
///
/// # Errors
///
/// Fails if the trace cannot be read, or a line is no reference.
pub fn read(trace: impl BufRead, memory: &mut impl ReferenceSink) -> Result<u64, TraceError> {
    let mut references = 0;
    for (line, text) in (1..).zip(trace.lines()) {
        let text = text?;
        match parse(&text) {
            Some(Line::Reference(address, bytes, access)) => {
                memory.reference(address, bytes, access);
                references += 1;
            }
            Some(Line::Modify(address, bytes)) => {
                memory.read(address, bytes);
                memory.write(address, bytes);
                references += 2;
            }
            Some(Line::Nothing) => {}
            None => return Err(TraceError::Line { line, text }),
        }
    }
    Ok(references)
}

fn parse(text: &str) -> Option<Line> {
    if text.is_empty() || text.starts_with("==") || text.starts_with("I ") {
        return Some(Line::Nothing);
    }
    let (what, place) = text.trim_start().split_once(' ')?;
    let (address, bytes) = place.trim_start().split_once([' ', ','])?;
    let address = u64::from_str_radix(address.strip_prefix("0x").unwrap_or(address), 16).ok()?;
    let bytes = bytes
        .trim()
        .parse()
        .ok()
        .filter(|bytes| (1..=BYTES_MAX).contains(bytes))?;
    address.checked_add(u64::from(bytes))?;
    match what {
        "R" | "L" => Some(Line::Reference(address, bytes, PageAccess::Read)),
        "W" | "S" => Some(Line::Reference(address, bytes, PageAccess::Write)),
        "M" => Some(Line::Modify(address, bytes)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_lines_are_read() {
        let reference = |access| Some(Line::Reference(0x1f_fe00, 8, access));
        assert_eq!(parse("R 1ffe00 8"), reference(PageAccess::Read));
        assert_eq!(parse("W 0x1ffe00 8"), reference(PageAccess::Write));
        assert_eq!(parse(" L 1ffe00,8"), reference(PageAccess::Read));
        assert_eq!(parse(" S 1ffe00,8"), reference(PageAccess::Write));
        assert_eq!(parse(" M 1ffe00,8"), Some(Line::Modify(0x1f_fe00, 8)));
        assert_eq!(parse("I  04010ad3,3"), Some(Line::Nothing));
        assert_eq!(parse("==77== Lackey"), Some(Line::Nothing));
    }

    #[test]
    fn a_line_that_is_not_a_reference_is_refused() {
        for text in [
            "R",
            "R 10",
            "R x 8",
            "Q 10 8",
            "R 10 0",
            "R 10 99999",
            "R ffffffffffffffff 8",
            "L10,8",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
