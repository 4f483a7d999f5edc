//! Changes of a thread's transactions to its memory. A seed, the thread's number and the transaction's number
//! determine all of them, so that the count found in recovered memory determines every other byte.

use serde::{Deserialize, Serialize};

use super::blocks::{BlockChange, SLOTS};

/// Bytes of one thread's area in each segment: three sizes, so that one transaction changes near and distant
/// places.
pub(super) const AREAS: [usize; 3] = [64 * 1024, 32 * 1024, 128 * 1024];
/// Bytes at the beginning of a thread's first area with its transaction count.
const COUNT_BYTES: usize = 8;
/// Maximum number of bytes that one transaction changes. A record must fit half of the smallest log.
const TRANSACTION_BYTES_MAX: usize = 16 * 1024;

/// Parameters that both sides of a stress run know.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct StressPlan {
    pub(super) seed: u64,
    pub(super) threads: usize,
}

/// Bytes that a transaction changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AreaChange {
    pub(super) segment: usize,
    /// Offset from the area's beginning.
    pub(super) offset: usize,
    pub(super) bytes: Vec<u8>,
}

/// One thread's memory after `count` transactions.
#[derive(Clone, Debug)]
pub(super) struct ThreadArea {
    thread: usize,
    pub(super) count: u64,
    pub(super) images: [Vec<u8>; AREAS.len()],
    /// Its blocks in the heap; an empty slot has none.
    pub(super) blocks: Vec<Vec<u8>>,
}

/// Changes of one transaction.
#[derive(Clone, Debug)]
pub(super) struct TransactionOps {
    pub(super) changes: Vec<AreaChange>,
    pub(super) block: Option<BlockChange>,
}

/// SplitMix64: one word of state, and every seed is good.
#[derive(Clone, Debug)]
pub(super) struct SplitMix64(pub(super) u64);

impl SplitMix64 {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// A number below `bound`, or zero.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// True once in `many` times.
    pub(super) fn once_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    pub(super) fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.fill(&mut bytes);
        bytes
    }

    fn fill(&mut self, into: &mut [u8]) {
        for chunk in into.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

impl StressPlan {
    /// Bytes of a segment.
    pub(super) fn segment_bytes(&self, segment: usize) -> usize {
        self.threads * AREAS[segment]
    }

    /// Changes of transaction `number` of `thread`, in this order; ranges may overlap, touch and repeat.
    pub(super) fn transaction(&self, thread: usize, number: u64) -> Vec<AreaChange> {
        let mut random = SplitMix64(self.seed ^ (thread as u64).rotate_left(48) ^ number.rotate_left(8));
        let count = match random.below(20) {
            0 => 10 + random.below(40),
            _ => 1 + random.below(4),
        };
        let mut changes: Vec<AreaChange> = Vec::with_capacity(count as usize + 1);
        let mut left = TRANSACTION_BYTES_MAX;
        for _ in 0..count {
            let length = match random.below(20) {
                0 => random.below(8192),
                1..=5 => random.below(1024),
                _ => 1 + random.below(64),
            };
            let length = (length as usize).min(left);
            left -= length;
            let (segment, offset) = match changes.last() {
                // Beside the previous range, over it, or into it.
                Some(last) if random.once_in(3) => {
                    let reach = last.bytes.len() as u64 + 1;
                    (last.segment, last.offset + random.below(reach) as usize)
                }
                _ => {
                    let segment = random.below(AREAS.len() as u64) as usize;
                    (segment, random.below(AREAS[segment] as u64) as usize)
                }
            };
            // The count's bytes are changed only by the count itself.
            let first = if segment == 0 { COUNT_BYTES } else { 0 };
            let offset = offset.clamp(first, AREAS[segment] - length);
            let bytes = random.bytes(length);
            changes.push(AreaChange {
                segment,
                offset,
                bytes,
            });
        }
        let place = random.below(changes.len() as u64 + 1) as usize;
        changes.insert(
            place,
            AreaChange {
                segment: 0,
                offset: 0,
                bytes: number.to_le_bytes().to_vec(),
            },
        );
        changes
    }
}

impl ThreadArea {
    /// Before the first transaction.
    pub(super) fn new(thread: usize) -> ThreadArea {
        ThreadArea {
            thread,
            count: 0,
            images: AREAS.map(|bytes| vec![0; bytes]),
            blocks: vec![Vec::new(); SLOTS],
        }
    }

    /// Memory as found; the count in it says after how many transactions.
    pub(super) fn found(thread: usize, images: [Vec<u8>; AREAS.len()], blocks: Vec<Vec<u8>>) -> ThreadArea {
        ThreadArea {
            thread,
            count: count_in(&images[0]),
            images,
            blocks,
        }
    }

    /// Applies the next transaction to the images and blocks, and returns it.
    pub(super) fn advance(&mut self, plan: &StressPlan) -> TransactionOps {
        self.count += 1;
        let changes = plan.transaction(self.thread, self.count);
        for change in &changes {
            let image = &mut self.images[change.segment];
            image[change.offset..change.offset + change.bytes.len()].copy_from_slice(&change.bytes);
        }
        let block = plan.block_change(self.thread, self.count, &self.blocks);
        if let Some(change) = &block {
            self.blocks[change.slot].clone_from(&change.bytes);
        }
        TransactionOps { changes, block }
    }

    /// Applies transactions up to `count`.
    pub(super) fn advance_to(&mut self, plan: &StressPlan, count: u64) {
        while self.count < count {
            self.advance(plan);
        }
    }

    /// The first different byte of `found`: segment, and offset from the area's beginning.
    pub(super) fn difference(&self, found: &[&[u8]; AREAS.len()]) -> Option<(usize, usize)> {
        for (segment, (expected, found)) in self.images.iter().zip(found).enumerate() {
            if expected == found {
                continue;
            }
            let at = expected.iter().zip(*found).position(|(a, b)| a != b);
            return Some((segment, at.unwrap_or(expected.len().min(found.len()))));
        }
        None
    }
}

/// The count at the beginning of a thread's first area.
pub(super) fn count_in(image: &[u8]) -> u64 {
    let front = image.first_chunk::<COUNT_BYTES>();
    u64::from_le_bytes(*front.expect("an area is larger than its count"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: StressPlan = StressPlan { seed: 7, threads: 2 };

    #[test]
    fn a_transaction_follows_from_its_number_and_stays_in_its_area() {
        for number in 1..2000 {
            let changes = PLAN.transaction(1, number);
            assert_eq!(changes, PLAN.transaction(1, number));
            assert_ne!(changes, PLAN.transaction(0, number));
            let bytes: usize = changes.iter().map(|change| change.bytes.len()).sum();
            assert!(bytes <= TRANSACTION_BYTES_MAX + COUNT_BYTES);
            for change in &changes {
                assert!(change.offset + change.bytes.len() <= AREAS[change.segment]);
            }
        }
    }

    #[test]
    fn memory_follows_from_the_count_and_a_changed_byte_is_found() {
        let mut area = ThreadArea::new(0);
        area.advance_to(&PLAN, 500);
        assert_eq!(count_in(&area.images[0]), 500);
        let mut again = ThreadArea::new(0);
        again.advance_to(&PLAN, 499);
        let images = area.images.clone();
        let slices = |images: &[Vec<u8>; 3]| area.difference(&[&images[0], &images[1], &images[2]]);
        assert_eq!(slices(&images), None);
        assert!(slices(&again.images).is_some());
        for (segment, at) in [(0, 0), (1, 31_000), (2, 131_071)] {
            let mut wrong = images.clone();
            wrong[segment][at] ^= 1;
            assert_eq!(slices(&wrong), Some((segment, at)));
        }
    }
}
