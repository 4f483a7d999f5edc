//! The user and password with which this program logs in at `upsd`.
//!
//! `upsd` tells everybody the UPS's status. A login is for the end: NUT's `upsmon` on the machine that turns
//! the UPS off waits for those that are logged in, up to its `HOSTSYNC` (15 s).

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use netram_process::secret::{self, SecretRefusal};
use zeroize::Zeroizing;

use crate::limit::WORD_BYTES_MAX;

/// A user of `upsd.users`, and its password.
#[derive(Clone)]
pub struct UpsLogin {
    user: String,
    password: Zeroizing<String>,
}

/// Why a user or password cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum UpsLoginError {
    /// The file cannot be read.
    #[error("cannot read the password file {}: {why}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        why: io::Error,
    },
    /// The file's mode or owner let others read the password.
    #[error("the password file {} is refused: {why}", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: SecretRefusal,
    },
    /// The first line is empty or too long, or the file has more than one.
    #[error("the password file {} must have one line, of 1 to {WORD_BYTES_MAX} bytes", path.display())]
    NoPassword {
        /// The file.
        path: PathBuf,
    },
    /// The user's name is empty or too long, or has control characters.
    #[error("`{0}` is no user of upsd")]
    User(String),
}

impl UpsLogin {
    /// Reads the password from a file that only this user or root can have read or written.
    ///
    /// # Errors
    ///
    /// One [`UpsLoginError`] a reason.
    pub fn load(user: &str, path: &Path) -> Result<UpsLogin, UpsLoginError> {
        let unreadable = |why| UpsLoginError::Unreadable {
            path: path.to_owned(),
            why,
        };
        let file = File::open(path).map_err(unreadable)?;
        secret::check(&file, path).map_err(|why| UpsLoginError::Exposed {
            path: path.to_owned(),
            why,
        })?;
        // With room for one byte too many, so that no growth leaves a copy behind.
        let mut text = Zeroizing::new(String::with_capacity(2 * WORD_BYTES_MAX));
        let most = WORD_BYTES_MAX as u64 + 2;
        let read = file.take(most).read_to_string(&mut text);
        read.map_err(unreadable)?;
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let line = line.strip_suffix('\r').unwrap_or(line);
        UpsLogin::new(user, line).map_err(|error| match error {
            UpsLoginError::NoPassword { .. } => UpsLoginError::NoPassword {
                path: path.to_owned(),
            },
            other => other,
        })
    }

    /// A login with this password.
    ///
    /// # Errors
    ///
    /// `User` or `NoPassword`: it cannot be sent in a line.
    pub fn new(user: &str, password: &str) -> Result<UpsLogin, UpsLoginError> {
        let fits =
            |word: &str| (1..=WORD_BYTES_MAX).contains(&word.len()) && !word.chars().any(char::is_control);
        if !fits(user) {
            return Err(UpsLoginError::User(user.to_owned()));
        }
        if !fits(password) {
            return Err(UpsLoginError::NoPassword { path: PathBuf::new() });
        }
        Ok(UpsLogin {
            user: user.to_owned(),
            password: Zeroizing::new(password.to_owned()),
        })
    }

    /// The user's name.
    pub fn user(&self) -> &str {
        &self.user
    }

    pub(crate) fn password(&self) -> &str {
        &self.password
    }
}

impl fmt::Debug for UpsLogin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("UpsLogin")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn loaded(text: &str, mode: u32) -> Result<String, UpsLoginError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        UpsLogin::load("lender", &path).map(|login| login.password().to_owned())
    }

    #[test]
    fn a_password_is_one_line_that_others_cannot_read() {
        assert_eq!(loaded("secret\n", 0o600).unwrap(), "secret");
        assert_eq!(loaded("two words \"x\"", 0o400).unwrap(), "two words \"x\"");
        assert!(matches!(
            loaded("secret", 0o644),
            Err(UpsLoginError::Exposed { .. })
        ));
        let long = "p".repeat(WORD_BYTES_MAX + 1);
        for text in ["", "\n", "a\nb\n", &long, &format!("{long}{long}"), "a\0"] {
            assert!(
                matches!(loaded(text, 0o600), Err(UpsLoginError::NoPassword { .. })),
                "{text:?}"
            );
        }
        let absent = UpsLogin::load("lender", Path::new("/nonexistent/password"));
        assert!(matches!(absent, Err(UpsLoginError::Unreadable { .. })));
    }

    #[test]
    fn no_line_that_is_logged_has_the_password() {
        let login = UpsLogin::new("lender", "secret").unwrap();
        assert!(!format!("{login:?}").contains("secret"));
        assert!(matches!(
            UpsLogin::new("a\nb", "secret"),
            Err(UpsLoginError::User(_))
        ));
    }
}
