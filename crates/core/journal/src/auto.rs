//! The lenders of a journal with `lenders = "auto"`.
//!
//! Each opening asks the cluster's sources anew, and adds what it finds to what earlier openings found: the
//! addresses stand in a file beside the log. A lender that is down while the journal opens, or that no source
//! names any more, is therefore still asked. The members of the view are asked in any case: recovery needs
//! them, and the view has their addresses. What is in the file proves nothing, so a lost or altered one costs
//! attempts to connect and no record.

use std::io;

use netram_discover::{ChoiceRules, FoundBy, find};
use netram_process::files;
use netram_proto::limit::{ADDRESS_BYTES_MAX, LENDERS_MAX};
use netram_transport::NetAddress;

use crate::config::JournalConfig;
use crate::durable;
use crate::open::open_view;
use crate::paths::JournalPaths;

/// Maximum bytes of the file.
const FILE_BYTES_MAX: u64 = (LENDERS_MAX * (ADDRESS_BYTES_MAX + 1) + HEAD.len()) as u64;

/// First line of the file.
const HEAD: &str = "# Lenders that were found for this journal. netram rewrites this file at each opening.\n";

/// The configuration with the lenders that are found, if they are to be found. Changes nothing.
pub(crate) fn found(mut config: JournalConfig, place: &JournalPaths) -> JournalConfig {
    let Some(cluster) = &config.auto else {
        return config;
    };
    let members = members(place);
    let known: Vec<NetAddress> = unique(members.iter().cloned().chain(kept(place)));
    let discovery = find(cluster, &known, &config.security);
    for error in &discovery.failures {
        tracing::warn!(%error, "a way to find lenders failed");
    }
    for lender in &discovery.lenders {
        let sources: Vec<String> = lender.by.iter().map(FoundBy::to_string).collect();
        let (address, sources) = (&lender.address, sources.join(", "));
        match &lender.answer {
            Ok((_, facts)) => {
                tracing::debug!(%address, name = %facts.name.escape_debug(), sources, "found a lender")
            }
            Err(error) => {
                tracing::warn!(%address, sources, %error, "a lender that was found does not answer as one")
            }
        }
    }
    for (name, addresses) in discovery.shared_names() {
        tracing::warn!(name = %name.escape_debug(), ?addresses, "lenders have the same name; give each its own (netram lender serve --name)");
    }
    let rules = ChoiceRules {
        domain: config.domain.clone(),
        one_domain: config.one_domain,
    };
    config.lenders = discovery.addresses(&members, &rules, config.window_bytes);
    if config.lenders.is_empty() {
        // As without lenders: the disk alone.
        (config.members, config.members_min) = (0, None);
        tracing::warn!(sources = %cluster.ways(), "no lender was found; commits wait for this disk until the journal is opened again");
    } else if config.lenders.len() < config.members {
        let (found, wanted) = (config.lenders.len(), config.members);
        tracing::warn!(found, wanted, sources = %cluster.ways(), "fewer lenders were found than members are wanted; commits may wait for this disk");
    }
    config
}

/// Keeps the addresses for later openings.
pub(crate) fn keep(config: &JournalConfig, place: &JournalPaths) {
    if config.auto.is_none() || config.lenders.is_empty() {
        return;
    }
    let mut before = kept(place);
    let mut now = config.lenders.clone();
    before.sort();
    now.sort();
    if before == now {
        return;
    }
    let lines: String = config
        .lenders
        .iter()
        .map(|lender| format!("{lender}\n"))
        .collect();
    let path = place.lenders();
    if let Err(error) = durable::replace(&path, format!("{HEAD}{lines}").as_bytes()) {
        // The view has the addresses of members; only spares are lost.
        tracing::warn!(path = %path.display(), %error, "cannot keep the addresses of lenders that were found");
    }
}

/// The addresses that earlier openings kept.
pub(crate) fn kept(place: &JournalPaths) -> Vec<NetAddress> {
    let path = place.lenders();
    let bytes = match files::read(&path, FILE_BYTES_MAX).map_err(io::Error::from) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Vec::new(),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read the addresses of lenders that were found earlier");
            return Vec::new();
        }
    };
    let text = String::from_utf8_lossy(&bytes);
    let addresses = text.lines().filter_map(|line| line.trim().parse().ok());
    unique(addresses.take(LENDERS_MAX))
}

/// The addresses of the view's members. A view that cannot be read names none; opening it says why.
fn members(place: &JournalPaths) -> Vec<NetAddress> {
    let Ok(view) = open_view(place, false) else {
        return Vec::new();
    };
    let members = view.newest().members.iter();
    members.filter_map(|member| member.address.parse().ok()).collect()
}

fn unique(addresses: impl Iterator<Item = NetAddress>) -> Vec<NetAddress> {
    let mut unique = Vec::new();
    for address in addresses {
        if !unique.contains(&address) {
            unique.push(address);
        }
    }
    unique
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use netram_discover::ClusterFile;
    use netram_discover::cluster_file::NamedLender;
    use netram_transport::Security;

    use super::*;
    use crate::Journal;
    use crate::forget::WindowRelease;

    /// Nobody listens at these ports of this machine.
    fn address(port: u16) -> NetAddress {
        format!("tcp://127.0.0.1:{port}").parse().unwrap()
    }

    fn config(ports: &[u16]) -> JournalConfig {
        let named = |port: &u16| NamedLender {
            address: address(*port),
            name: None,
            domain: None,
        };
        let cluster = ClusterFile {
            lenders: ports.iter().map(named).collect(),
            mdns: false,
            ..ClusterFile::none()
        };
        JournalConfig {
            auto: Some(cluster),
            patience: Duration::ZERO,
            ..JournalConfig::with_lenders(Vec::new(), Security::Insecure, 2)
        }
    }

    #[test]
    fn each_opening_adds_what_it_finds_to_what_was_found_before() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("journal");
        Journal::create(&root, 1 << 20).unwrap();
        let place = JournalPaths::at(&root);
        let lenders = |ports: &[u16]| {
            let (journal, _) = Journal::open(&root, config(ports)).unwrap();
            let status = journal.status().writer;
            journal.close().unwrap();
            status.lenders.len()
        };
        assert_eq!(lenders(&[]), 0, "nobody was found: the disk alone");
        assert_eq!(kept(&place), []);
        assert_eq!(lenders(&[1]), 1, "fewer than the members wanted");
        assert_eq!(lenders(&[2]), 2);
        assert_eq!(kept(&place), [address(1), address(2)]);
        Journal::check(&root, &config(&[3])).unwrap();
        assert_eq!(kept(&place).len(), 2, "a check changes nothing");
        assert_eq!(lenders(&[]), 2);

        std::fs::write(
            place.lenders(),
            "nonsense\ntcp://127.0.0.1:9\ntcp://127.0.0.1:9\n",
        )
        .unwrap();
        assert_eq!(kept(&place), [address(9)]);
        assert_eq!(lenders(&[1]), 2);
        place.delete(None, WindowRelease::Logged, &[], None).unwrap();
        assert!(!root.exists(), "the file goes with its journal");
    }
}
