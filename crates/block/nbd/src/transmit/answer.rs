//! The end of a batch: one wait, at most one flush, and a reply to each request.

use std::io;

use netram_block::PendingWrite;

use super::Transmission;
use crate::limit::{BATCH_BYTES_MAX, BATCH_MAX};
use crate::wire::reply::{
    CHUNK_BYTES, ChunkKind, DONE, EXTENDED_CHUNK_BYTES, NbdErrorCode, SIMPLE_BYTES, chunk, extended_chunk,
    simple,
};

/// Fields of a request that its reply repeats.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestKey {
    pub(super) cookie: u64,
    /// Repeated only with extended headers.
    pub(super) offset: u64,
}

/// Completion that a reply waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyBarrier {
    /// No completion.
    Immediate,
    /// Completion of the batch's writes.
    Writes,
    /// Completion of the batch's writes, then a flush.
    WritesAndFlush,
    /// A flush.
    Flush,
}

struct PendingReply {
    key: RequestKey,
    outcome: Result<(), NbdErrorCode>,
    barrier: ReplyBarrier,
}

/// Requests that were started and not answered.
pub(super) struct Batch {
    answers: Vec<PendingReply>,
    /// The last write; waiting for it waits for all.
    pending: Option<PendingWrite>,
    bytes: usize,
}

impl Batch {
    pub(super) fn new() -> Batch {
        Batch {
            answers: Vec::with_capacity(BATCH_MAX),
            pending: None,
            bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// A batch without a whole request is never full: there would be nothing to answer, and no progress.
    pub(super) fn is_full(&self) -> bool {
        let heavy = self.bytes >= BATCH_BYTES_MAX && !self.is_empty();
        heavy || self.answers.len() >= BATCH_MAX
    }

    pub(super) fn push(&mut self, asked: RequestKey, outcome: Result<(), NbdErrorCode>, rides: ReplyBarrier) {
        self.answers.push(PendingReply {
            key: asked,
            outcome,
            barrier: rides,
        });
    }

    /// A write was logged that its reply must wait for.
    pub(super) fn logged(&mut self, pending: PendingWrite, bytes: usize) {
        self.pending = self.pending.max(Some(pending));
        self.bytes += bytes;
    }
}

impl Transmission<'_> {
    /// Completes and answers every started request.
    pub(super) fn settle(&mut self) -> io::Result<()> {
        if !self.batch.answers.is_empty() {
            if self.batch.pending.is_some() && !self.output.is_empty() {
                // Reads of the batch do not wait for its writes.
                self.output.send(self.stream)?;
            }
            self.complete()?;
            self.stats.batches += 1;
        }
        self.counters.add(&self.stats);
        self.stats = Default::default();
        match self.output.is_empty() {
            true => Ok(()),
            false => self.output.send(self.stream),
        }
    }

    /// Completes started requests without answering.
    pub(super) fn abandon(&mut self) {
        if let Some(pending) = self.batch.pending.take()
            && let Err(error) = self.device.wait(pending)
        {
            self.fail(&error);
        }
    }

    fn complete(&mut self) -> io::Result<()> {
        let waited = match self.batch.pending.take() {
            None => Ok(()),
            Some(pending) => self.device.wait(pending).map_err(|error| self.fail(&error)),
        };
        self.batch.bytes = 0;
        if let (Err(error), Some(payload)) = (waited, &mut self.payload) {
            // The payload's first pieces were waited for too.
            payload.fail(error);
        }
        let any = |answers: &[PendingReply], wanted: ReplyBarrier| {
            answers
                .iter()
                .any(|answer| answer.barrier == wanted && answer.outcome.is_ok())
        };
        // A client's flush counts by itself, even if writes of this batch failed.
        let forced = waited.is_ok() && any(&self.batch.answers, ReplyBarrier::WritesAndFlush);
        let flushed = if forced || any(&self.batch.answers, ReplyBarrier::Flush) {
            self.stats.flushes += 1;
            self.device.flush().map_err(|error| self.fail(&error))
        } else {
            Ok(())
        };
        for index in 0..self.batch.answers.len() {
            let PendingReply {
                key: asked,
                outcome,
                barrier: rides,
            } = self.batch.answers[index];
            let outcome = outcome.and(match rides {
                ReplyBarrier::Immediate => Ok(()),
                ReplyBarrier::Writes => waited,
                ReplyBarrier::WritesAndFlush => waited.and(flushed),
                ReplyBarrier::Flush => flushed,
            });
            self.answer(asked, outcome)?;
        }
        self.batch.answers.clear();
        Ok(())
    }

    fn answer(&mut self, asked: RequestKey, outcome: Result<(), NbdErrorCode>) -> io::Result<()> {
        match outcome {
            Err(error) if self.session.structured => self.answer_error_chunk(asked, error),
            Ok(()) if self.session.extended => {
                self.output.reserve(EXTENDED_CHUNK_BYTES, self.stream)?;
                self.put_chunk(asked, ChunkKind::None, DONE, 0);
                Ok(())
            }
            outcome => {
                self.stats.errors += u64::from(outcome.is_err());
                self.output.reserve(SIMPLE_BYTES, self.stream)?;
                self.output.put(&simple(asked.cookie, outcome.err()));
                Ok(())
            }
        }
    }

    /// Sends the last chunk of a failed request.
    pub(super) fn answer_error_chunk(&mut self, asked: RequestKey, error: NbdErrorCode) -> io::Result<()> {
        self.stats.errors += 1;
        let message = error.message().as_bytes();
        let length = 6 + message.len();
        self.output.reserve(self.chunk_bytes() + length, self.stream)?;
        self.put_chunk(asked, ChunkKind::Error, DONE, length as u32);
        self.output.put(&(error as u32).to_be_bytes());
        self.output.put(&(message.len() as u16).to_be_bytes());
        self.output.put(message);
        Ok(())
    }

    /// Bytes of a chunk's header.
    pub(super) fn chunk_bytes(&self) -> usize {
        match self.session.extended {
            true => EXTENDED_CHUNK_BYTES,
            false => CHUNK_BYTES,
        }
    }

    /// Appends a chunk's header, for which room was reserved.
    pub(super) fn put_chunk(&mut self, asked: RequestKey, kind: ChunkKind, flags: u16, length: u32) {
        let RequestKey { cookie, offset } = asked;
        match self.session.extended {
            true => self
                .output
                .put(&extended_chunk(cookie, offset, kind, flags, length)),
            false => self.output.put(&chunk(cookie, kind, flags, length)),
        }
    }
}
