//! Writes and their payloads, zeros, trims.

use netram_block::{BLOCK_BYTES, DeviceError, Pending};

use super::answer::{Asked, Rides};
use super::{Next, Transmission};
use crate::command::Span;
use crate::limit::{INPUT_BYTES, PIECE_BYTES_MIN, ZEROS_BYTES};
use crate::wire::reply::ErrorCode;

static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];

/// A write's payload on its way in.
pub(super) struct Payload {
    asked: Asked,
    length: u64,
    /// Where the next byte belongs; means nothing after an error.
    offset: u64,
    left: u64,
    fua: bool,
    verdict: Result<(), ErrorCode>,
}

impl Payload {
    pub(super) fn accepted(asked: Asked, span: Span, fua: bool) -> Payload {
        Payload {
            asked,
            length: span.length(),
            offset: span.offset(),
            left: span.length(),
            fua,
            verdict: Ok(()),
        }
    }

    /// The bytes are read and thrown away, so that the next request is found behind them.
    pub(super) fn refused(asked: Asked, length: u64, error: ErrorCode) -> Payload {
        Payload {
            asked,
            length,
            offset: 0,
            left: length,
            fua: false,
            verdict: Err(error),
        }
    }

    /// A piece of it is lost; the rest passes by.
    pub(super) fn fail(&mut self, error: ErrorCode) {
        self.verdict = self.verdict.and(Err(error));
    }

    /// How many of the `here` bytes to take now; zero to wait for more. A payload that fits the input is taken
    /// whole, a larger one in pieces that end where blocks do.
    fn piece(&self, here: usize) -> usize {
        let left = self.left as usize;
        if self.verdict.is_err() || here >= left {
            return here.min(left);
        }
        let never_whole = left > INPUT_BYTES;
        if !never_whole || here < PIECE_BYTES_MIN {
            return 0;
        }
        let end = self.offset + here as u64;
        here - (end % BLOCK_BYTES) as usize
    }
}

impl Transmission<'_> {
    /// Takes what is here of a payload. Whole, it joins the batch.
    pub(super) fn on_payload(&mut self, mut payload: Payload) -> Next {
        let here = self.input.bytes();
        let count = payload.piece(here.len());
        if count == 0 && payload.left > 0 {
            self.payload = Some(payload);
            return Next::Starved;
        }
        if count > 0 && payload.verdict.is_ok() {
            let written = self.device.write(payload.offset, &here[..count]);
            payload.verdict = self.logged(written, count);
            payload.offset += count as u64;
        }
        self.input.take(count);
        payload.left -= count as u64;
        if payload.left > 0 {
            self.payload = Some(payload);
            return Next::Started;
        }
        if payload.verdict.is_ok() {
            self.stats.writes += 1;
            self.stats.written_bytes += payload.length;
        }
        self.batch
            .push(payload.asked, payload.verdict, rides(payload.fua));
        Next::Started
    }

    pub(super) fn on_zero(&mut self, asked: Asked, span: Span, stored: bool, fua: bool) {
        let outcome = if stored {
            self.write_zeros(span)
        } else {
            let zeroed = self.device.zero(span.offset(), span.length());
            self.logged(zeroed, 0)
        };
        self.stats.zeroes += u64::from(outcome.is_ok());
        self.batch.push(asked, outcome, rides(fua));
    }

    pub(super) fn on_trim(&mut self, asked: Asked, span: Span, fua: bool) {
        let trimmed = self.device.discard(span.offset(), span.length());
        let outcome = self.logged(trimmed, 0);
        self.stats.zeroes += u64::from(outcome.is_ok());
        self.batch.push(asked, outcome, rides(fua));
    }

    /// The client wants the space taken, so that later writes cannot fail for want of it.
    fn write_zeros(&mut self, span: Span) -> Result<(), ErrorCode> {
        let mut offset = span.offset();
        let end = offset + span.length();
        while offset < end {
            if (self.stopping)() {
                return Err(ErrorCode::Shutdown);
            }
            let piece = ZEROS_BYTES.min((end - offset) as usize);
            let written = self.device.write(offset, &ZEROS[..piece]);
            self.logged(written, piece)?;
            offset += piece as u64;
        }
        Ok(())
    }

    fn logged(&mut self, written: Result<Pending, DeviceError>, bytes: usize) -> Result<(), ErrorCode> {
        match written {
            Ok(pending) => {
                self.batch.logged(pending, bytes);
                Ok(())
            }
            Err(error) => Err(self.fail(&error)),
        }
    }
}

fn rides(fua: bool) -> Rides {
    match fua {
        true => Rides::WritesAndFlush,
        false => Rides::Writes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::REQUEST_BYTES_MAX;

    const ASKED: Asked = Asked { cookie: 1, offset: 0 };

    fn large(offset: u64) -> Payload {
        let span = Span::check(offset, REQUEST_BYTES_MAX.into(), 1 << 40).expect("inside");
        Payload::accepted(ASKED, span, false)
    }

    #[test]
    fn a_payload_that_fits_is_taken_whole() {
        let span = Span::check(512, 8192, 1 << 20).expect("inside");
        let payload = Payload::accepted(ASKED, span, false);
        assert_eq!(payload.piece(8191), 0);
        assert_eq!(payload.piece(8192), 8192);
        assert_eq!(payload.piece(INPUT_BYTES), 8192);
    }

    #[test]
    fn pieces_of_a_larger_one_end_where_blocks_do() {
        assert_eq!(large(0).piece(PIECE_BYTES_MIN - 1), 0);
        let here = PIECE_BYTES_MIN + 1000;
        assert_eq!(large(512).piece(here) as u64 % BLOCK_BYTES, BLOCK_BYTES - 512);
        assert!(large(512).piece(INPUT_BYTES) > 0, "a full input always moves on");
    }

    #[test]
    fn a_refused_one_passes_by_as_it_comes() {
        let payload = Payload::refused(ASKED, u64::MAX, ErrorCode::Invalid);
        assert_eq!(payload.piece(7), 7);
        assert_eq!(payload.piece(0), 0);
    }
}
