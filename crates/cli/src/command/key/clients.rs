//! The parts that the commands share which change a file of clients.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use netram_clients::file::amount;
use netram_clients::{ClientLimits, ClientResource, ClientsFile, ClientsFileError, change_file};
use netram_transport::ClusterKey;

use super::fingerprint;
use crate::options::UsageError;
use crate::output;

/// The file of clients.
#[derive(Debug, Args)]
pub(super) struct ClientsPath {
    /// The file of clients, which lenders are started with
    #[arg(
        long,
        value_name = "FILE",
        env = "NETRAM_CLIENTS",
        default_value = "/etc/netram/clients"
    )]
    pub(super) clients: PathBuf,
}

impl ClientsPath {
    /// Changes the file.
    pub(super) fn change(
        &self,
        change: impl FnOnce(&ClientsFile) -> Result<ClientsFile, ClientsFileError>,
    ) -> Result<ClientsFile> {
        Ok(change_file(&self.clients, change)?)
    }

    /// Says how running lenders come to know of a change.
    pub(super) fn tell(&self) -> Result<()> {
        output::line(format_args!(
            "{} was changed: copy it to all lenders, and let them read it again (systemctl reload netram-lender, or SIGHUP)",
            self.clients.display()
        ))
    }
}

/// Reads limits: `memory=1GiB`, `status=no`.
pub(super) fn limits(words: &[String]) -> Result<ClientLimits> {
    let mut limits = ClientLimits::default();
    for text in words {
        let usage = |sentence: String| anyhow::Error::from(UsageError(sentence));
        let known = || ClientResource::ALL.map(ClientResource::word).join(", ");
        let Some((word, value)) = text.split_once('=') else {
            let sentence = format!(
                "`{text}` is no limit: write WORD=VALUE, where WORD is one of {}",
                known()
            );
            return Err(usage(sentence));
        };
        let resource = ClientResource::ALL
            .into_iter()
            .find(|resource| resource.word() == word);
        let unknown = || usage(format!("`{word}` is no limit; there are: {}", known()));
        let resource = resource.ok_or_else(unknown)?;
        limits.set(resource, Some(amount(resource, value).map_err(usage)?));
    }
    Ok(limits)
}

/// Writes a client's new key, then changes the file of clients: a key that no file has is no use, and a
/// client in the file whose key nobody has cannot connect.
pub(super) fn with_new_key(
    out: &Path,
    clients: &ClientsPath,
    change: impl FnOnce(&ClientsFile, &ClusterKey) -> Result<ClientsFile, ClientsFileError>,
) -> Result<()> {
    let mut saved = None;
    let changed = clients.change(|file| {
        let key = file.new_key();
        let changed = change(file, &key)?;
        key.save_new(out)
            .map_err(|error| ClientsFileError::Refused(error.to_string()))?;
        saved = Some(key);
        Ok(changed)
    });
    let key = match (changed, saved) {
        (Ok(_), Some(key)) => key,
        (Ok(_), None) => unreachable!("a change without a new key is an error"),
        (Err(error), Some(_)) => {
            // The file of clients could not be written: the key is known to nobody.
            fs::remove_file(out).with_context(|| format!("removing {}", out.display()))?;
            return Err(error);
        }
        (Err(error), None) => return Err(error),
    };
    output::line(format_args!(
        "{} ({}) is the client's new key: move it to the client's machine, as /etc/netram/key",
        out.display(),
        fingerprint(&key)
    ))?;
    clients.tell()
}

/// Where a client's new key is written.
pub(super) fn key_path(out: Option<PathBuf>, name: &str) -> PathBuf {
    out.unwrap_or_else(|| PathBuf::from(format!("{name}.key")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_in_the_file() {
        let read = |words: &[&str]| limits(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
        let good = read(&["memory=1GiB", "status=no"]).unwrap();
        assert_eq!(good.get(ClientResource::Memory), Some(1 << 30));
        assert_eq!(good.get(ClientResource::Status), Some(0));
        for bad in ["memory", "root=yes", "memory=much", "status=maybe"] {
            assert!(read(&[bad]).unwrap_err().is::<UsageError>(), "{bad}");
        }
    }
}
