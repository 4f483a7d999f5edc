//! Lines of `upsd`: cutting them out of what arrives, and their meaning.

use std::fmt;

use crate::limit::LINE_BYTES_MAX;

/// A line of `upsd`, apart from its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpsAnswer {
    /// A command was carried out.
    Done,
    /// The value of a variable.
    Value {
        /// The UPS's name.
        ups: String,
        /// The variable's name.
        name: String,
        /// Its value, without quotes and escapes.
        value: String,
    },
    /// A command was refused.
    Refused(UpsRefusal),
}

/// Why `upsd` refuses a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpsRefusal {
    /// The user, its password, its rights or its address are not those of `upsd.users`.
    AccessDenied,
    /// No UPS of `ups.conf` has this name.
    UnknownUps,
    /// The driver has not reported for too long.
    DataStale,
    /// The driver does not run.
    DriverNotConnected,
    /// The UPS has no such variable.
    NoVariable,
    /// Another error, by its name in NUT's documentation.
    Other(String),
}

/// A line that no `upsd` sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GarbledLine;

impl UpsRefusal {
    fn of(code: &str) -> UpsRefusal {
        match code {
            "ACCESS-DENIED" => UpsRefusal::AccessDenied,
            "UNKNOWN-UPS" => UpsRefusal::UnknownUps,
            "DATA-STALE" => UpsRefusal::DataStale,
            "DRIVER-NOT-CONNECTED" => UpsRefusal::DriverNotConnected,
            "VAR-NOT-SUPPORTED" => UpsRefusal::NoVariable,
            other => UpsRefusal::Other(other.to_owned()),
        }
    }
}

impl fmt::Display for UpsRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            UpsRefusal::AccessDenied => "upsd refuses this user or password (ACCESS-DENIED)",
            UpsRefusal::UnknownUps => "upsd knows no UPS of this name (UNKNOWN-UPS)",
            UpsRefusal::DataStale => "the UPS's driver reports nothing new (DATA-STALE)",
            UpsRefusal::DriverNotConnected => "the UPS's driver does not run (DRIVER-NOT-CONNECTED)",
            UpsRefusal::NoVariable => "the UPS does not report its status (VAR-NOT-SUPPORTED)",
            UpsRefusal::Other(code) => return write!(out, "upsd refuses: {code}"),
        })
    }
}

/// Parses one line.
///
/// # Errors
///
/// The line is no answer to any command of this crate.
pub fn parse(line: &[u8]) -> Result<UpsAnswer, GarbledLine> {
    let line = std::str::from_utf8(line).map_err(|_| GarbledLine)?;
    if line.chars().any(char::is_control) {
        return Err(GarbledLine);
    }
    let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
    match first {
        // Words may follow: `OK Goodbye`, `OK FSD-SET`.
        "OK" => Ok(UpsAnswer::Done),
        "ERR" => {
            let code = rest.split(' ').next().filter(|code| is_code(code));
            code.map(|code| UpsAnswer::Refused(UpsRefusal::of(code)))
                .ok_or(GarbledLine)
        }
        "VAR" => {
            let mut words = rest.splitn(3, ' ');
            let (Some(ups), Some(name), Some(quoted)) = (words.next(), words.next(), words.next()) else {
                return Err(GarbledLine);
            };
            Ok(UpsAnswer::Value {
                ups: ups.to_owned(),
                name: name.to_owned(),
                value: unquote(quoted).ok_or(GarbledLine)?,
            })
        }
        _ => Err(GarbledLine),
    }
}

fn is_code(code: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_uppercase() || char.is_ascii_digit() || char == '-';
    !code.is_empty() && code.len() <= 64 && code.chars().all(is_plain)
}

/// Returns the text between quotes. A backslash takes the next character as it is.
fn unquote(quoted: &str) -> Option<String> {
    let inner = quoted.strip_prefix('"')?;
    let (mut text, mut chars) = (String::with_capacity(inner.len()), inner.chars());
    loop {
        match chars.next()? {
            '"' => break,
            '\\' => text.push(chars.next()?),
            char => text.push(char),
        }
    }
    chars.as_str().is_empty().then_some(text)
}

/// Writes a word between quotes. NUT's parser takes a `#` there for a comment, unless it is escaped.
pub(crate) fn quote(word: &str) -> String {
    let mut quoted = String::with_capacity(2 * word.len() + 2);
    quoted.push('"');
    for char in word.chars() {
        if matches!(char, '\\' | '"' | '#') {
            quoted.push('\\');
        }
        quoted.push(char);
    }
    quoted.push('"');
    quoted
}

/// Bytes of an unfinished line.
#[derive(Debug, Default)]
pub struct LineBuffer {
    bytes: Vec<u8>,
}

impl LineBuffer {
    /// Adds bytes, and appends the lines that are complete to `lines`.
    ///
    /// # Errors
    ///
    /// A line is longer than [`LINE_BYTES_MAX`]. Then the rest is dropped, and so should be the connection.
    pub fn push(&mut self, bytes: &[u8], lines: &mut Vec<Vec<u8>>) -> Result<(), GarbledLine> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.bytes.len() + part.len() > LINE_BYTES_MAX {
                self.bytes.clear();
                return Err(GarbledLine);
            }
            self.bytes.extend_from_slice(part);
            if self.bytes.ends_with(b"\n") {
                self.bytes.pop();
                if self.bytes.ends_with(b"\r") {
                    self.bytes.pop();
                }
                lines.push(std::mem::take(&mut self.bytes));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(ups: &str, name: &str, value: &str) -> Result<UpsAnswer, GarbledLine> {
        Ok(UpsAnswer::Value {
            ups: ups.to_owned(),
            name: name.to_owned(),
            value: value.to_owned(),
        })
    }

    #[test]
    fn answers_of_upsd_2_8_are_understood() {
        assert_eq!(parse(b"OK"), Ok(UpsAnswer::Done));
        assert_eq!(parse(b"OK Goodbye"), Ok(UpsAnswer::Done));
        let status = parse(b"VAR rack ups.status \"OB DISCHRG LB\"");
        assert_eq!(status, value("rack", "ups.status", "OB DISCHRG LB"));
        let escaped = parse(br#"VAR rack ups.mfr "a \"b\" \\ c""#);
        assert_eq!(escaped, value("rack", "ups.mfr", r#"a "b" \ c"#));
        for (line, refusal) in [
            ("ERR ACCESS-DENIED", UpsRefusal::AccessDenied),
            ("ERR UNKNOWN-UPS", UpsRefusal::UnknownUps),
            ("ERR DATA-STALE", UpsRefusal::DataStale),
            ("ERR DRIVER-NOT-CONNECTED", UpsRefusal::DriverNotConnected),
            ("ERR VAR-NOT-SUPPORTED", UpsRefusal::NoVariable),
            (
                "ERR NEW-IN-3 with words",
                UpsRefusal::Other("NEW-IN-3".to_owned()),
            ),
        ] {
            assert_eq!(parse(line.as_bytes()), Ok(UpsAnswer::Refused(refusal)), "{line}");
        }
    }

    #[test]
    fn garbage_is_no_answer() {
        for line in [
            &b""[..],
            b" ",
            b"ok",
            b"OKAY",
            b"ERR",
            b"ERR ",
            b"ERR lower",
            b"VAR",
            b"VAR rack ups.status",
            b"VAR rack ups.status OL",
            b"VAR rack ups.status \"OL",
            b"VAR rack ups.status \"OL\" \"OB\"",
            b"VAR rack ups.status \"OL\\",
            b"HTTP/1.1 400 Bad Request",
            b"VAR rack ups.status \"O\0L\"",
            b"VAR rack ups.status \"\x1b[2J\"",
            b"\xff\xfe",
        ] {
            assert_eq!(
                parse(line),
                Err(GarbledLine),
                "{:?}",
                String::from_utf8_lossy(line)
            );
        }
    }

    #[test]
    fn a_line_without_an_end_takes_bounded_memory_and_is_refused() {
        let (mut buffer, mut lines) = (LineBuffer::default(), Vec::new());
        let mut refused = 0;
        for _ in 0..10 * LINE_BYTES_MAX {
            refused += usize::from(buffer.push(b"x", &mut lines).is_err());
            assert!(buffer.bytes.len() <= LINE_BYTES_MAX);
        }
        assert!(refused > 0 && lines.is_empty());
        let longest = [&vec![b'x'; LINE_BYTES_MAX - 1][..], b"\n"].concat();
        let mut buffer = LineBuffer::default();
        buffer.push(&longest, &mut lines).unwrap();
        assert_eq!(lines.len(), 1);
        assert_eq!(
            buffer.push(&[b'y'; LINE_BYTES_MAX + 1], &mut lines),
            Err(GarbledLine)
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_an_error(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&line);
        }

        #[test]
        fn near_answers_are_an_answer_or_an_error(line in "(VAR|ERR|OK|var)? ?[a-z.]{0,9} ?[a-z.A-Z-]{0,9} ?[\"\\\\ OLB]{0,12}") {
            let _ = parse(line.as_bytes());
        }

        #[test]
        fn every_value_comes_back(word in "[ -~äß]{0,80}") {
            let line = format!("VAR u ups.status {}", quote(&word));
            prop_assert_eq!(parse(line.as_bytes()), value("u", "ups.status", &word));
        }

        #[test]
        fn lines_do_not_depend_on_how_bytes_arrive(
            text in proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'a')], 0..300),
            cuts in proptest::collection::vec(0..300_usize, 0..9),
        ) {
            let (mut whole, mut parts) = (Vec::new(), Vec::new());
            LineBuffer::default().push(&text, &mut whole).unwrap();
            let mut buffer = LineBuffer::default();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| *cut <= text.len()).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            for pair in cuts.windows(2) {
                buffer.push(&text[pair[0]..pair[1]], &mut parts).unwrap();
            }
            prop_assert_eq!(whole, parts);
        }
    }
}
