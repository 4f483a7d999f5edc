//! Entry points of the fuzz target `fuzz/checks` for a volume's small files.

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::RecordKind;

use crate::record;
use crate::superblock::{VolumeId, VolumeSuperblock};

/// Checks a superblock's payload: a decoded one encodes to an equal one.
pub fn superblock(bytes: &[u8]) {
    if let Ok(found) = VolumeSuperblock::decode(bytes) {
        let again = VolumeSuperblock::decode(&found.encode()).expect("what was read is read again");
        assert_eq!(again, found);
    }
}

/// Seeds for [`superblock`].
pub fn superblock_seeds() -> Vec<Vec<u8>> {
    let block = VolumeSuperblock {
        volume: VolumeId(7),
        journal: JournalId(5),
        bytes: 1 << 20,
        applied: Lsn(64),
        applying: Lsn(640),
        missing: Some(Lsn(9)),
    };
    vec![block.encode().to_vec()]
}

/// Checks a record behind a byte that is its kind: a decoded change lies inside the volume.
pub fn change(bytes: &[u8]) {
    const BYTES: u64 = 1 << 20;
    let Some((kind, payload)) = bytes.split_first() else {
        return;
    };
    let Ok(Some(change)) = record::decode(RecordKind(*kind), payload, BYTES) else {
        return;
    };
    let span = match change {
        record::VolumeChange::Write { span, .. } | record::VolumeChange::Zero(span) => span,
    };
    assert!(span.offset() + span.length() <= BYTES);
    let mut again = vec![0; change.payload_bytes()];
    change.encode(&mut again);
    assert_eq!(again, payload, "a record has only one encoding");
    assert_eq!(change.kind(), RecordKind(*kind));
}

/// Seeds for [`change`]: a write and zeros.
pub fn change_seeds() -> Vec<Vec<u8>> {
    let write = [&[record::KIND_WRITE.0], &512_u64.to_le_bytes()[..], &[7; 512]].concat();
    let zero = [
        &[record::KIND_ZERO.0],
        &4096_u64.to_le_bytes()[..],
        &4096_u64.to_le_bytes(),
    ]
    .concat();
    vec![write, zero]
}
