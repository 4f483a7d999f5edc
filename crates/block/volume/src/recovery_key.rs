//! The recovery key of a volume: without it a data lender's copy cannot be restored.
//!
//! A data lender has the key of the volume's records, since it reads them into its copy. It must not hand
//! that key on: whoever may open data sessions could then read every volume. So the client gives it the same
//! key once more, *wrapped* under the volume's recovery key, and only these bytes go to a client that
//! restores. The volume has the wrapped key in its file `recovery`; the recovery key itself is shown once and
//! kept elsewhere.
//!
//! ```text
//!  0  form: 1 wrapped                    0 in the clear
//!  1  nonce, 12                          data key, 32
//! 13  data key, 32, sealed (AES-256-GCM)
//! 45  tag, 16
//! ```
//!
//! The associated data is a label with the ids of volume and journal. A key in the clear is given only over
//! links without protection, which never leave the machine. Data lenders of earlier releases give the 32
//! bytes alone.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use netram_block_machine::ReplicaIdentity;
use netram_journal::seal::{DataKey, KEY_BYTES};
use netram_process::secret::{self, SecretRefusal};
use netram_transport::Security;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

const TEXT_PREFIX: &str = "netram-recovery-1:";
/// Maximum bytes of a recovery key's file, which has one line.
const FILE_BYTES_MAX: u64 = 256;
const FORM_CLEAR: u8 = 0;
const FORM_WRAPPED: u8 = 1;
const LABEL: &[u8] = b"netram wrapped data key, version 1";

/// A volume's recovery key: 32 random bytes, which are erased from memory on drop. The text form, which is
/// also the file's only line, is `netram-recovery-1:` and 64 hexadecimal digits.
pub struct RecoveryKey(Zeroizing<[u8; KEY_BYTES]>);

/// Why a recovery key cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryKeyError {
    /// The file cannot be read.
    #[error("cannot read the recovery key {path}: {source}")]
    Unreadable {
        /// The key's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Others may have read or changed the file.
    #[error("the recovery key {path}: {source}")]
    Exposed {
        /// The key's file.
        path: PathBuf,
        /// Mode or owner that it has.
        source: SecretRefusal,
    },
    /// The text is no recovery key.
    #[error("not a recovery key: expected one line, `netram-recovery-1:` and 64 hexadecimal digits")]
    Malformed,
    /// A file of that name exists. It may hold the only copy of another key.
    #[error("the file {path} exists; a recovery key is never overwritten, name another file")]
    Exists {
        /// The existing file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("cannot write the recovery key {path}: {source}")]
    Unwritable {
        /// The key's file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Why a wrapped key gives no data key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnwrapError {
    /// The data lender was given no wrapped key.
    #[error(
        "the data lender has no wrapped key of this volume: its client is of an earlier release, or the volume has no recovery key. \
         Run `netram volume rekey` on the volume and let it reach its data lender; if the volume is lost, run it on the copy on the data \
         lender's machine, or take the copy over there with `netram volume takeover`"
    )]
    Nothing,
    /// The restore was given no recovery key.
    #[error(
        "the copy opens only with the volume's recovery key, which was shown when the volume was created; name its file with --recovery-key-file"
    )]
    Locked,
    /// The recovery key is not this volume's, or no longer.
    #[error("this is not the volume's recovery key, or `netram volume rekey` has replaced it since")]
    OtherKey,
    /// The bytes have an unknown form.
    #[error("the data lender's wrapped key is malformed; run the same release on both machines")]
    Malformed,
}

impl RecoveryKey {
    /// Draws a new key.
    pub fn generate() -> RecoveryKey {
        RecoveryKey(Zeroizing::new(random()))
    }

    /// Reads a key's file, or standard input if `path` is `-`. A file that others may have read or changed is
    /// refused ([`secret::check`]).
    ///
    /// # Errors
    /// [`RecoveryKeyError`] if the file cannot be read, is exposed, or has no key.
    pub fn load(path: &Path) -> Result<RecoveryKey, RecoveryKeyError> {
        let unreadable = |source| RecoveryKeyError::Unreadable {
            path: path.to_owned(),
            source,
        };
        if path == Path::new("-") {
            return read_key(io::stdin()).map_err(unreadable)?;
        }
        let file = File::open(path).map_err(unreadable)?;
        secret::check(&file, path).map_err(|source| RecoveryKeyError::Exposed {
            path: path.to_owned(),
            source,
        })?;
        read_key(file).map_err(unreadable)?
    }

    /// Writes the key to a new file of mode 0600 and syncs it.
    ///
    /// # Errors
    /// `Exists` if there is a file of that name, `Unwritable` if it cannot be written.
    pub fn save_new(&self, path: &Path) -> Result<(), RecoveryKeyError> {
        let unwritable = |source| RecoveryKeyError::Unwritable {
            path: path.to_owned(),
            source,
        };
        let mut options = OpenOptions::new();
        let mut file = match options.write(true).create_new(true).mode(0o600).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let path = path.to_owned();
                return Err(RecoveryKeyError::Exists { path });
            }
            Err(error) => return Err(unwritable(error)),
        };
        let mut line = self.to_text();
        line.push('\n');
        let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_all());
        written.map_err(|source| {
            // Half a key is useless, and would make the next attempt fail with `Exists`.
            let _ = std::fs::remove_file(path);
            unwritable(source)
        })
    }

    /// The key's text form, in memory that is erased on drop.
    pub fn to_text(&self) -> Zeroizing<String> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // The capacity includes a line's end: growing would leave a copy of the key in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(TEXT_PREFIX.len() + 2 * KEY_BYTES + 1));
        text.push_str(TEXT_PREFIX);
        for byte in self.0.iter() {
            text.push(DIGITS[usize::from(byte >> 4)].into());
            text.push(DIGITS[usize::from(byte & 15)].into());
        }
        text
    }

    /// Wraps the data key of a volume's journal.
    pub(crate) fn wrap(&self, identity: &ReplicaIdentity, key: &DataKey) -> Vec<u8> {
        let nonce: [u8; NONCE_LEN] = random();
        let mut sealed = Zeroizing::new(*key.as_bytes());
        let aad = Aad::from(associated(identity));
        let nonce_of = Nonce::assume_unique_for_key(nonce);
        let tag = self
            .cipher()
            .seal_in_place_separate_tag(nonce_of, aad, &mut sealed[..]);
        let tag = tag.expect("a key is far smaller than what one nonce may seal");
        [&[FORM_WRAPPED][..], &nonce, &sealed[..], tag.as_ref()].concat()
    }

    fn cipher(&self) -> LessSafeKey {
        let key = UnboundKey::new(&AES_256_GCM, &self.0[..]).expect("the key has the cipher's length");
        LessSafeKey::new(key)
    }
}

impl FromStr for RecoveryKey {
    type Err = RecoveryKeyError;

    fn from_str(text: &str) -> Result<RecoveryKey, RecoveryKeyError> {
        let digits = text.strip_prefix(TEXT_PREFIX).unwrap_or_default();
        if digits.len() != 2 * KEY_BYTES || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(RecoveryKeyError::Malformed);
        }
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        for (byte, pair) in key.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
            let value = |digit: u8| char::from(digit).to_digit(16).unwrap_or_default() as u8;
            *byte = value(pair[0]) << 4 | value(pair[1]);
        }
        Ok(RecoveryKey(key))
    }
}

impl std::fmt::Debug for RecoveryKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("RecoveryKey(secret)")
    }
}

/// The bytes that a client gives its data lender for a later restore: those of the volume's file, or the key
/// itself where links have no protection. Empty if the volume has no recovery key.
pub(crate) fn wrapped_for(security: &Security, file: Option<Vec<u8>>, key: &DataKey) -> Vec<u8> {
    match (file, security) {
        (Some(wrapped), _) => wrapped,
        (None, Security::Insecure) => [&[FORM_CLEAR][..], key.as_bytes()].concat(),
        (None, Security::Key(_)) => Vec::new(),
    }
}

/// Whether the bytes are a wrapped key, which a restored volume keeps.
pub(crate) fn is_wrapped(bytes: &[u8]) -> bool {
    bytes.first() == Some(&FORM_WRAPPED)
}

/// Opens what a data lender gave for a restore.
pub(crate) fn unwrap(
    wrapped: &[u8],
    identity: &ReplicaIdentity,
    recovery: Option<&RecoveryKey>,
) -> Result<DataKey, UnwrapError> {
    if let Ok(key) = <[u8; KEY_BYTES]>::try_from(wrapped) {
        return Ok(DataKey::from_bytes(key));
    }
    let (form, rest) = wrapped.split_first().ok_or(UnwrapError::Nothing)?;
    if *form == FORM_CLEAR {
        let key = rest.try_into().map_err(|_| UnwrapError::Malformed)?;
        return Ok(DataKey::from_bytes(key));
    }
    let (nonce, sealed) = rest
        .split_first_chunk::<NONCE_LEN>()
        .ok_or(UnwrapError::Malformed)?;
    if *form != FORM_WRAPPED || sealed.len() != KEY_BYTES + AES_256_GCM.tag_len() {
        return Err(UnwrapError::Malformed);
    }
    let recovery = recovery.ok_or(UnwrapError::Locked)?;
    let mut sealed = Zeroizing::new(sealed.to_vec());
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let aad = Aad::from(associated(identity));
    let opened = recovery.cipher().open_in_place(nonce, aad, &mut sealed);
    let opened = opened.map_err(|_| UnwrapError::OtherKey)?;
    let key = (&*opened).try_into().map_err(|_| UnwrapError::Malformed)?;
    Ok(DataKey::from_bytes(key))
}

fn associated(identity: &ReplicaIdentity) -> Vec<u8> {
    [
        LABEL,
        &identity.volume.to_le_bytes(),
        &identity.journal.0.to_le_bytes(),
    ]
    .concat()
}

fn read_key(file: impl Read) -> io::Result<Result<RecoveryKey, RecoveryKeyError>> {
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
    match file.take(FILE_BYTES_MAX).read_to_string(&mut text) {
        Ok(_) => Ok(text.trim_end().parse()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Err(RecoveryKeyError::Malformed)),
        Err(error) => Err(error),
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.expect("Linux supplies random bytes once it has booted");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use netram_proto::id::JournalId;
    use std::os::unix::fs::{PermissionsExt, chown};

    const IDENTITY: ReplicaIdentity = ReplicaIdentity {
        volume: 7,
        journal: JournalId(8),
    };

    #[test]
    fn only_its_own_recovery_key_opens_the_key_of_a_volume() {
        let (data, recovery) = (DataKey::generate(), RecoveryKey::generate());
        let wrapped = recovery.wrap(&IDENTITY, &data);
        let opened =
            |identity: &ReplicaIdentity, key| unwrap(&wrapped, identity, key).map(|key| *key.as_bytes());
        assert_eq!(opened(&IDENTITY, Some(&recovery)), Ok(*data.as_bytes()));
        assert_eq!(opened(&IDENTITY, None), Err(UnwrapError::Locked));
        let other = RecoveryKey::generate();
        assert_eq!(opened(&IDENTITY, Some(&other)), Err(UnwrapError::OtherKey));
        let elsewhere = ReplicaIdentity {
            volume: 9,
            ..IDENTITY
        };
        assert_eq!(opened(&elsewhere, Some(&recovery)), Err(UnwrapError::OtherKey));
        // 32 bytes are the key that a data lender of an earlier release gives.
        for cut in (0..wrapped.len()).filter(|cut| *cut != KEY_BYTES) {
            assert!(unwrap(&wrapped[..cut], &IDENTITY, Some(&recovery)).is_err());
        }
        let windows = wrapped.windows(KEY_BYTES);
        assert!(windows.into_iter().all(|bytes| bytes != data.as_bytes()));
    }

    #[test]
    fn the_key_itself_is_given_only_where_links_have_no_protection() {
        let key = DataKey::generate();
        let clear = wrapped_for(&Security::Insecure, None, &key);
        assert_eq!(
            unwrap(&clear, &IDENTITY, None).map(|key| *key.as_bytes()),
            Ok(*key.as_bytes())
        );
        let protected = Security::Key(netram_transport::ClusterKey::generate());
        assert!(wrapped_for(&protected, None, &key).is_empty());
        let wrapped = RecoveryKey::generate().wrap(&IDENTITY, &key);
        for security in [protected, Security::Insecure] {
            assert_eq!(wrapped_for(&security, Some(wrapped.clone()), &key), wrapped);
        }
    }

    #[test]
    fn a_saved_key_loads_again_and_others_may_not_read_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("recovery");
        let key = RecoveryKey::generate();
        key.save_new(&path).unwrap();
        assert_eq!(*RecoveryKey::load(&path).unwrap().to_text(), *key.to_text());
        assert!(matches!(
            RecoveryKey::generate().save_new(&path),
            Err(RecoveryKeyError::Exists { .. })
        ));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let refused = RecoveryKey::load(&path).unwrap_err();
        let is_too_open =
            |refused: &SecretRefusal| matches!(refused, SecretRefusal::TooOpen { mode: 0o640, .. });
        assert!(matches!(&refused, RecoveryKeyError::Exposed { source, .. } if is_too_open(source)));
        assert!(refused.to_string().contains("chmod 600"), "{refused}");
        let text = key.to_text();
        for bad in ["", &text[1..], &text[..text.len() - 1], &text.replace(':', "=")] {
            assert!(matches!(
                bad.parse::<RecoveryKey>(),
                Err(RecoveryKeyError::Malformed)
            ));
        }
        assert_eq!(format!("{key:?}"), "RecoveryKey(secret)");
    }

    /// A user's file in a directory of that user's: root restored a volume with a key that the user knew.
    #[test]
    fn a_key_of_another_users_is_refused() {
        const USER: u32 = 12_345;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("recovery");
        RecoveryKey::generate().save_new(&path).unwrap();
        let given = chown(&path, Some(USER), None).and_then(|()| chown(directory.path(), Some(USER), None));
        if let Err(error) = given {
            eprintln!("\nSKIPPED: giving files away needs root: {error}");
            return;
        }
        let refused = RecoveryKey::load(&path).unwrap_err();
        let is_foreign =
            |refused: &SecretRefusal| matches!(refused, SecretRefusal::Foreign { owner: USER, .. });
        assert!(matches!(&refused, RecoveryKeyError::Exposed { source, .. } if is_foreign(source)));
    }
}
