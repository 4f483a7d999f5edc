//! Rule 21, *nonces never repeat, whatever the disk does*: no key and nonce ever seal two different records,
//! in whichever directory of a journal, at whatever time.

use std::collections::BTreeMap;

use netram_proto::id::{Epoch, EpochSalt, Lsn};
use netram_proto::wire::{RecordHeader, crc32c};

use super::violation::fail;
use crate::world::World;

/// Key and nonce of a sealed record. All directories of the world's journal have its key; without a salt it
/// seals the records itself.
type SealUse = (Option<[u8; 16]>, Epoch, Lsn);

/// Every use of a key and nonce so far, with the CRC32C of the clear record, header included.
#[derive(Debug, Default)]
pub(crate) struct SealHistory(BTreeMap<SealUse, u32>);

/// Checks a record that is about to be sealed under the key that `salt` derives, or under the journal's own.
pub(crate) fn sealed(world: &mut World, salt: Option<EpochSalt>, header: &RecordHeader, record: &[u8]) {
    let used = (salt.map(|salt| salt.0), header.epoch, header.lsn);
    // The CRC field is not part of what is sealed.
    let contents = crc32c(&record[8..]);
    let earlier = *world.seals.0.entry(used).or_insert(contents);
    if earlier != contents {
        fail(
            21,
            format!(
                "epoch {} sealed two different records at {} under one key",
                header.epoch, header.lsn
            ),
        );
    }
}

/// Whether any record was sealed in `epoch` at `lsn`, under any key.
pub(crate) fn is_repeated(world: &World, epoch: Epoch, lsn: Lsn) -> bool {
    let mut uses = world.seals.0.keys();
    uses.any(|used| (used.1, used.2) == (epoch, lsn))
}
