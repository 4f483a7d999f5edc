//! Fields in which a guest's driver reads the disk's size and limits (virtio 1.2, section 5.2.4), and the
//! features that say which of them count.

use netram_block::{BLOCK_BYTES, SECTOR_BYTES};
use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::limit::{QUEUES_MAX, RANGE_SECTORS_MAX, RANGES_MAX, SEGMENTS_MAX};

/// Bytes of the fields.
pub const CONFIG_BYTES: usize = 60;

/// Features of the disk.
pub fn features(read_only: bool) -> u64 {
    let always = [
        VIRTIO_F_VERSION_1,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_MQ,
    ];
    let one_way = match read_only {
        true => vec![VIRTIO_BLK_F_RO],
        false => vec![VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES],
    };
    let bits = always.into_iter().chain(one_way);
    bits.fold(VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits(), |all, bit| {
        all | 1 << bit
    })
}

/// Features of the protocol between the processes.
pub fn protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS
}

/// The fields of a disk of `bytes`. Sectors of 512 bytes are accepted, and blocks of 4,096 recommended.
pub fn fields(bytes: u64) -> [u8; CONFIG_BYTES] {
    let mut fields = [0; CONFIG_BYTES];
    let mut put = |at: usize, value: &[u8]| fields[at..at + value.len()].copy_from_slice(value);
    put(0, &(bytes / SECTOR_BYTES).to_le_bytes());
    put(12, &SEGMENTS_MAX.to_le_bytes());
    put(20, &(SECTOR_BYTES as u32).to_le_bytes());
    // Sectors of a block, as a power of two; then its alignment; least and best number of sectors.
    let exponent = (BLOCK_BYTES / SECTOR_BYTES).trailing_zeros() as u8;
    put(24, &[exponent, 0]);
    put(26, &((BLOCK_BYTES / SECTOR_BYTES) as u16).to_le_bytes());
    put(34, &(QUEUES_MAX as u16).to_le_bytes());
    for at in [36, 48] {
        put(at, &RANGE_SECTORS_MAX.to_le_bytes());
        put(at + 4, &RANGES_MAX.to_le_bytes());
    }
    // Discarded ranges are aligned to blocks; zeroed ones may lose their space.
    put(44, &((BLOCK_BYTES / SECTOR_BYTES) as u32).to_le_bytes());
    put(56, &[1]);
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_drivers_look_for_them() {
        let fields = fields(1 << 30);
        let word = |at: usize| u32::from_le_bytes(fields[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), 1 << 21, "sectors");
        assert_eq!((word(12), word(20)), (126, 512), "segments, bytes of a sector");
        assert_eq!(fields[24..28], [3, 0, 8, 0], "blocks of eight sectors");
        assert_eq!(fields[34..36], [64, 0], "queues");
        assert_eq!((word(36), word(40), word(44)), (!7, 16, 8), "discards");
        assert_eq!((word(48), word(52), fields[56]), (!7, 16, 1), "zeros");
    }

    #[test]
    fn a_disk_that_cannot_change_takes_no_discards() {
        let has = |read_only, bit: u32| features(read_only) >> bit & 1 == 1;
        assert!(has(true, VIRTIO_BLK_F_RO) && !has(false, VIRTIO_BLK_F_RO));
        assert!(!has(true, VIRTIO_BLK_F_DISCARD) && has(false, VIRTIO_BLK_F_DISCARD));
        assert!(has(true, VIRTIO_F_VERSION_1) && has(true, VIRTIO_BLK_F_FLUSH));
    }
}
