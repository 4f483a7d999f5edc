//! A lender whose memory goes back in time: its machine was restored from an older snapshot, and it does not
//! know that it acknowledged more.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use netram_journal::{Journal, JournalConfig};
use netram_proto::port::{Durability, Record, RecordKind, RecordLog};
use netram_transport::Security;
use rustix::process::Signal;

use crate::common::LenderProcess;
use crate::lifecycle::{PATIENCE, crashed};

/// The member leaves the view once the disk has what it lacks.
const SOON: Duration = Duration::from_millis(1500);
const NEVER: Duration = Duration::from_secs(3600);
const BEFORE: u8 = 20;
const AFTER: u8 = 40;

struct Place {
    directory: tempfile::TempDir,
    lenders: usize,
}

impl Place {
    fn new(lenders: usize) -> Place {
        let directory = tempfile::tempdir().unwrap();
        Place { directory, lenders }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn listen(&self, at: usize) -> String {
        format!("unix:{}", self.path(&format!("lender-{at}.sock")).display())
    }

    fn start(&self, at: usize) -> LenderProcess {
        let name = format!("snapshot-{}-{at}", self.lenders);
        LenderProcess::start(&name, &["--listen", &self.listen(at), "--insecure"])
    }

    /// Starts a lender that was killed with this memory, which may be an older copy.
    fn restart(&self, at: usize, lender: LenderProcess, memory: &[u8]) -> LenderProcess {
        let store = lender.store().to_owned();
        // It takes its store along.
        drop(lender);
        fs::write(&store, memory).unwrap();
        fs::set_permissions(&store, fs::Permissions::from_mode(0o600)).unwrap();
        self.start(at)
    }

    /// The newest records are at the lenders only: the disk is this much behind.
    fn config(&self, disk_delay: Duration) -> JournalConfig {
        let addresses = (0..self.lenders).map(|at| self.listen(at).parse().unwrap());
        JournalConfig {
            one_domain: true,
            window_bytes: 1 << 20,
            disk_delay,
            ..JournalConfig::with_lenders(addresses.collect(), Security::Insecure, self.lenders)
        }
    }

    fn open(&self, root: &Path, disk_delay: Duration) -> Journal {
        let (journal, _) = Journal::open(root, self.config(disk_delay)).unwrap();
        journal.wait_for_members(PATIENCE).unwrap();
        journal
    }
}

fn commit(journal: &Journal, number: u8) {
    let ticket = journal
        .append(RecordKind(16), 1, &mut |into| into[0] = number)
        .unwrap();
    journal.wait(ticket, Durability::Remote).unwrap();
}

fn numbers(journal: &Journal) -> Vec<u8> {
    let mut found = Vec::new();
    let mut each = |record: Record<'_>| {
        found.push(record.payload[0]);
        true
    };
    journal.read(journal.state().head, &mut each).unwrap();
    found
}

#[test]
fn a_member_from_an_old_snapshot_gets_from_its_live_client_what_it_lacks() {
    let place = Place::new(1);
    let mut lender = place.start(0);
    Journal::create(&place.path("journal"), 1 << 20).unwrap();
    let journal = place.open(&place.path("journal"), SOON);
    (0..BEFORE).for_each(|number| commit(&journal, number));
    let snapshot = fs::read(lender.store()).unwrap();
    (BEFORE..AFTER).for_each(|number| commit(&journal, number));
    lender.stop(Signal::KILL);
    let mut lender = place.restart(0, lender, &snapshot);
    commit(&journal, AFTER);
    crashed(&place.path("journal"), &place.path("crashed"));
    // A client that ended while it reached the lender would tell it so.
    lender.stop(Signal::KILL);
    drop(journal);
    let newest = fs::read(lender.store()).unwrap();
    let _lender = place.restart(0, lender, &newest);
    let again = place.open(&place.path("crashed"), SOON);
    assert_eq!(numbers(&again), (0..=AFTER).collect::<Vec<u8>>());
}

#[test]
fn a_recovery_takes_what_a_member_from_an_old_snapshot_lacks_from_the_other() {
    let place = Place::new(2);
    let lenders = [0, 1].map(|at| place.start(at));
    Journal::create(&place.path("journal"), 1 << 20).unwrap();
    let journal = place.open(&place.path("journal"), NEVER);
    (0..BEFORE).for_each(|number| commit(&journal, number));
    let snapshot = fs::read(lenders[0].store()).unwrap();
    (BEFORE..AFTER).for_each(|number| commit(&journal, number));
    crashed(&place.path("journal"), &place.path("crashed"));
    // A client that ended while it reached them would tell them so.
    let [mut first, mut second] = lenders;
    first.stop(Signal::KILL);
    second.stop(Signal::KILL);
    drop(journal);
    let newest = fs::read(second.store()).unwrap();
    let _first = place.restart(0, first, &snapshot);
    let _second = place.restart(1, second, &newest);
    let again = place.open(&place.path("crashed"), NEVER);
    assert_eq!(numbers(&again), (0..AFTER).collect::<Vec<u8>>());
}
