//! Reassembles messages from datagrams, which must come in order: if one is missing, the message is dropped.

use netram_proto::id::Lsn;
use netram_proto::wire::{FrameHeader, FrameKind};
use netram_shared_machine::limit::{HINT_BYTES_MAX, HINT_NEEDS_MAX};

/// Maximum bytes of a message.
const MESSAGE_MAX: usize = HINT_BYTES_MAX + HINT_NEEDS_MAX * 20 + 64;

/// Reassembly state of one sender.
#[derive(Debug, Default)]
pub(super) struct HintReassembly {
    message: u32,
    total: usize,
    bytes: Vec<u8>,
}

/// Header of a message's first datagram. The others have the same header, except for the offset of their
/// part.
pub(super) fn header(message: u32, total: usize) -> FrameHeader {
    FrameHeader {
        mark: message,
        stable: Lsn(total as u64),
        ..FrameHeader::new(FrameKind::Share)
    }
}

impl HintReassembly {
    /// Adds a datagram, and returns the message if it is complete.
    pub(super) fn take<'a>(&'a mut self, header: &FrameHeader, body: &'a [u8]) -> Option<&'a [u8]> {
        let total = usize::try_from(header.stable.0).ok()?;
        if header.kind != FrameKind::Share || total > MESSAGE_MAX || body.is_empty() {
            return None;
        }
        if header.lsn == Lsn(0) {
            self.bytes.clear();
            (self.message, self.total) = (header.mark, total);
            if body.len() == total {
                return Some(body);
            }
        }
        let next = header.mark == self.message && total == self.total;
        let fits = header.lsn.0 == self.bytes.len() as u64 && self.bytes.len() + body.len() <= total;
        if !next || !fits {
            self.bytes.clear();
            // No later part fits until a new message begins.
            self.total = usize::MAX;
            return None;
        }
        self.bytes.extend_from_slice(body);
        (self.bytes.len() == total).then_some(&self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netram_proto::multicast::fragment_append;

    fn datagrams(message: u32, bytes: &[u8]) -> Vec<(FrameHeader, Vec<u8>)> {
        let pieces = fragment_append(header(message, bytes.len()), bytes.len(), 300);
        let piece = |(header, length): (FrameHeader, usize)| {
            let at = header.lsn.0 as usize;
            (header, bytes[at..at + length].to_vec())
        };
        pieces.map(piece).collect()
    }

    fn take_all(pieces: &mut HintReassembly, datagrams: &[(FrameHeader, Vec<u8>)]) -> Vec<Vec<u8>> {
        let taken = datagrams
            .iter()
            .filter_map(|(header, body)| pieces.take(header, body).map(<[u8]>::to_vec));
        taken.collect()
    }

    #[test]
    fn a_message_comes_back_as_it_was_and_a_lost_part_costs_that_message_alone() {
        let long: Vec<u8> = (0..2000_u32).map(|index| index as u8).collect();
        let mut pieces = HintReassembly::default();
        let whole = datagrams(1, &long);
        assert!(whole.len() > 3);
        assert_eq!(take_all(&mut pieces, &whole), [&long[..]]);
        assert_eq!(
            take_all(&mut pieces, &datagrams(2, b"short")),
            [b"short".to_vec()]
        );
        for lost in 0..whole.len() {
            let mut some = datagrams(3, &long);
            some.remove(lost);
            some.extend(datagrams(4, b"behind"));
            assert_eq!(take_all(&mut pieces, &some), [b"behind".to_vec()], "{lost}");
            assert_eq!(take_all(&mut pieces, &datagrams(5, &long)), [&long[..]]);
        }
    }

    #[test]
    fn parts_out_of_order_doubled_or_of_two_messages_make_none() {
        let long = [7; 1000];
        let mut pieces = HintReassembly::default();
        let good = datagrams(1, &long);
        let swapped = [good[0].clone(), good[2].clone(), good[1].clone(), good[3].clone()];
        assert!(take_all(&mut pieces, &swapped).is_empty());
        let doubled = [&good[..2], &good[1..]].concat();
        assert!(take_all(&mut pieces, &doubled).is_empty());
        let mixed = [&good[..2], &datagrams(2, &long)[2..]].concat();
        assert!(take_all(&mut pieces, &mixed).is_empty());
        let mut longer = good.clone();
        longer
            .iter_mut()
            .for_each(|(header, _)| header.stable = Lsn(u64::MAX));
        assert!(take_all(&mut pieces, &longer).is_empty());
        assert_eq!(take_all(&mut pieces, &good).len(), 1);
    }
}
