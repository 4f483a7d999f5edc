//! The cluster key: the one secret that clients and lenders of a cluster share.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use netram_process::secret::{self, SecretRefusal};
use ring::rand::{SecureRandom, SystemRandom};
use zeroize::Zeroizing;

use crate::locked_key::LockedKey;

/// Bytes of a cluster key.
pub const KEY_BYTES: usize = 32;
const TEXT_PREFIX: &str = "netram-key-1:";
/// Maximum bytes of a key file. A key file is one line; a longer file is something else and is not read into
/// memory.
const FILE_BYTES_MAX: u64 = 256;

/// 32 random bytes that prove membership of a cluster. Clones share one copy in memory ([`LockedKey`]), which
/// is erased with the last of them.
///
/// The text form, which is also the file's only line, is `netram-key-1:` and 64 hexadecimal digits.
#[derive(Clone)]
pub struct ClusterKey(Arc<LockedKey>);

/// Why a key cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key file {}: {source}", path.display())]
    Unreadable {
        /// The key file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Group or others can read or write the file, so the key may be known to them already.
    #[error(
        "the key file {} has mode {mode:04o}, others may read it; run: chmod 600 {}", path.display(), path.display()
    )]
    TooOpen {
        /// The key file.
        path: PathBuf,
        /// The file's permission bits.
        mode: u32,
    },
    /// The file belongs to another user, who knows the key and may change it.
    #[error("the key file {} belongs to user {owner}, who may change it; chown it to root or to the user who uses it", path.display())]
    Foreign {
        /// The key file.
        path: PathBuf,
        /// Number of its owner.
        owner: u32,
    },
    /// The text is not a key.
    #[error("not a netram key: expected one line, `netram-key-1:` and 64 hexadecimal digits")]
    Malformed,
    /// A file of that name exists. Keys are never overwritten, since the old one may be the only copy.
    #[error("the file {} exists; a key is never overwritten, move it away first", path.display())]
    Exists {
        /// The existing file.
        path: PathBuf,
    },
    /// The file cannot be written.
    #[error("cannot write the key file {}: {source}", path.display())]
    Unwritable {
        /// The key file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl ClusterKey {
    /// Generates a random key.
    ///
    /// # Panics
    /// If the kernel provides no random bytes.
    pub fn generate() -> ClusterKey {
        let key = LockedKey::new(|bytes| {
            if SystemRandom::new().fill(bytes).is_err() {
                panic!("the kernel gives no random bytes; no key can be made");
            }
        });
        ClusterKey(Arc::new(key))
    }

    /// Reads a key file and refuses one that group or others can read or write, or that another user than
    /// this one and root owns. A service's systemd credential may be readable for its group.
    ///
    /// # Errors
    /// `Unreadable` if the file cannot be read, `TooOpen` for its mode, `Foreign` for its owner, `Malformed`
    /// for its contents.
    pub fn load(path: &Path) -> Result<ClusterKey, KeyError> {
        let unreadable = |source| KeyError::Unreadable {
            path: path.to_owned(),
            source,
        };
        let file = File::open(path).map_err(unreadable)?;
        // Mode and owner are those of the open file, and so of the bytes read below.
        secret::check(&file, path).map_err(|refusal| match refusal {
            SecretRefusal::TooOpen { path, mode } => KeyError::TooOpen { path, mode },
            SecretRefusal::Foreign { path, owner, .. } => KeyError::Foreign { path, owner },
            SecretRefusal::System(error) => unreadable(error),
        })?;
        let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
        match file.take(FILE_BYTES_MAX).read_to_string(&mut text) {
            Ok(_) => text.trim_end().parse(),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Err(KeyError::Malformed),
            Err(error) => Err(unreadable(error)),
        }
    }

    /// Writes the key to a new file of mode 0600 and syncs it.
    ///
    /// # Errors
    /// `Exists` if there is a file of that name, `Unwritable` if it cannot be written.
    pub fn save_new(&self, path: &Path) -> Result<(), KeyError> {
        let mut file = match OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
        {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(KeyError::Exists {
                    path: path.to_owned(),
                });
            }
            Err(source) => {
                return Err(KeyError::Unwritable {
                    path: path.to_owned(),
                    source,
                });
            }
        };
        let mut line = self.to_text();
        line.push('\n');
        file.write_all(line.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(|source| {
                // Half a key is useless, and would make the next attempt fail with `Exists`.
                let _ = std::fs::remove_file(path);
                KeyError::Unwritable {
                    path: path.to_owned(),
                    source,
                }
            })
    }

    /// The key's text form, in memory that is erased on drop.
    pub fn to_text(&self) -> Zeroizing<String> {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // The capacity includes the line's end: growing would leave a copy of the key in freed memory.
        let mut text = Zeroizing::new(String::with_capacity(TEXT_PREFIX.len() + 2 * KEY_BYTES + 1));
        text.push_str(TEXT_PREFIX);
        for byte in self.secret() {
            text.push(DIGITS[usize::from(byte >> 4)].into());
            text.push(DIGITS[usize::from(byte & 15)].into());
        }
        text
    }

    /// The secret itself, for the handshake.
    pub(crate) fn secret(&self) -> &[u8; KEY_BYTES] {
        self.0.bytes()
    }
}

impl PartialEq for ClusterKey {
    /// Compares every byte regardless of differences, so that the time taken reveals nothing.
    fn eq(&self, other: &ClusterKey) -> bool {
        self.secret()
            .iter()
            .zip(other.secret())
            .fold(0, |difference, (a, b)| difference | (a ^ b))
            == 0
    }
}

impl Eq for ClusterKey {}

impl FromStr for ClusterKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<ClusterKey, KeyError> {
        let digits = text
            .strip_prefix(TEXT_PREFIX)
            .ok_or(KeyError::Malformed)?
            .as_bytes();
        if digits.len() != 2 * KEY_BYTES {
            return Err(KeyError::Malformed);
        }
        let key = LockedKey::try_new(|bytes| {
            for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
                *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
            }
            Ok(())
        })?;
        Ok(ClusterKey(Arc::new(key)))
    }
}

fn hex_digit(digit: u8) -> Result<u8, KeyError> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(KeyError::Malformed),
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("ClusterKey(secret)")
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_saved_key_loads_as_the_same_key_with_mode_0600() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let key = ClusterKey::generate();
        key.save_new(&path).unwrap();
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(ClusterKey::load(&path).unwrap() == key);
        assert!(ClusterKey::generate() != key);
    }

    #[test]
    fn a_key_is_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let first = ClusterKey::generate();
        first.save_new(&path).unwrap();
        assert!(matches!(
            ClusterKey::generate().save_new(&path),
            Err(KeyError::Exists { .. })
        ));
        assert!(ClusterKey::load(&path).unwrap() == first);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        ClusterKey::generate().save_new(&path).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o602, 0o644] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let error = ClusterKey::load(&path).unwrap_err();
            assert!(matches!(error, KeyError::TooOpen { mode: seen, .. } if seen == mode));
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn malformed_keys_are_refused() {
        let good = ClusterKey::generate().to_text();
        assert!(good.parse::<ClusterKey>().is_ok());
        for bad in [
            String::new(),
            good[1..].to_owned(),
            good[..good.len() - 1].to_owned(),
            format!("{}0", *good),
            good.replace("key-1", "key-2"),
            format!("{TEXT_PREFIX}{}", "g".repeat(64)),
        ] {
            assert!(
                matches!(bad.parse::<ClusterKey>(), Err(KeyError::Malformed)),
                "{bad}"
            );
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        std::fs::write(&path, [0xff; 300]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(ClusterKey::load(&path), Err(KeyError::Malformed)));
    }

    #[test]
    fn debug_does_not_reveal_the_secret() {
        let key = ClusterKey::generate();
        assert_eq!(format!("{key:?}"), "ClusterKey(secret)");
    }
}
