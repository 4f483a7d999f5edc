//! Entry points for fuzzers (`fuzz/checks`) only: the store that an earlier process left.

use netram_proto::wire::crc32c;

use crate::slot::{SlotState, StoredSignature, decode, encode};
use crate::superblock::{BYTES, StoreGeometry, StoreSuperblock, superblock_bytes};

const COPY_BYTES: usize = 128;

/// Decodes a copy of a slot's state, whose checksum is corrected if the first byte is odd. Encoding it again
/// must give the same bytes.
pub fn slot(bytes: &[u8]) {
    let Some((mend, bytes)) = bytes.split_first() else {
        return;
    };
    let mut copy = [0; COPY_BYTES];
    for (into, byte) in copy.iter_mut().zip(bytes) {
        *into = *byte;
    }
    if mend & 1 != 0 {
        let crc = crc32c(&copy[..COPY_BYTES - 4]);
        copy[COPY_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    }
    if let Some(found) = decode(&copy) {
        assert!(found.sequence > 0);
        let again = encode(found.sequence, &found.state, &found.signature);
        assert_eq!(decode(&again), Some(found));
    }
}

/// Valid slot states.
pub fn slot_seeds() -> Vec<Vec<u8>> {
    let copy = encode(7, &SlotState::default(), &StoredSignature::default());
    vec![[&[0], &copy[..]].concat(), [&[1], &copy[..90]].concat()]
}

/// Decodes a superblock, whose checksum is corrected if the first byte is odd.
pub fn superblock(bytes: &[u8]) {
    let Some((mend, bytes)) = bytes.split_first() else {
        return;
    };
    let mut block = [0; BYTES];
    for (into, byte) in block.iter_mut().zip(bytes) {
        *into = *byte;
    }
    if mend & 1 != 0 {
        let length = superblock_bytes(&block);
        let crc = crc32c(&block[..length - 4]);
        block[length - 4..length].copy_from_slice(&crc.to_le_bytes());
    }
    if let Some(found) = StoreSuperblock::decode(&block) {
        assert_eq!(StoreSuperblock::decode(&found.encode()), Some(found));
    }
}

/// Valid superblocks.
pub fn superblock_seeds() -> Vec<Vec<u8>> {
    let block = StoreSuperblock {
        incarnation: netram_proto::id::Incarnation(7),
        boot: 1 << 100,
        geometry: StoreGeometry {
            slots: 4,
            slot_bytes: 4096,
            chunk_bytes: 8192,
            chunks: 9,
        },
        closed: false,
        took_up: None,
    };
    let closed = StoreSuperblock {
        closed: true,
        took_up: Some(netram_proto::id::Incarnation(9)),
        ..block
    };
    let seed = |block: StoreSuperblock| [&[1], &block.encode()[..]].concat();
    vec![seed(block), seed(closed)]
}
