//! A node of a shared region is killed or stopped by a signal while it commits. Everything that it reported
//! as acknowledged is read from its members, and a node that resumes learns that it is fenced.
//!
//! The node runs in a process of its own: this test binary, started again with the name of one test. It
//! prints its views and acknowledgements; this process plays the server.

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::common::{KIND, TestJournal};
use netram_journal::error::JournalOpenError;
use netram_journal::paths::{JournalLayout, JournalPaths as JournalPlace};
use netram_journal::seal::DataKey;
use netram_journal::{FencedJournal, Journal, JournalConfig, OrphanJournal};
use netram_proto::journal::{ServerAck, View, Voter};
use netram_proto::port::{Durability, RecordLog, WaitError};
use netram_proto::wire::ChainPoint;
use netram_transport::{NetAddress, Security};

const NODE: &str = "NETRAM_TEST_NODE_DIR";
/// Commits before the node is killed or stopped.
const COMMITS: u64 = 300;

fn config(root: &Path) -> JournalConfig {
    let lenders = ["a", "b"].map(|name| NetAddress::Unix(root.join(format!("{name}.sock"))));
    JournalConfig {
        one_domain: true,
        voter: Voter::Server,
        ..JournalConfig::with_lenders(lenders.to_vec(), Security::Insecure, 2)
    }
}

/// Runs in the process that is killed; not a test by itself.
#[test]
fn node_process() {
    let Ok(root) = std::env::var(NODE) else { return };
    let root = PathBuf::from(root);
    let (journal, _) = Journal::open(&root.join("journal"), config(&root)).expect("an empty journal");
    let (mut out, mut said) = (std::io::stdout(), std::io::stdin().lines());
    while journal.needs_server() {
        if let Some(version) = journal.view_for_server() {
            let view = journal.newest_view().encode();
            let hex: String = view.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(out, "\nview {hex}").expect("the test reads");
            // The server has recorded it.
            said.next().expect("an answer").expect("text");
            let end = ChainPoint::default();
            journal.set_server_ack(ServerAck { end, version });
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    for number in 0_u64.. {
        let fill = &mut |into: &mut [u8]| into.copy_from_slice(&number.to_le_bytes());
        let waited = match journal.append(KIND, 8, fill) {
            Ok(ticket) => journal.wait(ticket, Durability::Remote),
            Err(_) => break,
        };
        match waited {
            Ok(_) => writeln!(out, "acked {number}").expect("the test reads"),
            Err(WaitError::Fenced { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    writeln!(out, "fenced {}", journal.fenced().is_some()).expect("the test reads");
}

/// The node's process, killed on drop.
struct NodeProcess {
    process: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    view: Option<View>,
    acked: Option<u64>,
    fenced: bool,
}

impl NodeProcess {
    fn start(root: &Path) -> NodeProcess {
        let mut process = Command::new(std::env::current_exe().expect("a path"))
            .args(["--exact", "shared_kill::node_process", "--nocapture"])
            .env(NODE, root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the node starts");
        let input = process.stdin.take().expect("it is piped");
        let output = process.stdout.take().expect("it is piped");
        NodeProcess {
            process,
            input,
            lines: BufReader::new(output).lines(),
            view: None,
            acked: None,
            fenced: false,
        }
    }

    /// Reads one line. Returns `false` at the end of the output.
    fn receive(&mut self) -> bool {
        let Some(Ok(line)) = self.lines.next() else {
            return false;
        };
        if let Some(hex) = line.strip_prefix("view ") {
            let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
            let bytes: Vec<u8> = (0..hex.len()).step_by(2).map(byte).collect();
            self.view = Some(View::decode(&bytes).expect("a view"));
            writeln!(self.input, "kept").expect("the node listens");
        } else if let Some(number) = line.strip_prefix("acked ") {
            // A killed process may leave half a line.
            self.acked = number.parse().ok().max(self.acked);
        } else if line == "fenced true" {
            self.fenced = true;
        }
        true
    }

    fn commits(&mut self) {
        while self.acked.is_none_or(|acked| acked < COMMITS) {
            assert!(self.receive(), "the node lives");
        }
    }

    fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args(["-s", name, &self.process.id().to_string()])
            .status();
        assert!(sent.expect("there is a kill").success());
    }
}

impl Drop for NodeProcess {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn read(place: &TestJournal, view: View) -> Vec<u64> {
    let key = JournalPlace::of(&place.journal(), JournalLayout::Directory).key();
    let remains = FencedJournal {
        view,
        server_end: ChainPoint::default(),
        key: DataKey::load(&key).expect("the server was given it"),
    };
    let found = remains
        .read(&config(place.directory.path()))
        .expect("both members answer");
    let number = |payload: &[u8]| u64::from_le_bytes(payload.try_into().expect("eight bytes"));
    found
        .records
        .iter()
        .map(|record| number(&record.payload))
        .collect()
}

fn test_journal() -> TestJournal {
    let place = TestJournal {
        security: Security::Insecure,
        ..TestJournal::new()
    };
    Journal::create(&place.journal(), 16 << 20).expect("a journal");
    place
}

#[test]
fn everything_a_killed_node_acknowledged_is_read_from_its_members() {
    let place = test_journal();
    let _lenders = [place.lender("a"), place.lender("b")];
    let mut node = NodeProcess::start(place.directory.path());
    node.commits();
    node.signal("KILL");
    while node.receive() {}
    let acked = node.acked.expect("it said so");
    let found = read(&place, node.view.take().expect("it sent its view"));
    assert!(found.len() as u64 > acked, "{} of {acked}", found.len());
    assert!(found.iter().copied().eq(0..found.len() as u64));
    match OrphanJournal::open(&place.journal(), &config(place.directory.path())) {
        Err(JournalOpenError::NodeFenced { .. }) => (),
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[test]
fn a_stopped_node_that_resumes_is_fenced_and_acknowledges_nothing() {
    let place = test_journal();
    let _lenders = [place.lender("a"), place.lender("b")];
    let mut node = NodeProcess::start(place.directory.path());
    node.commits();
    node.signal("STOP");
    let found = read(&place, node.view.take().expect("it sent its view"));
    node.signal("CONT");
    while node.receive() {}
    assert!(node.fenced, "it has learnt it");
    let acked = node.acked.expect("it said so");
    assert!(found.len() as u64 > acked, "{} of {acked}", found.len());
    assert!(found.iter().copied().eq(0..found.len() as u64));
}
