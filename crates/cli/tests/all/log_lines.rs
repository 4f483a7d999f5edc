//! A client causes one line a session in the lender's log, however often it connects (case 36).

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use netram_journal::{Journal, JournalConfig};
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_transport::Security;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{netram, start};

const PATIENCE: Duration = Duration::from_secs(20);
const ROUNDS: usize = 6;

#[test]
fn a_client_that_comes_and_goes_costs_one_line_a_session() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let path = |name: &str| directory.path().join(name);
    let listen = format!("unix:{}", path("lender.sock").display());
    let log = File::create(path("log")).unwrap();
    let mut lend = netram();
    lend.args([
        "lender",
        "serve",
        "--with-parent",
        "--insecure",
        "--memory",
        "16MiB",
        "--listen",
        &listen,
    ])
    .arg("--store")
    .arg(path("memory"))
    .stdout(Stdio::piped())
    .stderr(log);
    let mut lender = start(&mut lend);
    let mut said = BufReader::new(lender.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "ready"), "it never was ready");

    Journal::create(&path("journal"), 1 << 20).unwrap();
    let config = JournalConfig {
        one_domain: true,
        window_bytes: 1 << 20,
        ..JournalConfig::with_lenders(vec![listen.parse().unwrap()], Security::Insecure, 1)
    };
    for _ in 0..ROUNDS {
        let (journal, _) = Journal::open(&path("journal"), config.clone()).unwrap();
        journal.wait_for_members(PATIENCE).unwrap();
        let ticket = journal
            .append(RecordKind(16), 3, &mut |into| into.copy_from_slice(b"abc"))
            .unwrap();
        journal.wait(ticket, Durability::Remote).unwrap();
        journal.close().unwrap();
    }
    kill_process(Pid::from_child(&lender), Signal::TERM).unwrap();
    assert!(lender.wait().unwrap().success());

    let log = std::fs::read_to_string(path("log")).unwrap();
    let of_journal: Vec<&str> = log.lines().filter(|line| line.contains("journal=")).collect();
    let sessions = of_journal
        .iter()
        .filter(|line| line.contains("client bound"))
        .count();
    // One that asks and reads, and the one that writes.
    assert!((ROUNDS..=2 * ROUNDS).contains(&sessions), "{log}");
    assert_eq!(of_journal.len(), sessions, "{log}");
}
