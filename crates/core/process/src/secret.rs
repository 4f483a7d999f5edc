//! Files that hold a secret: who else may have read or written it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use crate::rights::{is_roots, owner_of};

/// Variable by which systemd names the directory of a service's credentials.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// Why a secret is not used.
#[derive(Debug, thiserror::Error)]
pub enum SecretRefusal {
    /// Group or others may read or write the file, so the secret may be known to them.
    #[error("it has mode {mode:04o}, so others may read it; run: chmod 600 {}", .path.display())]
    TooOpen {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The file belongs to another user, who knows the secret and may change it.
    #[error("it belongs to user {owner}, who may change it; run: chown {user} {}", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Number of its owner.
        owner: u32,
        /// Number of the user of this process.
        user: u32,
    },
    /// The file cannot be looked at.
    #[error(transparent)]
    System(#[from] io::Error),
}

/// Checks that only this user or root can have read or written the open file at `path`.
///
/// The owner is this user or root. Root also takes a file that it has put into a directory of its own and
/// given to a service's user. Nobody else has any permission, with one exception: systemd lets a service's
/// group read its credentials, which belong to root.
///
/// # Errors
///
/// One [`SecretRefusal`] a reason.
pub fn check(file: &File, path: &Path) -> Result<(), SecretRefusal> {
    check_for(file, path, None)
}

/// Checks the secret of a file that several users of a group may share: its group may have what the group of
/// that file, `shared`, has, and its owner may be the same.
///
/// # Errors
///
/// As [`check`].
pub fn check_beside(file: &File, path: &Path, shared: &Metadata) -> Result<(), SecretRefusal> {
    check_for(file, path, Some(shared))
}

fn check_for(file: &File, path: &Path, shared: Option<&Metadata>) -> Result<(), SecretRefusal> {
    let found = file.metadata()?;
    let mode = found.mode() & 0o7777;
    let groups = shared.map_or(0, |shared| shared.mode() & 0o070);
    if mode & 0o077 & !groups != 0 && !is_credential(&found, path) {
        return Err(SecretRefusal::TooOpen {
            path: path.to_owned(),
            mode,
        });
    }
    let (owner, user) = (found.uid(), geteuid());
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let is_given = || user.is_root() && matches!(owner_of([parent.unwrap_or(Path::new("."))]), Ok(None));
    let is_owners = shared.is_some_and(|shared| shared.uid() == owner);
    match owner == user.as_raw() || is_roots(owner) || is_owners || is_given() {
        true => Ok(()),
        false => Err(SecretRefusal::Foreign {
            path: path.to_owned(),
            owner,
            user: user.as_raw(),
        }),
    }
}

/// Whether the file is a credential that systemd gave this service.
fn is_credential(found: &Metadata, path: &Path) -> bool {
    let directory = std::env::var_os(CREDENTIALS).filter(|directory| !directory.is_empty());
    directory.is_some_and(|directory| is_credential_in(Path::new(&directory), found, path))
}

fn is_credential_in(directory: &Path, found: &Metadata, path: &Path) -> bool {
    let is_there = match (directory.canonicalize(), path.canonicalize()) {
        (Ok(directory), Ok(path)) => path.starts_with(directory),
        _ => false,
    };
    is_there && is_roots(found.uid()) && found.mode() & 0o037 == 0
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown};

    use super::*;

    fn secret(directory: &Path, mode: u32) -> PathBuf {
        let path = directory.join(format!("key-{mode:o}"));
        fs::write(&path, "secret").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    fn checked(path: &Path) -> Result<(), SecretRefusal> {
        check(&File::open(path).unwrap(), path)
    }

    #[test]
    fn a_secret_that_others_can_read_is_refused_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        for mode in [0o600, 0o400, 0o700] {
            checked(&secret(directory.path(), mode)).unwrap();
        }
        for mode in [0o640, 0o440, 0o604, 0o620, 0o602, 0o644] {
            let path = secret(directory.path(), mode);
            let refused = checked(&path).unwrap_err();
            assert!(matches!(refused, SecretRefusal::TooOpen { mode: seen, .. } if seen == mode));
            assert!(refused.to_string().contains("chmod 600"), "{refused}");
        }
    }

    /// A program may create a log that its group uses together (librvm).
    #[test]
    fn a_secret_beside_a_file_of_the_groups_is_the_groups_too() {
        let directory = tempfile::tempdir().unwrap();
        let (log, alone) = (secret(directory.path(), 0o664), secret(directory.path(), 0o600));
        let [log, alone] = [log, alone].map(|path| fs::metadata(path).unwrap());
        let key = secret(directory.path(), 0o660);
        let check_beside = |shared| check_beside(&File::open(&key).unwrap(), &key, shared);
        check_beside(&log).unwrap();
        assert!(matches!(check_beside(&alone), Err(SecretRefusal::TooOpen { .. })));
        fs::set_permissions(&key, Permissions::from_mode(0o664)).unwrap();
        assert!(matches!(check_beside(&log), Err(SecretRefusal::TooOpen { .. })));
    }

    /// The lender's unit has the key as a credential, which systemd makes readable for the service's group.
    #[test]
    fn a_credential_of_roots_may_be_read_by_the_group() {
        let directory = tempfile::tempdir().unwrap();
        let credentials = directory.path().join("credentials");
        fs::create_dir(&credentials).unwrap();
        let is_credential = |path: &Path| {
            let found = fs::metadata(path).unwrap();
            is_credential_in(&credentials, &found, path)
        };
        let (inside, writable) = (secret(&credentials, 0o440), secret(&credentials, 0o460));
        let outside = secret(directory.path(), 0o440);
        assert_eq!(is_credential(&inside), geteuid().is_root());
        assert!(!is_credential(&outside) && !is_credential(&writable));
        assert!(!is_credential(&secret(&credentials, 0o444)));
    }

    #[test]
    fn root_takes_a_key_that_it_gave_to_a_service_but_none_that_a_user_offers() {
        if !geteuid().is_root() {
            eprintln!("\nSKIPPED: giving files away needs root");
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = secret(directory.path(), 0o400);
        chown(&path, Some(12_345), None).unwrap();
        checked(&path).unwrap();
        chown(directory.path(), Some(12_345), None).unwrap();
        assert!(matches!(
            checked(&path),
            Err(SecretRefusal::Foreign { owner: 12_345, .. })
        ));
    }
}
