//! The UPS in a journal's settings.

use std::path::{Path, PathBuf};

use netram_ups::UpsSource;

use super::SettingsError;

/// The UPS that feeds this machine, as settings name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpsSettings {
    /// Its name: `NAME@HOST` or `NAME@HOST:PORT`.
    pub name: Option<String>,
    /// User of its `upsd`.
    pub user: Option<String>,
    /// File with the user's password.
    pub password_file: Option<PathBuf>,
}

impl UpsSettings {
    /// The UPS, if one is named. Reads the password.
    ///
    /// # Errors
    ///
    /// [`SettingsError::Ups`] if the name or the login cannot be used.
    pub fn source(&self) -> Result<Option<UpsSource>, SettingsError> {
        let (name, user) = (self.name.as_deref(), self.user.as_deref());
        Ok(UpsSource::of(name, user, self.password_file.as_deref())?)
    }

    pub(super) fn with_environment(mut self, variable: &dyn Fn(&str) -> Option<String>) -> UpsSettings {
        let file = variable("NETRAM_UPS_PASSWORD_FILE").map(PathBuf::from);
        self.name = variable("NETRAM_UPS").or(self.name);
        self.user = variable("NETRAM_UPS_USER").or(self.user);
        self.password_file = file.or(self.password_file);
        self
    }

    /// The same, with a password file relative to `directory`.
    pub(super) fn at(self, directory: &Path) -> UpsSettings {
        UpsSettings {
            password_file: self.password_file.map(|file| directory.join(file)),
            ..self
        }
    }
}
