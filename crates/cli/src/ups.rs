//! The options that name the UPS of a service's machine.

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;
use netram_ups::{UpsName, UpsNameError, UpsSource, UpsSourceError};
use serde::{Deserialize, Serialize};

use crate::options::UsageError;

/// The UPS of a service's machine.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(crate) struct UpsArgs {
    /// UPS that feeds this machine, as NAME@HOST or NAME@HOST:PORT of its upsd (NUT). On battery
    /// everything acknowledged is on the local disk, too, at the price of the disk's latency
    #[arg(long, value_name = "UPS", env = "NETRAM_UPS", value_parser = ups_name)]
    ups: Option<String>,
    /// User of upsd, for a UPS whose upsd waits for this machine before it turns power off
    #[arg(
        long,
        value_name = "USER",
        env = "NETRAM_UPS_USER",
        requires = "ups_password_file"
    )]
    ups_user: Option<String>,
    /// File with the password of that user
    #[arg(long, value_name = "FILE", env = "NETRAM_UPS_PASSWORD_FILE", requires = "ups_user",
        value_parser = absolute)]
    ups_password_file: Option<PathBuf>,
}

/// Checks the name of a UPS.
pub(crate) fn ups_name(text: &str) -> Result<String, UpsNameError> {
    text.parse::<UpsName>().map(|name| name.to_string())
}

/// Makes a path one for a process that is in another directory.
fn absolute(text: &str) -> std::io::Result<PathBuf> {
    std::path::absolute(text)
}

/// Reads the password for a UPS. `None`: no UPS is named.
pub(crate) fn source(
    ups: Option<&str>,
    user: Option<&str>,
    password_file: Option<&Path>,
) -> Result<Option<UpsSource>> {
    UpsSource::of(ups, user, password_file).map_err(|error| match error {
        UpsSourceError::Nameless => {
            UsageError("--ups-user and --ups-password-file need --ups".to_owned()).into()
        }
        UpsSourceError::HalfLogin => {
            UsageError("--ups-user and --ups-password-file belong together".to_owned()).into()
        }
        other => anyhow::Error::new(other),
    })
}

impl UpsArgs {
    /// Returns the UPS, if one is named.
    pub(crate) fn source(&self) -> Result<Option<UpsSource>> {
        source(
            self.ups.as_deref(),
            self.ups_user.as_deref(),
            self.ups_password_file.as_deref(),
        )
    }

    /// Returns these options as a command line has them.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let password = self
            .ups_password_file
            .as_ref()
            .map(|path| path.display().to_string());
        let all = [
            ("--ups", self.ups.clone()),
            ("--ups-user", self.ups_user.clone()),
            ("--ups-password-file", password),
        ];
        let given = all
            .into_iter()
            .filter_map(|(flag, value)| Some([flag.to_owned(), value?]));
        given.flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        ups: UpsArgs,
    }

    fn parsed(words: &[&str]) -> Result<UpsArgs, clap::Error> {
        let words = ["program"].iter().chain(words);
        Program::try_parse_from(words).map(|program| program.ups)
    }

    #[test]
    fn options_come_back_from_a_command_line_and_from_json() {
        let words = [
            "--ups",
            "rack@10.0.0.2:4000",
            "--ups-user",
            "u",
            "--ups-password-file",
            "/p",
        ];
        let ups = parsed(&words).unwrap();
        assert_eq!(ups.arguments(), words);
        let json = serde_json::to_string(&ups).unwrap();
        let back: UpsArgs = serde_json::from_str(&json).unwrap();
        assert_eq!(back.arguments(), words);
        assert!(parsed(&[]).unwrap().arguments().is_empty());
        assert!(parsed(&[]).unwrap().source().unwrap().is_none());
    }

    #[test]
    fn half_a_login_and_no_name_are_refused() {
        for words in [
            &["--ups", "rack@h", "--ups-user", "u"][..],
            &["--ups", "rack@h", "--ups-password-file", "/p"],
            &["--ups", "two words@h"],
            &["--ups", "rack@h:0"],
        ] {
            assert!(parsed(words).is_err(), "{words:?}");
        }
        let alone = source(None, Some("u"), Some(Path::new("/p")));
        assert!(alone.unwrap_err().is::<UsageError>());
        let absent = source(Some("rack"), Some("u"), Some(Path::new("/nonexistent")));
        assert!(absent.unwrap_err().to_string().contains("/nonexistent"));
    }
}
