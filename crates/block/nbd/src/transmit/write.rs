//! Writes with their payloads, zeros, and discards.

use netram_block::{BLOCK_BYTES, DeviceError, PendingWrite};

use super::answer::{ReplyBarrier, RequestKey};
use super::{RequestStart, Transmission};
use crate::command::ExportSpan;
use crate::limit::{INPUT_BYTES, PIECE_BYTES_MIN, ZEROS_BYTES};
use crate::wire::reply::NbdErrorCode;

static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];

/// A write's payload that is arriving.
pub(super) struct WritePayload {
    key: RequestKey,
    length: u64,
    /// Offset of the next byte; meaningless after an error.
    offset: u64,
    left: u64,
    fua: bool,
    outcome: Result<(), NbdErrorCode>,
}

impl WritePayload {
    pub(super) fn accepted(asked: RequestKey, span: ExportSpan, fua: bool) -> WritePayload {
        WritePayload {
            key: asked,
            length: span.length(),
            offset: span.offset(),
            left: span.length(),
            fua,
            outcome: Ok(()),
        }
    }

    /// The payload is read and discarded, so that the next request is found behind it.
    pub(super) fn refused(asked: RequestKey, length: u64, error: NbdErrorCode) -> WritePayload {
        WritePayload {
            key: asked,
            length,
            offset: 0,
            left: length,
            fua: false,
            outcome: Err(error),
        }
    }

    /// A piece of the payload failed; the rest is discarded.
    pub(super) fn fail(&mut self, error: NbdErrorCode) {
        self.outcome = self.outcome.and(Err(error));
    }

    /// Number of the `here` bytes to consume now; zero to wait for more. A payload that fits in the input
    /// buffer is consumed whole, a larger one in pieces that end at blocks.
    fn piece(&self, here: usize) -> usize {
        let left = self.left as usize;
        if self.outcome.is_err() || here >= left {
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
    /// Consumes the received part of a payload. A complete one joins the batch.
    pub(super) fn on_payload(&mut self, mut payload: WritePayload) -> RequestStart {
        let here = self.input.bytes();
        let count = payload.piece(here.len());
        if count == 0 && payload.left > 0 {
            self.payload = Some(payload);
            return RequestStart::Starved;
        }
        if count > 0 && payload.outcome.is_ok() {
            let written = self.device.write(payload.offset, &here[..count]);
            payload.outcome = self.logged(written, count);
            payload.offset += count as u64;
        }
        self.input.take(count);
        payload.left -= count as u64;
        if payload.left > 0 {
            self.payload = Some(payload);
            return RequestStart::Started;
        }
        if payload.outcome.is_ok() {
            self.stats.writes += 1;
            self.stats.written_bytes += payload.length;
        }
        self.batch
            .push(payload.key, payload.outcome, barrier(payload.fua));
        RequestStart::Started
    }

    pub(super) fn on_zero(&mut self, asked: RequestKey, span: ExportSpan, stored: bool, fua: bool) {
        let outcome = if stored {
            self.write_zeros(span)
        } else {
            let zeroed = self.device.zero(span.offset(), span.length());
            self.logged(zeroed, 0)
        };
        self.stats.zeroes += u64::from(outcome.is_ok());
        self.batch.push(asked, outcome, barrier(fua));
    }

    pub(super) fn on_trim(&mut self, asked: RequestKey, span: ExportSpan, fua: bool) {
        let trimmed = self.device.discard(span.offset(), span.length());
        let outcome = self.logged(trimmed, 0);
        self.stats.zeroes += u64::from(outcome.is_ok());
        self.batch.push(asked, outcome, barrier(fua));
    }

    /// The client wants the space allocated, so that later writes cannot fail for lack of it.
    fn write_zeros(&mut self, span: ExportSpan) -> Result<(), NbdErrorCode> {
        let mut offset = span.offset();
        let end = offset + span.length();
        while offset < end {
            if (self.stopping)() {
                return Err(NbdErrorCode::Shutdown);
            }
            let piece = ZEROS_BYTES.min((end - offset) as usize);
            let written = self.device.write(offset, &ZEROS[..piece]);
            self.logged(written, piece)?;
            offset += piece as u64;
        }
        Ok(())
    }

    fn logged(
        &mut self,
        written: Result<PendingWrite, DeviceError>,
        bytes: usize,
    ) -> Result<(), NbdErrorCode> {
        match written {
            Ok(pending) => {
                self.batch.logged(pending, bytes);
                Ok(())
            }
            Err(error) => Err(self.fail(&error)),
        }
    }
}

fn barrier(fua: bool) -> ReplyBarrier {
    match fua {
        true => ReplyBarrier::WritesAndFlush,
        false => ReplyBarrier::Writes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::REQUEST_BYTES_MAX;

    const ASKED: RequestKey = RequestKey { cookie: 1, offset: 0 };

    fn large(offset: u64) -> WritePayload {
        let span = ExportSpan::check(offset, REQUEST_BYTES_MAX.into(), 1 << 40).expect("inside");
        WritePayload::accepted(ASKED, span, false)
    }

    #[test]
    fn a_payload_that_fits_the_buffer_is_consumed_whole() {
        let span = ExportSpan::check(512, 8192, 1 << 20).expect("inside");
        let payload = WritePayload::accepted(ASKED, span, false);
        assert_eq!(payload.piece(8191), 0);
        assert_eq!(payload.piece(8192), 8192);
        assert_eq!(payload.piece(INPUT_BYTES), 8192);
    }

    #[test]
    fn pieces_of_a_larger_payload_end_at_blocks() {
        assert_eq!(large(0).piece(PIECE_BYTES_MIN - 1), 0);
        let here = PIECE_BYTES_MIN + 1000;
        assert_eq!(large(512).piece(here) as u64 % BLOCK_BYTES, BLOCK_BYTES - 512);
        assert!(
            large(512).piece(INPUT_BYTES) > 0,
            "a full input buffer makes progress"
        );
    }

    #[test]
    fn a_refused_payload_is_discarded_as_it_arrives() {
        let payload = WritePayload::refused(ASKED, u64::MAX, NbdErrorCode::Invalid);
        assert_eq!(payload.piece(7), 7);
        assert_eq!(payload.piece(0), 0);
    }
}
