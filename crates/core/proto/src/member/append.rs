//! Accepting bytes of the log. Order is checked first, then space, then the records.

use super::window::{Window, copy_out, pieces};
use super::{Member, MemberReply};
use crate::id::Lsn;
use crate::limit::{LSN_LAST, RECORD_HEADER_BYTES};
use crate::planted::PlantedFault;
use crate::wire::{ChainPoint, Flag, Frame, RecordHeader, RefusalReason, ScanStep, check_record, scan_step};

impl Member {
    pub(super) fn on_append<W: Window>(&mut self, frame: &Frame<'_>, window: &mut W) -> MemberReply {
        if let Some(refusal) = self.check_writer(frame) {
            return refusal;
        }
        if !self.is_window_of(frame) {
            return self.refuse(RefusalReason::NotJoined, Lsn(0), Lsn(0));
        }
        let from = frame.header.lsn;
        if from > LSN_LAST {
            return self.refuse(RefusalReason::Malformed, from, LSN_LAST);
        }
        if from > self.state.received {
            if frame.header.flags & Flag::FRESH != 0 && frame.header.stable >= from {
                self.restart_at(ChainPoint {
                    lsn: from,
                    chain: frame.header.mark,
                });
            } else if self.planted.is(PlantedFault::AcceptGap) {
                self.state.received = from;
            } else {
                return self.ack(Flag::GAP);
            }
        }
        self.trim_below(frame.header.stable);
        // Overlapping bytes were received before: the same LSN of the same epoch is the same byte.
        let known = usize::try_from(self.state.received.since(from)).unwrap_or(usize::MAX);
        let Some(fresh) = frame.body.get(known..).filter(|fresh| !fresh.is_empty()) else {
            return self.ack(0);
        };
        let end = self.state.received.plus(fresh.len() as u64);
        let room = self.state.trim.plus(window.capacity());
        if end > room {
            if !self.planted.is(PlantedFault::OverrunAccepted) {
                return self.refuse(RefusalReason::Overrun, end, room);
            }
            self.state.trim = Lsn(end.0 - window.capacity()).min(self.state.held);
        }
        self.take(fresh, window)
    }

    /// Restarts the window at `link`: everything below is on the writer's disk, and this member has fallen
    /// behind it.
    fn restart_at(&mut self, link: ChainPoint) {
        self.state.trim = link.lsn;
        self.state.held = link.lsn;
        self.state.received = link.lsn;
        self.state.chain = link.chain;
    }

    /// Stores `fresh` after the received bytes, and moves `held` over every record that is now complete.
    fn take<W: Window>(&mut self, fresh: &[u8], window: &mut W) -> MemberReply {
        let mut link = self.chain_point();
        if self.state.received == self.state.held {
            // The common case: whole records, still in the cache, checked before they are copied.
            let mut rest = fresh;
            loop {
                match scan_step(rest, link, self.seed, self.planted) {
                    ScanStep::Record(header) => {
                        rest = &rest[header.length..];
                        link = header.next_point();
                    }
                    ScanStep::Incomplete(length) if length as u64 <= window.capacity() => break,
                    ScanStep::Incomplete(_) | ScanStep::Bad(_) => {
                        return self.refuse(RefusalReason::BadRecord, link.lsn, Lsn(0));
                    }
                }
            }
            window.write(self.state.received, fresh);
            self.state.received = self.state.received.plus(fresh.len() as u64);
        } else {
            window.write(self.state.received, fresh);
            self.state.received = self.state.received.plus(fresh.len() as u64);
            while let Some(header) = self.whole_record(link, self.state.received, window) {
                match header {
                    Ok(header) => link = header.next_point(),
                    Err(refusal) => {
                        self.state.received = self.state.held;
                        return self.refuse(refusal, link.lsn, Lsn(0));
                    }
                }
            }
        }
        // Bytes first, then the positions: a process killed in between has acknowledged nothing.
        self.state.held = link.lsn;
        self.state.chain = link.chain;
        self.ack(0)
    }

    /// The record at `link` in the window, if all of it lies below `end`.
    fn whole_record<W: Window>(
        &self,
        link: ChainPoint,
        end: Lsn,
        window: &W,
    ) -> Option<Result<RecordHeader, RefusalReason>> {
        let there = end.since(link.lsn);
        if there < RECORD_HEADER_BYTES as u64 {
            return None;
        }
        let mut front = [0; RECORD_HEADER_BYTES];
        copy_out(window, link.lsn, &mut front);
        let header = match RecordHeader::parse(&front) {
            Ok(header) if header.length as u64 <= window.capacity() => header,
            _ => return Some(Err(RefusalReason::BadRecord)),
        };
        if there < header.length as u64 {
            return None;
        }
        let placed = header.follows(link, self.planted);
        let whole = check_record(
            &header,
            pieces(window, link.lsn, header.length),
            self.seed,
            self.planted,
        );
        Some(if placed && whole {
            Ok(header)
        } else {
            Err(RefusalReason::BadRecord)
        })
    }

    /// Whether the bytes `trim..held` are whole records that chain up to the stored chain value.
    pub(super) fn window_checks<W: Window>(&self, window: &W) -> bool {
        let mut link = ChainPoint {
            lsn: self.state.trim,
            chain: 0,
        };
        while link.lsn < self.state.held {
            if link.lsn == self.state.trim {
                let mut front = [0; RECORD_HEADER_BYTES];
                if self.state.held.since(link.lsn) < RECORD_HEADER_BYTES as u64 {
                    return false;
                }
                copy_out(window, link.lsn, &mut front);
                let Ok(header) = RecordHeader::parse(&front) else {
                    return false;
                };
                link.chain = header.chain;
            }
            match self.whole_record(link, self.state.held, window) {
                Some(Ok(header)) => link = header.next_point(),
                _ => return false,
            }
        }
        link.lsn == self.state.held && (self.state.trim == self.state.held || link.chain == self.state.chain)
    }
}
