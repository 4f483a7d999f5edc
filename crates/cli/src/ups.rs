//! The options that name a UPS, and what a client's service does when its machine is on battery.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use netram_journal::DiskDemand;
use netram_ups::{PowerState, PowerStatus, UpsLogin, UpsMonitor, UpsName, UpsNameError};
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

/// A UPS that can be watched.
#[derive(Debug)]
pub(crate) struct UpsPlace {
    pub(crate) name: UpsName,
    login: Option<UpsLogin>,
}

impl UpsPlace {
    /// Reads the password. `None`: no UPS is named.
    pub(crate) fn of(
        ups: Option<&str>,
        user: Option<&str>,
        password_file: Option<&PathBuf>,
    ) -> Result<Option<UpsPlace>> {
        let Some(ups) = ups else {
            return match user.is_some() || password_file.is_some() {
                true => Err(UsageError("--ups-user and --ups-password-file need --ups".to_owned()).into()),
                false => Ok(None),
            };
        };
        let login = match (user, password_file) {
            (Some(user), Some(path)) => Some(UpsLogin::load(user, path)?),
            (None, None) => None,
            _ => {
                let sentence = "--ups-user and --ups-password-file belong together";
                return Err(UsageError(sentence.to_owned()).into());
            }
        };
        Ok(Some(UpsPlace {
            name: ups.parse().with_context(|| format!("the UPS {ups}"))?,
            login,
        }))
    }

    /// Watches the UPS.
    pub(crate) fn watch(self, on_change: impl FnMut(&PowerStatus) + Send + 'static) -> Result<UpsMonitor> {
        UpsMonitor::start(&self.name, self.login, on_change).context("watching the UPS")
    }
}

impl UpsArgs {
    /// Returns the UPS, if one is named.
    pub(crate) fn place(&self) -> Result<Option<UpsPlace>> {
        UpsPlace::of(
            self.ups.as_deref(),
            self.ups_user.as_deref(),
            self.ups_password_file.as_ref(),
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

/// Watches the UPS of a service, if it has one: on battery its journal's commits wait for the disk.
pub(crate) fn guard(place: Option<UpsPlace>, demand: DiskDemand) -> Result<Option<UpsMonitor>> {
    let Some(place) = place else { return Ok(None) };
    let ups = place.name.to_string();
    let on_change = move |status: &PowerStatus| {
        let why = status.reason.as_ref().map(tracing::field::display);
        match status.state {
            PowerState::Mains => tracing::info!(ups, why, "this machine is on the mains"),
            PowerState::OnBattery | PowerState::LowBattery => tracing::warn!(
                ups,
                why,
                state = %status.state,
                "this machine is on battery: what is acknowledged is on the disk"
            ),
            PowerState::Unknown => {
                tracing::warn!(ups, why, "not known whether this machine is on battery");
            }
        }
        match status.state {
            PowerState::Mains => demand.set(false),
            PowerState::OnBattery | PowerState::LowBattery => demand.set(true),
            // What held before goes on.
            PowerState::Unknown => (),
        }
    };
    place.watch(on_change).map(Some)
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
        assert!(parsed(&[]).unwrap().place().unwrap().is_none());
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
        let alone = UpsPlace::of(None, Some("u"), Some(&PathBuf::from("/p")));
        assert!(alone.unwrap_err().is::<UsageError>());
        let absent = UpsPlace::of(Some("rack"), Some("u"), Some(&PathBuf::from("/nonexistent")));
        assert!(absent.unwrap_err().to_string().contains("/nonexistent"));
    }
}
