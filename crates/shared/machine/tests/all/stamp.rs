//! Encoding of stamps.

use netram_proto::wire::ByteReader;
use netram_shared_machine::{LockId, LockVersion, Stamp, StampError};
use proptest::collection::btree_map;
use proptest::prelude::*;

fn locks() -> impl Strategy<Value = Stamp> {
    let lock = prop_oneof![0..40u32, any::<u32>()];
    let version = prop_oneof![1..300u64, 1..=u64::MAX];
    btree_map(lock, (version, any::<bool>()), 0..60).prop_map(|locks| {
        let mut stamp = Stamp::default();
        for (lock, (version, written)) in locks {
            let list = if written {
                &mut stamp.written
            } else {
                &mut stamp.read
            };
            list.push((LockId(lock), LockVersion(version)));
        }
        stamp
    })
}

proptest! {
    #[test]
    fn every_stamp_decodes_to_itself_and_no_prefix_decodes(stamp in locks(), more in any::<u8>()) {
        let mut bytes = Vec::new();
        stamp.encode(&mut bytes);
        for end in 0..bytes.len() {
            prop_assert_eq!(Stamp::decode(&mut ByteReader::new(&bytes[..end])), Err(StampError::Short));
        }
        bytes.push(more);
        let mut cursor = ByteReader::new(&bytes);
        prop_assert_eq!(Stamp::decode(&mut cursor), Ok(stamp));
        prop_assert_eq!(cursor.rest(), &[more]);
    }

    #[test]
    fn any_bytes_are_a_stamp_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        if let Ok(stamp) = Stamp::decode(&mut ByteReader::new(&bytes)) {
            prop_assert!(stamp.written.is_sorted_by(|a, b| a.0 < b.0));
            prop_assert!(stamp.read.is_sorted_by(|a, b| a.0 < b.0));
        }
    }
}
