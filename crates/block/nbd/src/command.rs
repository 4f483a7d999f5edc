//! Turns requests into commands. Every offset, length and flag is checked here, once, before anything is
//! allocated or changed. An [`NbdCommand`] is inside the export and allowed.

use netram_block::SECTOR_BYTES;

use crate::limit::{PIECE_BYTES, REQUEST_BYTES_MAX};
use crate::wire::reply::NbdErrorCode;
use crate::wire::request::{NbdRequest, command, flag};

/// Result of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NbdSession {
    /// Index of the export.
    pub export: usize,
    /// Whether replies come in chunks.
    pub structured: bool,
    /// Whether headers are extended; implies `structured`.
    pub extended: bool,
    /// Whether `BLOCK_STATUS` was negotiated, with `base:allocation`.
    pub block_status: bool,
    /// Whether the export is read-only.
    pub read_only: bool,
}

/// Whole sectors inside the export, at least one. Only [`ExportSpan::check`] creates one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportSpan {
    offset: u64,
    length: u64,
}

impl ExportSpan {
    /// Checks a range of an export of `bytes`. `None` if it is empty, not whole sectors, or not inside the
    /// export.
    pub fn check(offset: u64, length: u64, bytes: u64) -> Option<ExportSpan> {
        let whole = offset.is_multiple_of(SECTOR_BYTES) && length.is_multiple_of(SECTOR_BYTES);
        let end = offset.checked_add(length)?;
        (whole && length > 0 && end <= bytes).then_some(ExportSpan { offset, length })
    }

    /// Offset of the first byte.
    pub fn offset(self) -> u64 {
        self.offset
    }

    /// Length in bytes, a multiple of 512 and not zero.
    pub fn length(self) -> u64 {
        self.length
    }
}

/// A request that may be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NbdCommand {
    /// Read at most [`REQUEST_BYTES_MAX`] bytes.
    Read {
        /// Range to read.
        span: ExportSpan,
        /// Reply in one chunk; the span is then at most [`PIECE_BYTES`] long.
        unbroken: bool,
    },
    /// Write at most [`REQUEST_BYTES_MAX`] bytes; the payload follows the request.
    Write {
        /// Range of the payload.
        span: ExportSpan,
        /// Make the write durable before the reply.
        fua: bool,
    },
    /// `WRITE_ZEROES`: make a range read as zeros.
    Zero {
        /// Range that reads as zeros afterwards.
        span: ExportSpan,
        /// Allocate space for the zeros.
        stored: bool,
        /// Make the zeros durable before the reply.
        fua: bool,
    },
    /// Discard a range.
    Trim {
        /// Range to discard.
        span: ExportSpan,
        /// Make the discard durable before the reply.
        fua: bool,
    },
    /// Make durable every write completed on any connection.
    Flush,
    /// Prepare for reads. Only acknowledged: every image is behind the page cache already.
    Cache,
    /// Report data and holes.
    Status {
        /// Range to report.
        span: ExportSpan,
        /// Report only the first run.
        one: bool,
    },
    /// The client disconnects.
    Disconnect,
}

/// Checks a request for an export of `bytes` bytes. After an error, a write's payload still follows on the
/// wire.
///
/// # Errors
///
/// [`NbdErrorCode`] to reply with, if the request is malformed, out of range or not allowed.
pub fn check_request(
    request: &NbdRequest,
    session: &NbdSession,
    bytes: u64,
) -> Result<NbdCommand, NbdErrorCode> {
    let (offset, length, flags) = (request.offset, request.length, request.flags);
    // The protocol allows FUA on every command; it has no effect where nothing is written.
    let fua = flags & flag::FUA != 0;
    let only = |allowed: u16| known_flags(request, session, allowed);
    let span = |beyond: NbdErrorCode| {
        ExportSpan::check(offset, length, bytes).ok_or(beyond_or(beyond, request, bytes))
    };
    let writable = || match session.read_only {
        true => Err(NbdErrorCode::Permission),
        false => Ok(()),
    };
    match request.command {
        command::READ => {
            only(if session.structured { flag::DF } else { 0 })?;
            let span = bounded(span(NbdErrorCode::Invalid)?)?;
            let unbroken = flags & flag::DF != 0;
            if unbroken && span.length > PIECE_BYTES as u64 {
                return Err(NbdErrorCode::Overflow);
            }
            Ok(NbdCommand::Read { span, unbroken })
        }
        command::WRITE => {
            only(0)?;
            writable()?;
            let span = bounded(span(NbdErrorCode::NoSpace)?)?;
            Ok(NbdCommand::Write { span, fua })
        }
        command::DISC => Ok(NbdCommand::Disconnect),
        command::FLUSH if (offset, length) == (0, 0) => {
            only(0)?;
            Ok(NbdCommand::Flush)
        }
        command::TRIM => {
            only(0)?;
            writable()?;
            let span = span(NbdErrorCode::Invalid)?;
            Ok(NbdCommand::Trim { span, fua })
        }
        command::CACHE => {
            only(0)?;
            span(NbdErrorCode::Invalid)?;
            Ok(NbdCommand::Cache)
        }
        command::WRITE_ZEROES => {
            only(flag::NO_HOLE | flag::FAST_ZERO)?;
            writable()?;
            let span = span(NbdErrorCode::NoSpace)?;
            let stored = flags & flag::NO_HOLE != 0;
            if stored && flags & flag::FAST_ZERO != 0 {
                return Err(NbdErrorCode::NotSupported);
            }
            Ok(NbdCommand::Zero { span, stored, fua })
        }
        command::BLOCK_STATUS if session.block_status => {
            only(flag::REQ_ONE)?;
            let span = span(NbdErrorCode::Invalid)?;
            let one = flags & flag::REQ_ONE != 0;
            Ok(NbdCommand::Status { span, one })
        }
        _ => Err(NbdErrorCode::Invalid),
    }
}

/// Checks that a request has only allowed flags.
fn known_flags(request: &NbdRequest, session: &NbdSession, allowed: u16) -> Result<(), NbdErrorCode> {
    // A write always has a payload; with extended headers the client sets a flag for it.
    let carried = match session.extended && request.command == command::WRITE {
        true => flag::PAYLOAD_LEN,
        false => 0,
    };
    match request.flags & !(allowed | carried | flag::FUA) {
        0 => Ok(()),
        _ => Err(NbdErrorCode::Invalid),
    }
}

/// Error code for a refused span: the protocol wants writes beyond the end reported separately.
fn beyond_or(beyond: NbdErrorCode, request: &NbdRequest, bytes: u64) -> NbdErrorCode {
    match request.offset.checked_add(request.length) {
        Some(end) if end <= bytes => NbdErrorCode::Invalid,
        _ => beyond,
    }
}

fn bounded(span: ExportSpan) -> Result<ExportSpan, NbdErrorCode> {
    match span.length <= u64::from(REQUEST_BYTES_MAX) {
        true => Ok(span),
        false => Err(NbdErrorCode::Invalid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 30;
    const SESSION: NbdSession = NbdSession {
        export: 0,
        structured: true,
        extended: false,
        block_status: true,
        read_only: false,
    };

    fn ask(command: u16, flags: u16, offset: u64, length: u64) -> Result<NbdCommand, NbdErrorCode> {
        let request = NbdRequest {
            flags,
            command,
            cookie: 1,
            offset,
            length,
        };
        check_request(&request, &SESSION, BYTES)
    }

    #[test]
    fn only_whole_sectors_inside_the_export_are_accepted() {
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
                Err(NbdErrorCode::Invalid),
                "{offset} {length}"
            );
        }
    }

    #[test]
    fn a_write_beyond_the_end_and_an_unaligned_one_get_different_errors() {
        assert_eq!(ask(command::WRITE, 0, BYTES, 512), Err(NbdErrorCode::NoSpace));
        assert_eq!(ask(command::WRITE, 0, 1, 512), Err(NbdErrorCode::Invalid));
        assert_eq!(
            ask(command::WRITE_ZEROES, 0, BYTES, 512),
            Err(NbdErrorCode::NoSpace)
        );
    }

    #[test]
    fn only_requests_with_data_are_limited_in_length() {
        let beyond = u64::from(REQUEST_BYTES_MAX) + 512;
        assert_eq!(ask(command::READ, 0, 0, beyond), Err(NbdErrorCode::Invalid));
        assert_eq!(ask(command::WRITE, 0, 0, beyond), Err(NbdErrorCode::Invalid));
        assert!(ask(command::WRITE_ZEROES, 0, 0, beyond).is_ok());
        assert!(ask(command::TRIM, 0, 0, beyond).is_ok());
        assert!(ask(command::BLOCK_STATUS, 0, 0, beyond).is_ok());
        let unbroken = PIECE_BYTES as u64;
        assert!(ask(command::READ, flag::DF, 0, unbroken).is_ok());
        assert_eq!(
            ask(command::READ, flag::DF, 0, unbroken + 512),
            Err(NbdErrorCode::Overflow)
        );
    }

    #[test]
    fn a_flag_is_accepted_only_on_its_commands() {
        for wrong in [
            flag::PAYLOAD_LEN,
            flag::NO_HOLE,
            flag::DF,
            flag::REQ_ONE,
            flag::FAST_ZERO,
            1 << 15,
        ] {
            assert_eq!(ask(command::WRITE, wrong, 0, 512), Err(NbdErrorCode::Invalid));
            assert_eq!(ask(command::TRIM, wrong, 0, 512), Err(NbdErrorCode::Invalid));
            assert_eq!(ask(command::FLUSH, wrong, 0, 0), Err(NbdErrorCode::Invalid));
        }
        let fua_is_for_all = ask(command::READ, flag::FUA, 0, 512);
        assert!(fua_is_for_all.is_ok());
        let both = flag::NO_HOLE | flag::FAST_ZERO;
        assert_eq!(
            ask(command::WRITE_ZEROES, both, 0, 512),
            Err(NbdErrorCode::NotSupported)
        );
    }

    #[test]
    fn commands_that_were_not_negotiated_are_refused() {
        let plain = NbdSession {
            structured: false,
            block_status: false,
            ..SESSION
        };
        let ask = |command, flags| {
            let request = NbdRequest {
                flags,
                command,
                cookie: 1,
                offset: 0,
                length: 512,
            };
            check_request(&request, &plain, BYTES)
        };
        assert_eq!(ask(command::BLOCK_STATUS, 0), Err(NbdErrorCode::Invalid));
        assert_eq!(ask(command::READ, flag::DF), Err(NbdErrorCode::Invalid));
        assert_eq!(ask(8, 0), Err(NbdErrorCode::Invalid));
    }

    #[test]
    fn a_read_only_export_refuses_changes() {
        let session = NbdSession {
            read_only: true,
            ..SESSION
        };
        for command in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            let request = NbdRequest {
                flags: 0,
                command,
                cookie: 1,
                offset: 0,
                length: 512,
            };
            assert_eq!(
                check_request(&request, &session, BYTES),
                Err(NbdErrorCode::Permission)
            );
        }
    }
}
