//! Requests become commands: every offset, length and flag is judged here, once, before anything is allocated or
//! touched. What a [`Command`] says is inside the export and allowed.

use netram_block::SECTOR_BYTES;

use crate::limit::{PIECE_BYTES, REQUEST_BYTES_MAX};
use crate::wire::reply::ErrorCode;
use crate::wire::request::{Request, command, flag};

/// What client and server agreed on in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// Which export, as an index.
    pub export: usize,
    /// Replies come in chunks.
    pub structured: bool,
    /// Headers are extended; `structured` then too.
    pub extended: bool,
    /// `BLOCK_STATUS` was agreed on, with `base:allocation`.
    pub block_status: bool,
    /// Nothing may be changed.
    pub read_only: bool,
}

/// Whole sectors inside the export, at least one. Only [`Span::check`] makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    offset: u64,
    length: u64,
}

impl Span {
    /// `None`: empty, not whole sectors, or not all inside `bytes`.
    pub fn check(offset: u64, length: u64, bytes: u64) -> Option<Span> {
        let whole = offset.is_multiple_of(SECTOR_BYTES) && length.is_multiple_of(SECTOR_BYTES);
        let end = offset.checked_add(length)?;
        (whole && length > 0 && end <= bytes).then_some(Span { offset, length })
    }

    /// First byte.
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// Bytes, a multiple of 512 and not zero.
    pub fn length(self) -> u64 {
        self.length
    }
}

/// A request that may be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// At most [`REQUEST_BYTES_MAX`].
    Read {
        /// What to read.
        span: Span,
        /// In one chunk; the span is then at most [`PIECE_BYTES`].
        unbroken: bool,
    },
    /// At most [`REQUEST_BYTES_MAX`]; the payload follows the request.
    Write {
        /// Where the payload belongs.
        span: Span,
        /// Durable before it is answered.
        fua: bool,
    },
    /// `WRITE_ZEROES`.
    Zero {
        /// What reads as zeros afterwards.
        span: Span,
        /// The zeros must take their space.
        stored: bool,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Forget.
    Trim {
        /// What.
        span: Span,
        /// Durable before it is answered.
        fua: bool,
    },
    /// Make durable what was answered on any connection.
    Flush,
    /// Prepare for reads: answered, and nothing done, since every image has the page cache before it.
    Cache,
    /// Tell data from holes.
    Status {
        /// Where.
        span: Span,
        /// Only the first run.
        one: bool,
    },
    /// The client leaves.
    Disconnect,
}

/// Judges a request for an export of `bytes` bytes. After an error a write's payload still follows on the wire.
pub fn judge(request: &Request, session: &Session, bytes: u64) -> Result<Command, ErrorCode> {
    let &Request {
        offset,
        length,
        flags,
        ..
    } = request;
    // The protocol has FUA on every command; where nothing is written it means nothing.
    let fua = flags & flag::FUA != 0;
    let only = |allowed: u16| known_flags(request, session, allowed);
    let span =
        |beyond: ErrorCode| Span::check(offset, length, bytes).ok_or(beyond_or(beyond, request, bytes));
    let writable = || match session.read_only {
        true => Err(ErrorCode::Permission),
        false => Ok(()),
    };
    match request.command {
        command::READ => {
            only(if session.structured { flag::DF } else { 0 })?;
            let span = bounded(span(ErrorCode::Invalid)?)?;
            let unbroken = flags & flag::DF != 0;
            if unbroken && span.length > PIECE_BYTES as u64 {
                return Err(ErrorCode::Overflow);
            }
            Ok(Command::Read { span, unbroken })
        }
        command::WRITE => {
            only(0)?;
            writable()?;
            let span = bounded(span(ErrorCode::NoSpace)?)?;
            Ok(Command::Write { span, fua })
        }
        command::DISC => Ok(Command::Disconnect),
        command::FLUSH if (offset, length) == (0, 0) => {
            only(0)?;
            Ok(Command::Flush)
        }
        command::TRIM => {
            only(0)?;
            writable()?;
            let span = span(ErrorCode::Invalid)?;
            Ok(Command::Trim { span, fua })
        }
        command::CACHE => {
            only(0)?;
            span(ErrorCode::Invalid)?;
            Ok(Command::Cache)
        }
        command::WRITE_ZEROES => {
            only(flag::NO_HOLE | flag::FAST_ZERO)?;
            writable()?;
            let span = span(ErrorCode::NoSpace)?;
            let stored = flags & flag::NO_HOLE != 0;
            if stored && flags & flag::FAST_ZERO != 0 {
                return Err(ErrorCode::NotSupported);
            }
            Ok(Command::Zero { span, stored, fua })
        }
        command::BLOCK_STATUS if session.block_status => {
            only(flag::REQ_ONE)?;
            let span = span(ErrorCode::Invalid)?;
            let one = flags & flag::REQ_ONE != 0;
            Ok(Command::Status { span, one })
        }
        _ => Err(ErrorCode::Invalid),
    }
}

/// Whether a request has no other flags than those that it may have.
fn known_flags(request: &Request, session: &Session, allowed: u16) -> Result<(), ErrorCode> {
    // The payload of a write has always followed it; with extended headers the client says so.
    let carried = match session.extended && request.command == command::WRITE {
        true => flag::PAYLOAD_LEN,
        false => 0,
    };
    match request.flags & !(allowed | carried | flag::FUA) {
        0 => Ok(()),
        _ => Err(ErrorCode::Invalid),
    }
}

/// Which of the two reasons a span was refused for: the protocol wants writes beyond the end told apart.
fn beyond_or(beyond: ErrorCode, request: &Request, bytes: u64) -> ErrorCode {
    match request.offset.checked_add(request.length) {
        Some(end) if end <= bytes => ErrorCode::Invalid,
        _ => beyond,
    }
}

fn bounded(span: Span) -> Result<Span, ErrorCode> {
    match span.length <= u64::from(REQUEST_BYTES_MAX) {
        true => Ok(span),
        false => Err(ErrorCode::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 30;
    const SESSION: Session = Session {
        export: 0,
        structured: true,
        extended: false,
        block_status: true,
        read_only: false,
    };

    fn ask(command: u16, flags: u16, offset: u64, length: u64) -> Result<Command, ErrorCode> {
        let request = Request {
            flags,
            command,
            cookie: 1,
            offset,
            length,
        };
        judge(&request, &SESSION, BYTES)
    }

    #[test]
    fn only_whole_sectors_inside_the_export_pass() {
        assert!(ask(command::READ, 0, BYTES - 512, 512).is_ok());
        for (offset, length) in [
            (0, 0),
            (1, 512),
            (0, 511),
            (BYTES, 512),
            (BYTES - 512, 1024),
            (u64::MAX - 511, 512),
            (u64::MAX - 511, 1024),
        ] {
            assert_eq!(
                ask(command::READ, 0, offset, length),
                Err(ErrorCode::Invalid),
                "{offset} {length}"
            );
        }
    }

    #[test]
    fn a_write_beyond_the_end_is_told_from_a_crooked_one() {
        assert_eq!(ask(command::WRITE, 0, BYTES, 512), Err(ErrorCode::NoSpace));
        assert_eq!(ask(command::WRITE, 0, 1, 512), Err(ErrorCode::Invalid));
        assert_eq!(ask(command::WRITE_ZEROES, 0, BYTES, 512), Err(ErrorCode::NoSpace));
    }

    #[test]
    fn requests_with_data_are_bounded_and_others_are_not() {
        let beyond = u64::from(REQUEST_BYTES_MAX) + 512;
        assert_eq!(ask(command::READ, 0, 0, beyond), Err(ErrorCode::Invalid));
        assert_eq!(ask(command::WRITE, 0, 0, beyond), Err(ErrorCode::Invalid));
        assert!(ask(command::WRITE_ZEROES, 0, 0, beyond).is_ok());
        assert!(ask(command::TRIM, 0, 0, beyond).is_ok());
        assert!(ask(command::BLOCK_STATUS, 0, 0, beyond).is_ok());
        let unbroken = PIECE_BYTES as u64;
        assert!(ask(command::READ, flag::DF, 0, unbroken).is_ok());
        assert_eq!(
            ask(command::READ, flag::DF, 0, unbroken + 512),
            Err(ErrorCode::Overflow)
        );
    }

    #[test]
    fn flags_belong_to_commands() {
        for wrong in [
            flag::PAYLOAD_LEN,
            flag::NO_HOLE,
            flag::DF,
            flag::REQ_ONE,
            flag::FAST_ZERO,
            1 << 15,
        ] {
            assert_eq!(ask(command::WRITE, wrong, 0, 512), Err(ErrorCode::Invalid));
            assert_eq!(ask(command::TRIM, wrong, 0, 512), Err(ErrorCode::Invalid));
            assert_eq!(ask(command::FLUSH, wrong, 0, 0), Err(ErrorCode::Invalid));
        }
        let fua_is_for_all = ask(command::READ, flag::FUA, 0, 512);
        assert!(fua_is_for_all.is_ok());
        let both = flag::NO_HOLE | flag::FAST_ZERO;
        assert_eq!(
            ask(command::WRITE_ZEROES, both, 0, 512),
            Err(ErrorCode::NotSupported)
        );
    }

    #[test]
    fn what_was_not_agreed_on_is_refused() {
        let plain = Session {
            structured: false,
            block_status: false,
            ..SESSION
        };
        let ask = |command, flags| {
            let request = Request {
                flags,
                command,
                cookie: 1,
                offset: 0,
                length: 512,
            };
            judge(&request, &plain, BYTES)
        };
        assert_eq!(ask(command::BLOCK_STATUS, 0), Err(ErrorCode::Invalid));
        assert_eq!(ask(command::READ, flag::DF), Err(ErrorCode::Invalid));
        assert_eq!(ask(8, 0), Err(ErrorCode::Invalid));
    }

    #[test]
    fn a_read_only_export_takes_no_changes() {
        let session = Session {
            read_only: true,
            ..SESSION
        };
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            let request = Request {
                flags: 0,
                command,
                cookie: 1,
                offset: 0,
                length: 512,
            };
            assert_eq!(judge(&request, &session, BYTES), Err(ErrorCode::Permission));
        }
    }
}
