//! The lender's side of a channel: turns appends that arrive in any order, duplicated or not at all, into
//! appends in order.
//!
//! Appends beyond a missing range are buffered, within bounds, and the range is reported to the writer at
//! once and only once. If that report or the very last datagram is lost, the writer's timer notices. The
//! machine stores no position of its own: the member says how far it has received, so a member that restarts
//! its window needs no extra step here.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::id::{Epoch, Lsn};
use crate::limit::{REASSEMBLY_BYTES_MAX, REASSEMBLY_FRAGMENTS_MAX};
use crate::wire::{Flag, Frame, FrameHeader};

/// A buffered append: bytes before it are still missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendFragment {
    /// The header as received.
    pub header: FrameHeader,
    /// Bytes of the log from the header's LSN.
    pub body: Box<[u8]>,
}

impl AppendFragment {
    /// The fragment as a frame.
    pub fn frame(&self) -> Frame<'_> {
        Frame {
            header: self.header,
            body: &self.body,
        }
    }

    fn end(&self) -> Lsn {
        self.header.lsn.plus(self.body.len() as u64)
    }
}

/// Bytes that have not arrived although later ones have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MissingRange {
    /// The first byte missing.
    pub from: Lsn,
    /// The first byte after it that has arrived.
    pub to: Lsn,
}

/// The reaction to an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReassemblyVerdict {
    /// Pass it to the member now, then call [`Reassembly::next`].
    Deliver,
    /// All of it was received before.
    Duplicate,
    /// The append was buffered until earlier bytes arrive. A newly found missing range is to be reported to
    /// the writer.
    Buffered(Option<MissingRange>),
    /// The buffer is full: the append counts as lost.
    Full,
}

/// Appends that wait for earlier bytes.
#[derive(Clone, Debug, Default)]
pub struct Reassembly {
    fragments: BTreeMap<Lsn, AppendFragment>,
    bytes: usize,
    /// The highest byte that has arrived, gaps or not: an append that begins beyond it reveals a new missing
    /// range.
    reach: Lsn,
    /// The window that the fragments are for: epoch and generation of its join.
    window: (Epoch, u32),
    /// A datagram has arrived since the last answer.
    heard: bool,
}

impl Reassembly {
    /// Judges an append; `received` is the end of the member's bytes.
    ///
    /// An append in order costs three comparisons, any other an allocation and a copy.
    pub fn handle(&mut self, frame: &Frame<'_>, received: Lsn) -> ReassemblyVerdict {
        let from = frame.header.lsn;
        let Some(end) = from.0.checked_add(frame.body.len() as u64).map(Lsn) else {
            // The member refuses it.
            return ReassemblyVerdict::Deliver;
        };
        // An append with `FRESH` restarts the window; the member judges it.
        if from <= received || frame.header.flags & Flag::FRESH != 0 {
            let known = end <= received && !frame.body.is_empty();
            return if known {
                ReassemblyVerdict::Duplicate
            } else {
                ReassemblyVerdict::Deliver
            };
        }
        if frame.body.is_empty() {
            return ReassemblyVerdict::Duplicate;
        }
        if let Some(piece) = self.fragments.get(&from)
            && piece.end() >= end
        {
            return ReassemblyVerdict::Duplicate;
        }
        if !self.has_room(frame.body.len(), received) {
            return ReassemblyVerdict::Full;
        }
        let piece = AppendFragment {
            header: frame.header,
            body: Box::from(frame.body),
        };
        self.bytes += piece.body.len();
        if let Some(shorter) = self.fragments.insert(from, piece) {
            self.bytes -= shorter.body.len();
        }
        let reach = self.reach.max(received);
        self.reach = reach.max(end);
        ReassemblyVerdict::Buffered((from > reach).then_some(MissingRange {
            from: reach,
            to: from,
        }))
    }

    /// The next append that the member can accept, now that it has received everything below `received`.
    pub fn next(&mut self, received: Lsn) -> Option<AppendFragment> {
        while let Some(first) = self.fragments.first_entry() {
            if *first.key() > received {
                return None;
            }
            let piece = first.remove();
            self.bytes -= piece.body.len();
            if piece.end() > received {
                return Some(piece);
            }
        }
        None
    }

    /// Notes that a datagram has arrived, useful or not. The next answer reports it.
    pub fn on_datagram(&mut self) {
        self.heard = true;
    }

    /// Whether the next answer is to carry `HEARD`, which is then reset. Without that flag the writer could
    /// not tell a slow member from one that multicast does not reach.
    pub fn take_heard(&mut self) -> bool {
        core::mem::take(&mut self.heard)
    }

    /// Drops everything: the window restarts, or the epoch changes.
    pub fn clear(&mut self) {
        *self = Reassembly::default();
    }

    /// Prepares for appends to the window that `epoch` joined as `generation`. Drops fragments of any other
    /// window.
    pub fn begin_window(&mut self, epoch: Epoch, generation: u32) {
        if self.window != (epoch, generation) {
            self.clear();
            self.window = (epoch, generation);
        }
    }

    /// Bytes that are buffered.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether `more` bytes may be buffered. Fragments that arrived by another path in the meantime are
    /// dropped first.
    fn has_room(&mut self, more: usize, received: Lsn) -> bool {
        let fits = |reassembly: &Reassembly| {
            reassembly.bytes + more <= REASSEMBLY_BYTES_MAX
                && reassembly.fragments.len() < REASSEMBLY_FRAGMENTS_MAX
        };
        if fits(self) {
            return true;
        }
        self.fragments.retain(|_, piece| {
            let needed = piece.end() > received;
            if !needed {
                self.bytes -= piece.body.len();
            }
            needed
        });
        fits(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FrameKind;
    use alloc::vec;
    use alloc::vec::Vec;

    fn append(from: u64, body: &[u8]) -> Frame<'_> {
        let header = FrameHeader {
            lsn: Lsn(from),
            ..FrameHeader::new(FrameKind::Append)
        };
        Frame { header, body }
    }

    #[test]
    fn a_new_window_starts_with_an_empty_buffer() {
        let mut reassembly = Reassembly::default();
        reassembly.begin_window(Epoch(1), 1);
        assert_eq!(reassembly.handle(&append(10, &[1; 10]), Lsn(0)), missing(0, 10));
        reassembly.begin_window(Epoch(1), 1);
        assert_eq!(reassembly.bytes(), 10);
        reassembly.begin_window(Epoch(1), 2);
        assert_eq!(reassembly.bytes(), 0);
        assert_eq!(reassembly.handle(&append(10, &[2; 10]), Lsn(0)), missing(0, 10));
        reassembly.begin_window(Epoch(2), 2);
        assert_eq!(reassembly.next(Lsn(10)), None);
    }

    fn missing(from: u64, to: u64) -> ReassemblyVerdict {
        ReassemblyVerdict::Buffered(Some(MissingRange {
            from: Lsn(from),
            to: Lsn(to),
        }))
    }

    #[test]
    fn a_missing_range_is_reported_once_and_later_appends_follow_when_it_is_filled() {
        let mut reassembly = Reassembly::default();
        assert_eq!(
            reassembly.handle(&append(0, &[1; 10]), Lsn(0)),
            ReassemblyVerdict::Deliver
        );
        assert_eq!(reassembly.handle(&append(20, &[3; 10]), Lsn(10)), missing(10, 20));
        assert_eq!(
            reassembly.handle(&append(30, &[4; 10]), Lsn(10)),
            ReassemblyVerdict::Buffered(None)
        );
        assert_eq!(reassembly.handle(&append(50, &[6; 10]), Lsn(10)), missing(40, 50));
        assert_eq!(
            reassembly.handle(&append(20, &[3; 10]), Lsn(10)),
            ReassemblyVerdict::Duplicate,
            "duplicate"
        );
        assert_eq!(reassembly.next(Lsn(10)), None);
        assert_eq!(
            reassembly.handle(&append(10, &[2; 10]), Lsn(10)),
            ReassemblyVerdict::Deliver
        );
        assert_eq!(reassembly.next(Lsn(20)).unwrap().header.lsn, Lsn(20));
        assert_eq!(reassembly.next(Lsn(30)).unwrap().header.lsn, Lsn(30));
        assert_eq!(reassembly.next(Lsn(40)), None);
        assert_eq!(
            reassembly.handle(&append(40, &[5; 15]), Lsn(40)),
            ReassemblyVerdict::Deliver,
            "fragmented differently the second time"
        );
        let last = reassembly.next(Lsn(55)).unwrap();
        assert_eq!((last.header.lsn, &*last.body), (Lsn(50), &[6; 10][..]));
        assert_eq!(reassembly.bytes(), 0);
    }

    #[test]
    fn swapped_datagrams_are_delivered_in_order() {
        let mut reassembly = Reassembly::default();
        assert_eq!(reassembly.handle(&append(10, &[2; 10]), Lsn(0)), missing(0, 10));
        assert_eq!(
            reassembly.handle(&append(0, &[1; 10]), Lsn(0)),
            ReassemblyVerdict::Deliver
        );
        assert_eq!(reassembly.next(Lsn(10)).unwrap().header.lsn, Lsn(10));
        assert_eq!(
            reassembly.handle(&append(20, &[3; 10]), Lsn(20)),
            ReassemblyVerdict::Deliver
        );
        assert_eq!(
            reassembly.handle(&append(0, &[1; 10]), Lsn(30)),
            ReassemblyVerdict::Duplicate
        );
    }

    #[test]
    fn the_buffer_is_bounded_and_bytes_received_otherwise_free_space() {
        let mut reassembly = Reassembly::default();
        let body = vec![7; 4096];
        let mut at = 8192;
        let mut kept = 0;
        while reassembly.handle(&append(at, &body), Lsn(0)) != ReassemblyVerdict::Full {
            at += 4096;
            kept += 1;
        }
        assert_eq!(kept, REASSEMBLY_BYTES_MAX / 4096);
        assert!(reassembly.bytes() <= REASSEMBLY_BYTES_MAX);
        assert_eq!(
            reassembly.handle(&append(at, &body), Lsn(0)),
            ReassemblyVerdict::Full,
            "nothing is reported: the writer's timer finds it"
        );
        let received = Lsn(8192 + 4096);
        assert!(matches!(
            reassembly.handle(&append(at, &body), received),
            ReassemblyVerdict::Buffered(None)
        ));

        let mut reassembly = Reassembly::default();
        for index in 1.. {
            if reassembly.handle(&append(index * 2, &[1]), Lsn(0)) == ReassemblyVerdict::Full {
                assert_eq!(index as usize, REASSEMBLY_FRAGMENTS_MAX + 1);
                break;
            }
        }
    }

    #[test]
    fn an_append_whose_end_overflows_is_left_to_the_member_to_refuse() {
        let mut reassembly = Reassembly::default();
        assert_eq!(
            reassembly.handle(&append(u64::MAX, &[1, 2]), Lsn(0)),
            ReassemblyVerdict::Deliver
        );
        assert_eq!(
            reassembly.handle(&append(5, &[]), Lsn(0)),
            ReassemblyVerdict::Duplicate
        );
    }

    #[test]
    fn any_order_with_any_duplicates_gives_the_bytes_in_order() {
        let mut draw = 7_u64;
        let mut roll = |below: usize| {
            draw = draw
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (draw >> 33) as usize % below
        };
        for _ in 0..300 {
            let bytes: Vec<u8> = (0..600).map(|index| (index % 251) as u8).collect();
            let mut pieces: Vec<(usize, usize)> = Vec::new();
            for _ in 0..2 {
                let mut at = 0;
                while at < bytes.len() {
                    let length = (1 + roll(40)).min(bytes.len() - at);
                    pieces.push((at, length));
                    at += length;
                }
            }
            for index in (1..pieces.len()).rev() {
                pieces.swap(index, roll(index + 1));
            }
            let mut reassembly = Reassembly::default();
            let mut got: Vec<u8> = Vec::new();
            let give = |got: &mut Vec<u8>, frame: &Frame<'_>| {
                let known = got.len() - frame.header.lsn.0 as usize;
                got.extend_from_slice(frame.body.get(known..).unwrap_or_default());
            };
            for (at, length) in pieces {
                let frame = append(at as u64, &bytes[at..at + length]);
                if reassembly.handle(&frame, Lsn(got.len() as u64)) == ReassemblyVerdict::Deliver {
                    give(&mut got, &frame);
                    while let Some(piece) = reassembly.next(Lsn(got.len() as u64)) {
                        give(&mut got, &piece.frame());
                    }
                }
            }
            assert_eq!(got, bytes);
            assert_eq!(reassembly.bytes(), 0);
        }
    }
}
