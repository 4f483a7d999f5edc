//! `netram key`: the secrets by which the machines of a cluster know each other.

mod add;
mod clients;
mod create;
mod list;
mod revoke;
mod rotate;
mod status;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;
use netram_transport::ClusterKey;
use ring::digest::{SHA256, digest};

/// Bytes of a fingerprint: enough to tell keys apart, far too few to find one.
const FINGERPRINT_BYTES: usize = 8;

/// Make keys, tell them apart, and name the clients that have them
///
/// In the simplest cluster all lenders and clients have the same key. Whoever has it may use all
/// of a lender: treat it like a root password. A key file that other users can read is refused.
///
///   netram key create
///   netram key status                   # prints the same on all machines?
///
/// Lenders that are started with --clients FILE know their clients by name instead. Each has a
/// key of its own, limits, and rights, and can be taken off the list:
///
///   netram key add db1 memory=1GiB
///   netram key list
///   netram key rotate db1
///   netram key revoke db1
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum KeyCommand {
    Create(create::CreateKey),
    Status(status::ShowKey),
    Add(add::AddClient),
    List(list::ListClients),
    Rotate(rotate::RotateKey),
    Revoke(revoke::RevokeKey),
}

impl KeyCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            KeyCommand::Create(create) => create.run(),
            KeyCommand::Status(status) => status.run(),
            KeyCommand::Add(add) => add.run(),
            KeyCommand::List(list) => list.run(),
            KeyCommand::Rotate(rotate) => rotate.run(),
            KeyCommand::Revoke(revoke) => revoke.run(),
        }
    }
}

/// Returns a name for the key that does not help to find it: the first digits of a hash of its 256 random
/// bits.
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
