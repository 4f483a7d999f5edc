//! `netram key`: the secret that a cluster shares.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use netram_transport::ClusterKey;
use ring::digest::{SHA256, digest};

use crate::output;

/// Bytes of a fingerprint: enough to tell keys apart, far too few to find one.
const FINGERPRINT_BYTES: usize = 8;

/// Make and tell apart cluster keys
///
/// Everybody who holds a cluster's key may lend to it and keep journals in it:
/// treat it like a root password. Lenders and clients refuse a key file that
/// others can read.
///
///   netram key new /etc/netram/key
///   netram key show-id /etc/netram/key      # the same on all machines?
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum KeyCommand {
    New(NewKey),
    ShowId(ShowKeyId),
}

/// Make a new cluster key in FILE
///
/// The file gets mode 0600 and is never overwritten. Copy it to every machine of
/// the cluster by a way that keeps it secret, for example:
///
///   netram key new cluster.key
///   scp -p cluster.key root@10.0.0.2:/etc/netram/key
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct NewKey {
    /// The new file
    file: PathBuf,
}

/// Print a key's fingerprint, never the key
///
/// Two files with the same fingerprint hold the same key.
///
///   netram key show-id /etc/netram/key
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct ShowKeyId {
    /// The key's file
    file: PathBuf,
}

impl KeyCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            KeyCommand::New(new) => {
                let key = ClusterKey::generate();
                key.save_new(&new.file).context("making a cluster key")?;
                output::line(format_args!("{} ({})", new.file.display(), fingerprint(&key)))?;
            }
            KeyCommand::ShowId(show) => {
                let what = || format!("loading {}", show.file.display());
                output::line(fingerprint(&ClusterKey::load(&show.file).with_context(what)?))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A name for the key that does not help to find it: the begin of a hash of 256 random bits.
fn fingerprint(key: &ClusterKey) -> String {
    let hash = digest(&SHA256, key.to_text().as_bytes());
    let digits: Vec<String> = hash.as_ref()[..FINGERPRINT_BYTES]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("key id {}", digits.join(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_tells_keys_apart_and_shows_none_of_them() {
        let (key, other) = (ClusterKey::generate(), ClusterKey::generate());
        let id = fingerprint(&key);
        assert_eq!(id, fingerprint(&key));
        assert_ne!(id, fingerprint(&other));
        let secret = key.to_text();
        assert!(!secret.contains(id.trim_start_matches("key id ")));
    }
}
