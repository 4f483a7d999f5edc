//! Lenders in this process, and journals in a temporary directory.

use std::path::PathBuf;
use std::time::Duration;

use netram_journal::{Journal, JournalConfig, JournalRecovery};
use netram_lender::{Lender, LenderConfig};
use netram_proto::port::{CommitTicket, Durability, Record, RecordKind, RecordLog};
use netram_transport::{ClusterKey, NetAddress, Security};

pub(crate) const KIND: RecordKind = RecordKind(16);

/// The files and the cluster key of one test.
pub(crate) struct TestJournal {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) security: Security,
}

impl TestJournal {
    pub(crate) fn new() -> TestJournal {
        let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
        TestJournal {
            directory,
            security: Security::Key(ClusterKey::generate()),
        }
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.directory.path().join("journal")
    }

    pub(crate) fn lender(&self, name: &str) -> Lender {
        self.lender_at(name, &[name])
    }

    /// A lender that listens at several addresses.
    pub(crate) fn lender_at(&self, name: &str, addresses: &[&str]) -> Lender {
        let config = LenderConfig {
            name: name.to_string(),
            listen: addresses.iter().map(|address| self.address(address)).collect(),
            security: self.security.clone(),
            memory: 64 << 20,
            store: Some(self.directory.path().join(format!("{name}.mem"))),
            ..LenderConfig::default()
        };
        Lender::start(config).expect("a lender starts")
    }

    pub(crate) fn address(&self, name: &str) -> NetAddress {
        NetAddress::Unix(self.directory.path().join(format!("{name}.sock")))
    }

    pub(crate) fn config(&self, names: &[&str], members: usize) -> JournalConfig {
        let lenders = names.iter().map(|name| self.address(name)).collect();
        JournalConfig {
            one_domain: true,
            patience: Duration::from_millis(800),
            grace: Duration::from_millis(100),
            window_bytes: 1 << 20,
            ..JournalConfig::with_lenders(lenders, self.security.clone(), members)
        }
    }

    pub(crate) fn open(&self, config: JournalConfig) -> (Journal, JournalRecovery) {
        let members = config.members;
        let (journal, recovered) = Journal::open(&self.journal(), config).expect("the journal opens");
        if members > 0 {
            journal
                .wait_for_members(Duration::from_secs(5))
                .expect("members join");
        }
        (journal, recovered)
    }
}

pub(crate) fn append(journal: &Journal, payload: &[u8]) -> CommitTicket {
    journal
        .append(KIND, payload.len(), &mut |into| into.copy_from_slice(payload))
        .expect("append")
}

pub(crate) fn commit(journal: &Journal, payload: &[u8], durability: Durability) {
    let ticket = append(journal, payload);
    journal.wait(ticket, durability).expect("commit");
}

pub(crate) fn payloads(journal: &Journal) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let head = journal.state().head;
    let mut each = |record: Record<'_>| {
        found.push(record.payload.to_vec());
        true
    };
    journal.read(head, &mut each).expect("read");
    found
}

/// A copy of the journal's directory as a crash at this moment would leave it.
pub(crate) fn copy_of(place: &TestJournal) -> PathBuf {
    let copy = place.directory.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    for name in ["log", "view", "data.key", "lock"] {
        std::fs::copy(place.journal().join(name), copy.join(name)).unwrap();
    }
    copy
}
