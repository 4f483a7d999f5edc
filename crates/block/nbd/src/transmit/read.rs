//! Reads, and reports of holes.

use std::io;

use super::answer::RequestKey;
use super::{Transmission, TransmitEnd};
use crate::command::ExportSpan;
use crate::limit::{HOLES_BYTES_MIN, PIECE_BYTES, RUNS_MAX, STATUS_BYTES_MAX};
use crate::wire::reply::{ChunkKind, DONE, NbdErrorCode, SIMPLE_BYTES, simple};
use crate::wire::{BASE_ALLOCATION_ID, STATE_HOLE, STATE_ZERO};

impl Transmission<'_> {
    pub(super) fn on_read(
        &mut self,
        asked: RequestKey,
        span: ExportSpan,
        unbroken: bool,
    ) -> Result<(), TransmitEnd> {
        if self.session.structured {
            self.read_in_chunks(asked, span, unbroken)?;
        } else {
            self.read_simply(asked, span)?;
        }
        self.stats.reads += 1;
        self.stats.read_bytes += span.length();
        Ok(())
    }

    pub(super) fn answer_failed_read(&mut self, asked: RequestKey, error: NbdErrorCode) -> io::Result<()> {
        if self.session.structured {
            return self.answer_error_chunk(asked, error);
        }
        self.stats.errors += 1;
        self.output.reserve(SIMPLE_BYTES, self.stream)?;
        self.output.put(&simple(asked.cookie, Some(error)));
        Ok(())
    }

    /// A header with all bytes behind it. Once a first piece is sent, an error can only be reported by
    /// disconnecting, as the protocol says. Clients with large reads negotiate structured replies.
    fn read_simply(&mut self, asked: RequestKey, span: ExportSpan) -> Result<(), TransmitEnd> {
        let mut offset = span.offset();
        let end = offset + span.length();
        let mut head = SIMPLE_BYTES;
        while offset < end {
            let piece = PIECE_BYTES.min((end - offset) as usize);
            self.output.reserve(head + piece, self.stream)?;
            if head > 0 {
                self.output.put(&simple(asked.cookie, None));
            }
            if let Err(error) = self.device.read(offset, self.output.space(piece)) {
                self.output.retract(head + piece);
                let code = self.fail(&error);
                if head == 0 {
                    return Err(TransmitEnd::ReadBroken);
                }
                return Ok(self.answer_failed_read(asked, code)?);
            }
            head = 0;
            offset += piece as u64;
        }
        Ok(())
    }

    fn read_in_chunks(&mut self, asked: RequestKey, span: ExportSpan, unbroken: bool) -> io::Result<()> {
        self.find_runs(span, span.length() < u64::from(HOLES_BYTES_MIN) || unbroken);
        let mut offset = span.offset();
        let end = offset + span.length();
        for index in 0..self.runs.len() {
            let (run, hole) = self.runs[index];
            let run_end = offset + run;
            while offset < run_end {
                let left = run_end - offset;
                let piece = if hole { left } else { left.min(PIECE_BYTES as u64) };
                let done = if offset + piece == end { DONE } else { 0 };
                if hole {
                    self.put_hole(asked, done, offset, piece as u32)?;
                } else if let Err(code) = self.put_data(asked, done, offset, piece as usize)? {
                    return self.answer_error_chunk(asked, code);
                }
                offset += piece;
            }
        }
        Ok(())
    }

    fn put_hole(&mut self, asked: RequestKey, flags: u16, offset: u64, length: u32) -> io::Result<()> {
        self.output.reserve(self.chunk_bytes() + 12, self.stream)?;
        self.put_chunk(asked, ChunkKind::OffsetHole, flags, 12);
        self.output.put(&offset.to_be_bytes());
        self.output.put(&length.to_be_bytes());
        Ok(())
    }

    fn put_data(
        &mut self,
        asked: RequestKey,
        flags: u16,
        offset: u64,
        length: usize,
    ) -> io::Result<Result<(), NbdErrorCode>> {
        let head = self.chunk_bytes() + 8;
        self.output.reserve(head + length, self.stream)?;
        let data = (8 + length) as u32;
        self.put_chunk(asked, ChunkKind::OffsetData, flags, data);
        self.output.put(&offset.to_be_bytes());
        if let Err(error) = self.device.read(offset, self.output.space(length)) {
            self.output.retract(head + length);
            return Ok(Err(self.fail(&error)));
        }
        Ok(Ok(()))
    }

    pub(super) fn on_status(&mut self, asked: RequestKey, span: ExportSpan, one: bool) -> io::Result<()> {
        let runs_max = if one { 1 } else { RUNS_MAX };
        if let Err(error) = gather(self.device, span, runs_max, &mut self.runs) {
            let code = self.fail(&error);
            return self.answer_error_chunk(asked, code);
        }
        let count = self.runs.len();
        if self.session.extended {
            self.put_extended_status(asked, count)?;
            return Ok(());
        }
        let length = 4 + 8 * count;
        self.output.reserve(self.chunk_bytes() + length, self.stream)?;
        self.put_chunk(asked, ChunkKind::BlockStatus, DONE, length as u32);
        self.output.put(&BASE_ALLOCATION_ID.to_be_bytes());
        for &(run, hole) in &self.runs {
            let state = state_of(hole);
            // A run is clipped to the span, whose length has 32 bits.
            self.output.put(&(run as u32).to_be_bytes());
            self.output.put(&u32::to_be_bytes(state));
        }
        Ok(())
    }

    fn put_extended_status(&mut self, asked: RequestKey, count: usize) -> io::Result<()> {
        let length = 8 + 16 * count;
        self.output.reserve(self.chunk_bytes() + length, self.stream)?;
        self.put_chunk(asked, ChunkKind::BlockStatusExtended, DONE, length as u32);
        self.output.put(&BASE_ALLOCATION_ID.to_be_bytes());
        self.output.put(&(count as u32).to_be_bytes());
        for &(run, hole) in &self.runs {
            self.output.put(&run.to_be_bytes());
            self.output.put(&u64::from(state_of(hole)).to_be_bytes());
        }
        Ok(())
    }

    /// Fills `runs` so that they cover the span. Ranges not known to be holes count as data.
    fn find_runs(&mut self, span: ExportSpan, all_data: bool) {
        let length = span.length();
        let known = !all_data && gather(self.device, span, RUNS_MAX, &mut self.runs).is_ok();
        if !known {
            self.runs.clear();
        }
        let covered: u64 = self.runs.iter().map(|run| run.0).sum();
        if covered < length {
            self.runs.push((length - covered, false));
        }
    }
}

fn state_of(hole: bool) -> u32 {
    if hole { STATE_HOLE | STATE_ZERO } else { 0 }
}

/// Collects at most `runs_max` runs from the span's start, clipped to it, with equal neighbours joined; at
/// least one. Runs beyond [`STATUS_BYTES_MAX`] are left out.
fn gather(
    device: &dyn netram_block::BlockDevice,
    span: ExportSpan,
    runs_max: usize,
    runs: &mut Vec<(u64, bool)>,
) -> Result<(), netram_block::DeviceError> {
    runs.clear();
    let mut left = span.length().min(STATUS_BYTES_MAX);
    device.extents(span.offset(), left, &mut |length, hole| {
        let length = length.min(left);
        let full = runs.len() == runs_max;
        match runs.last_mut() {
            _ if length == 0 => (),
            Some(last) if last.1 == hole => last.0 += length,
            _ if full => return false,
            _ => runs.push((length, hole)),
        }
        left -= length;
        left > 0
    })?;
    if runs.is_empty() {
        runs.push((left, false));
    }
    Ok(())
}
