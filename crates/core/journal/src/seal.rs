//! Encryption of records: AES-256-GCM under a key that never leaves this machine. A lender holds only
//! ciphertext and cannot forge a record that recovery would accept.
//!
//! The nonce is the record's epoch and LSN. It never repeats: an epoch is durable before its first record,
//! every opening takes a new one, and within an epoch an LSN is written once. The record's header (without
//! lengths and CRC) is the associated data. Costs about 80 ns for 128 B, 0.5 µs for 4 KiB.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use netram_process::files::{self, FileAccess, PRIVATE};
use netram_process::secret::{self, SecretRefusal};
use netram_proto::limit::{RECORD_HEADER_BYTES, SEAL_TAG_BYTES};
use netram_proto::wire::RecordHeader;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use crate::paths::JournalPaths;
use crate::random::random;

/// Bytes of a journal's data key.
pub const KEY_BYTES: usize = 32;
/// The authenticated part of a record's header: from the LSN to the payload length.
const AUTHENTICATED: std::ops::Range<usize> = 8..RECORD_HEADER_BYTES;

/// The key that seals one journal's records. Erased from memory on drop.
pub struct DataKey(Zeroizing<[u8; KEY_BYTES]>);

/// Encrypts and decrypts records with a [`DataKey`].
pub struct RecordSealer(LessSafeKey);

impl DataKey {
    /// Generates a random key.
    pub fn generate() -> DataKey {
        DataKey(Zeroizing::new(random()))
    }

    /// Wraps the bytes of an existing key.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> DataKey {
        DataKey(Zeroizing::new(bytes))
    }

    /// The key's bytes, for a process that is trusted with the journal's contents.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Writes the key to a new file that only its owner can read, and syncs it.
    ///
    /// # Errors
    /// The file exists or cannot be written.
    pub fn save_new(&self, path: &Path) -> io::Result<()> {
        let mut file = files::create_new(path, PRIVATE)?;
        file.write_all(&self.0[..])?;
        file.sync_all()
    }

    /// Reads the key from its file.
    ///
    /// # Errors
    /// The file cannot be read, others may have read it, or it does not hold exactly one key.
    pub fn load(path: &Path) -> io::Result<DataKey> {
        DataKey::load_checked(path, |file| secret::check(file, path))
    }

    /// Reads the key of a journal. The group that may write the log may have it: a program may create a log
    /// that its users share (librvm).
    ///
    /// # Errors
    /// As [`DataKey::load`].
    pub(crate) fn of(paths: &JournalPaths) -> io::Result<DataKey> {
        let path = paths.key();
        let log = std::fs::symlink_metadata(paths.log())?;
        DataKey::load_checked(&path, |file| secret::check_beside(file, &path, &log))
    }

    fn load_checked(
        path: &Path,
        check: impl FnOnce(&File) -> Result<(), SecretRefusal>,
    ) -> io::Result<DataKey> {
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        let mut file = files::open(path, FileAccess::Read)?;
        check(&file).map_err(|refusal| io::Error::new(io::ErrorKind::PermissionDenied, refusal))?;
        file.read_exact(&mut key[..])?;
        if file.read(&mut [0])? != 0 {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "not a data key: too long",
            ));
        }
        Ok(DataKey(key))
    }

    /// The cipher for this key.
    pub fn sealer(&self) -> RecordSealer {
        let key = UnboundKey::new(&AES_256_GCM, &self.0[..]).expect("the key has the cipher's length");
        RecordSealer(LessSafeKey::new(key))
    }
}

impl RecordSealer {
    /// Encrypts the payload of `record` in place and writes the tag behind it. The header is already written.
    pub fn seal(&self, header: &RecordHeader, record: &mut [u8]) {
        assert!(header.sealed);
        let (front, rest) = record.split_at_mut(RECORD_HEADER_BYTES);
        let (payload, rest) = rest.split_at_mut(header.payload);
        let sealed =
            self.0
                .seal_in_place_separate_tag(nonce(header), Aad::from(&front[AUTHENTICATED]), payload);
        let tag = sealed.expect("a record is far smaller than what one nonce may seal");
        rest[..SEAL_TAG_BYTES].copy_from_slice(tag.as_ref());
    }

    /// Decrypts the payload of `record` into `plain`, which is overwritten. `None` if this journal's writer
    /// did not seal it.
    pub fn open<'a>(&self, header: &RecordHeader, record: &[u8], plain: &'a mut Vec<u8>) -> Option<&'a [u8]> {
        let payload = RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + header.payload;
        plain.clear();
        if !header.sealed {
            plain.extend_from_slice(&record[payload]);
            return Some(plain);
        }
        plain.extend_from_slice(&record[payload.start..payload.end + SEAL_TAG_BYTES]);
        let opened = self
            .0
            .open_in_place(nonce(header), Aad::from(&record[AUTHENTICATED]), plain);
        opened.ok().map(|payload| &*payload)
    }
}

fn nonce(header: &RecordHeader) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..4].copy_from_slice(&header.epoch.0.to_le_bytes());
    bytes[4..].copy_from_slice(&header.lsn.0.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use netram_proto::id::{Epoch, Lsn};
    use netram_proto::port::RecordKind;
    use netram_proto::wire::ChainPoint;

    /// Anybody on the machine could read it, and nothing said so.
    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_remedy() {
        use std::os::unix::fs::PermissionsExt;

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data.key");
        DataKey::generate().save_new(&path).unwrap();
        DataKey::load(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let refused = DataKey::load(&path).err().unwrap().to_string();
        assert!(
            refused.contains("0644") && refused.contains("chmod 600"),
            "{refused}"
        );
    }

    #[test]
    fn a_sealed_record_opens_and_no_tampering_goes_unseen() {
        let sealer = DataKey::generate().sealer();
        let link = ChainPoint {
            lsn: Lsn(64),
            chain: 1,
        };
        let header = RecordHeader::new(link, Epoch(2), Lsn(0), RecordKind(16), true, 11);
        let mut record = vec![0; header.length];
        header.write(&mut record);
        record[RECORD_HEADER_BYTES..][..11].copy_from_slice(b"hello world");
        sealer.seal(&header, &mut record);
        assert!(!record.windows(5).any(|window| window == b"hello"));
        let mut plain = Vec::new();
        assert_eq!(
            sealer.open(&header, &record, &mut plain),
            Some(&b"hello world"[..])
        );
        for at in 8..RECORD_HEADER_BYTES + 11 + SEAL_TAG_BYTES {
            let mut bad = record.clone();
            bad[at] ^= 1;
            assert_eq!(sealer.open(&header, &bad, &mut plain), None, "byte {at}");
        }
    }
}
