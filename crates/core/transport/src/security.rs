//! The choice of a link's protection: a named key file, a default one, or `insecure`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::key::{ClusterKey, KeyError};
use crate::key_ring::KeyRing;

/// Key file of a machine, for its daemons and for root.
const MACHINE_FILE: &str = "/etc/netram/key";
/// Variable that names the key file for every program of its environment.
pub const KEY_VARIABLE: &str = "NETRAM_KEY_FILE";

/// The protection of links.
#[derive(Clone, Debug)]
pub enum Security {
    /// Links are encrypted, and both ends must prove that they hold the cluster key.
    Key(ClusterKey),
    /// Links are plain and unauthenticated; only local addresses are allowed.
    Insecure,
}

/// The protection of a listener's links.
#[derive(Clone, Debug)]
pub enum ListenSecurity {
    /// All clients have one key, the cluster key.
    Key(ClusterKey),
    /// Each client has a key of its own.
    Clients(KeyRing),
    /// Links are plain and unauthenticated; only local addresses are served.
    Insecure,
}

impl From<Security> for ListenSecurity {
    fn from(security: Security) -> ListenSecurity {
        match security {
            Security::Key(key) => ListenSecurity::Key(key),
            Security::Insecure => ListenSecurity::Insecure,
        }
    }
}

/// Why the protection of links cannot be chosen.
#[derive(Debug, thiserror::Error)]
pub enum SecurityError {
    /// Both a key file and `insecure` were given.
    #[error("`insecure` contradicts the key file {}; leave out one of them", .0.display())]
    KeyAndInsecure(PathBuf),
    /// Neither was given, and no default key file exists.
    #[error(
        "no cluster key is given, and there is no {file}: copy the key that the lenders were started with there, or name \
         its file (key_file, {KEY_VARIABLE}), or ask for no protection on this machine only (insecure)",
        file = .0.display()
    )]
    NoKey(PathBuf),
    /// The key file cannot be loaded.
    #[error("the key {path} cannot be loaded: {source}")]
    Key {
        /// The key file.
        path: PathBuf,
        /// The reason.
        source: KeyError,
    },
}

impl Security {
    /// Returns the protection that `key_file` or `insecure` asks for; without either the key in
    /// [`default_key_file`].
    ///
    /// # Errors
    ///
    /// [`SecurityError`] if both were given, or if there is no key that can be loaded.
    pub fn choose(key_file: Option<PathBuf>, insecure: bool) -> Result<Security, SecurityError> {
        let path = match (key_file, insecure) {
            (Some(path), true) => return Err(SecurityError::KeyAndInsecure(path)),
            (None, true) => return Ok(Security::Insecure),
            (Some(path), false) => path,
            (None, false) => default_key_file().ok_or_else(|| SecurityError::NoKey(new_key_file()))?,
        };
        match ClusterKey::load(&path) {
            Ok(key) => Ok(Security::Key(key)),
            Err(source) => Err(SecurityError::Key { path, source }),
        }
    }
}

/// Returns the key file that programs use if none is named: that of `NETRAM_KEY_FILE`; without the variable
/// `netram/key` in `$XDG_CONFIG_HOME` or `~/.config`, except for root; or `/etc/netram/key`. `None`: there is
/// no such file.
pub fn default_key_file() -> Option<PathBuf> {
    match variable(KEY_VARIABLE) {
        Some(named) => Some(named.into()),
        // If the lookup fails, the file may exist: loading it says why it cannot be read (rule 17).
        None => files_of_user()
            .into_iter()
            .find(|file| file.try_exists().unwrap_or(true)),
    }
}

/// Returns where this user's programs look first: a new key is put there.
pub fn new_key_file() -> PathBuf {
    files_of_user().swap_remove(0)
}

/// A variable that is empty counts as unset, because shells cannot unset one for a single command.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

fn files_of_user() -> Vec<PathBuf> {
    let is_root = rustix::process::geteuid().is_root();
    files(is_root, variable("XDG_CONFIG_HOME"), variable("HOME"))
}

fn files(is_root: bool, config: Option<OsString>, home: Option<OsString>) -> Vec<PathBuf> {
    files_of(is_root, config, home, "netram/key", MACHINE_FILE)
}

/// Returns where a user's programs look for a file: `own` in `config` (`$XDG_CONFIG_HOME`) or in `.config` of
/// `home`, except for root, and then `machine`.
pub fn files_of(
    is_root: bool,
    config: Option<OsString>,
    home: Option<OsString>,
    own: &str,
    machine: &str,
) -> Vec<PathBuf> {
    let absolute = |text: OsString| Some(PathBuf::from(text)).filter(|path| path.is_absolute());
    let config = config
        .and_then(absolute)
        .or_else(|| home.and_then(absolute).map(|home| home.join(".config")));
    let own = config.filter(|_| !is_root).map(|config| config.join(own));
    own.into_iter().chain([Path::new(machine).to_owned()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_own_key_comes_before_the_machines() {
        let text = |text: &str| Some(OsString::from(text));
        let machine = Path::new(MACHINE_FILE);
        assert_eq!(files(true, text("/c"), text("/h")), [machine]);
        assert_eq!(
            files(false, text("/c"), text("/h")),
            [Path::new("/c/netram/key"), machine]
        );
        let own = Path::new("/h/.config/netram/key");
        assert_eq!(files(false, text("relative"), text("/h")), [own, machine]);
        assert_eq!(files(false, None, None), [machine]);
    }

    #[test]
    fn a_key_and_no_protection_contradict_each_other() {
        let named = || Some(PathBuf::from("/nowhere"));
        assert!(matches!(Security::choose(None, true), Ok(Security::Insecure)));
        assert!(matches!(
            Security::choose(named(), true),
            Err(SecurityError::KeyAndInsecure(_))
        ));
        assert!(matches!(
            Security::choose(named(), false),
            Err(SecurityError::Key { .. })
        ));
    }
}
