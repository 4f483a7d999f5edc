//! A UPS to watch, as settings name it: its name, and a login if its `upsd` waits for this machine.

use std::io;
use std::path::Path;

use crate::login::{UpsLogin, UpsLoginError};
use crate::monitor::UpsMonitor;
use crate::name::{UpsName, UpsNameError};
use crate::power::PowerStatus;

/// A UPS that can be watched.
#[derive(Clone, Debug)]
pub struct UpsSource {
    /// Its name.
    pub name: UpsName,
    login: Option<UpsLogin>,
}

/// Why settings name no UPS that can be watched.
#[derive(Debug, thiserror::Error)]
pub enum UpsSourceError {
    /// A user or a password file is named, and no UPS.
    #[error("the user of upsd and its password file need the name of a UPS")]
    Nameless,
    /// A user is named without a password file, or a password file without a user.
    #[error("the user of upsd and its password file belong together")]
    HalfLogin,
    /// The name is not one.
    #[error(transparent)]
    Name(#[from] UpsNameError),
    /// The login cannot be used.
    #[error(transparent)]
    Login(#[from] UpsLoginError),
}

impl UpsSource {
    /// Reads the password. `None`: no UPS is named.
    ///
    /// # Errors
    ///
    /// One [`UpsSourceError`] a reason.
    pub fn of(
        ups: Option<&str>,
        user: Option<&str>,
        password_file: Option<&Path>,
    ) -> Result<Option<UpsSource>, UpsSourceError> {
        let Some(ups) = ups else {
            return match user.is_some() || password_file.is_some() {
                true => Err(UpsSourceError::Nameless),
                false => Ok(None),
            };
        };
        let login = match (user, password_file) {
            (Some(user), Some(path)) => Some(UpsLogin::load(user, path)?),
            (None, None) => None,
            _ => return Err(UpsSourceError::HalfLogin),
        };
        let name = ups.parse()?;
        Ok(Some(UpsSource { name, login }))
    }

    /// Whether both are the same UPS with the same user.
    pub fn is_same(&self, other: &UpsSource) -> bool {
        let user = |source: &UpsSource| source.login.as_ref().map(|login| login.user().to_owned());
        self.name == other.name && user(self) == user(other)
    }

    /// Watches the UPS. `on_change` is called on the watching thread with each new status; it must not block.
    ///
    /// # Errors
    ///
    /// No thread or descriptor is left.
    pub fn watch(self, on_change: impl FnMut(&PowerStatus) + Send + 'static) -> io::Result<UpsMonitor> {
        UpsMonitor::start(&self.name, self.login, on_change)
    }
}
