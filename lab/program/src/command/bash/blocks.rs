//! Operations of a thread's transactions in the persistent heap: they create, change, resize and free blocks.
//! The heap decides where a block is; its contents follow from the seed like everything else.

use super::model::{SplitMix64, StressPlan};

/// Maximum number of blocks of one thread.
pub(super) const SLOTS: usize = 12;
/// Longest block in bytes: several pages, so that both of the heap's kinds of blocks occur.
pub(super) const BLOCK_BYTES_MAX: usize = 12 * 1024;
/// Separates these random choices from those of the same transaction's ranges.
const SALT: u64 = 0x6865_6170;

/// Change of one block by a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BlockChange {
    pub(super) slot: usize,
    pub(super) op: BlockOp,
    /// Bytes of the block afterwards; empty when it is freed.
    pub(super) bytes: Vec<u8>,
}

/// Kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockOp {
    /// A new block.
    Make,
    /// A resize: `kept` bytes stay, the others are new.
    Resize { kept: usize },
    /// A change of these bytes in place.
    Write { from: usize, to: usize },
    /// A free.
    Free,
}

impl StressPlan {
    /// The change that transaction `number` of `thread` makes to its blocks. `slots` has them as they were
    /// before; an empty slot has no block.
    pub(super) fn block_change(&self, thread: usize, number: u64, slots: &[Vec<u8>]) -> Option<BlockChange> {
        let mut random =
            SplitMix64(self.seed ^ SALT ^ (thread as u64).rotate_left(48) ^ number.rotate_left(8));
        if random.once_in(2) {
            return None;
        }
        let slot = random.below(SLOTS as u64) as usize;
        let before = &slots[slot];
        let length = length(&mut random);
        let (deed, bytes) = match random.below(4) {
            _ if before.is_empty() => (BlockOp::Make, random.bytes(length)),
            0 => (BlockOp::Free, Vec::new()),
            1 => {
                let kept = length.min(before.len());
                let bytes = [&before[..kept], &random.bytes(length - kept)].concat();
                (BlockOp::Resize { kept }, bytes)
            }
            _ => {
                let from = random.below(before.len() as u64) as usize;
                let to = from + random.below((before.len() - from) as u64 + 1) as usize;
                let mut bytes = before.clone();
                bytes[from..to].copy_from_slice(&random.bytes(to - from));
                (BlockOp::Write { from, to }, bytes)
            }
        };
        Some(BlockChange {
            slot,
            op: deed,
            bytes,
        })
    }
}

/// Mostly small, now and then several pages.
fn length(random: &mut SplitMix64) -> usize {
    let most = match random.below(20) {
        0 => BLOCK_BYTES_MAX as u64,
        1..=5 => 2048,
        _ => 256,
    };
    1 + random.below(most) as usize
}

/// Encodes the blocks of all threads for the judge's file.
pub(super) fn encode<'b>(threads: impl Iterator<Item = &'b [Vec<u8>]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in threads.flatten() {
        bytes.extend_from_slice(&(block.len() as u64).to_le_bytes());
        bytes.extend_from_slice(block);
    }
    bytes
}

/// Decodes the output of [`encode`] for `threads` threads; `None` if bytes are missing or left over.
pub(super) fn decode(mut bytes: &[u8], threads: usize) -> Option<Vec<Vec<Vec<u8>>>> {
    let mut all = Vec::new();
    for _ in 0..threads {
        let mut slots = Vec::new();
        for _ in 0..SLOTS {
            let (length, rest) = bytes.split_first_chunk::<8>()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            let (block, rest) = rest.split_at_checked(length)?;
            slots.push(block.to_vec());
            bytes = rest;
        }
        all.push(slots);
    }
    bytes.is_empty().then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_follows_from_the_number_and_fits_the_blocks() {
        let plan = StressPlan { seed: 3, threads: 1 };
        let mut slots = vec![Vec::new(); SLOTS];
        let mut deeds = [0; 4];
        for number in 1..4000 {
            let Some(change) = plan.block_change(0, number, &slots) else {
                continue;
            };
            assert_eq!(plan.block_change(0, number, &slots).as_ref(), Some(&change));
            let before = &slots[change.slot];
            assert_eq!(before.is_empty(), change.op == BlockOp::Make);
            assert!(change.bytes.len() <= BLOCK_BYTES_MAX);
            match change.op {
                BlockOp::Make => deeds[0] += 1,
                BlockOp::Resize { kept } => {
                    assert_eq!(before[..kept], change.bytes[..kept]);
                    deeds[1] += 1;
                }
                BlockOp::Write { from, to } => {
                    assert_eq!(before.len(), change.bytes.len());
                    assert_eq!(before[..from], change.bytes[..from]);
                    assert_eq!(before[to..], change.bytes[to..]);
                    deeds[2] += 1;
                }
                BlockOp::Free => deeds[3] += 1,
            }
            slots[change.slot] = change.bytes;
        }
        assert!(deeds.iter().all(|count| *count > 100), "{deeds:?}");
    }

    #[test]
    fn blocks_round_trip_and_cut_ones_are_refused() {
        let mut slots = vec![Vec::new(); SLOTS];
        slots[3] = vec![1, 2, 3];
        slots[11] = vec![9; 5000];
        let bytes = encode([slots.as_slice(), &slots].into_iter());
        assert_eq!(decode(&bytes, 2), Some(vec![slots.clone(), slots]));
        assert_eq!(decode(&bytes, 1), None);
        assert_eq!(decode(&bytes[..bytes.len() - 1], 2), None);
    }
}
