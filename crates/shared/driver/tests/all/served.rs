//! The server's process is killed at random points. Nodes resume with the next one, and all their records are
//! there once, in order, also on its disk.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::TestRng;
use crate::common::history::{SPAN, all_pages, plan};
use crate::common::script::{Bytes, ScriptedPeer};
use netram_shared::server::{RegionStore, ServeConfig, ServingRegion};
use netram_shared_machine::lock::{ToCache, TokenClaim};
use netram_shared_machine::{
    GrantNumber, LockId, LockMode, LockVersion, NodeId, RecordNumber, ToNode, ToServer,
};
use netram_transport::{NetAddress, Security};

const PLACE: &str = "NETRAM_TEST_SERVED";
/// Nodes come back well within it, even on a busy machine.
const LEASE: Duration = Duration::from_secs(30);
const ROUNDS: u64 = 6;

fn address(root: &Path) -> NetAddress {
    format!("unix:{}.sock", root.display()).parse().unwrap()
}

/// Serves until its standard input is closed.
#[test]
#[ignore = "the process that the other test kills"]
fn server() {
    let Some(root) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(3);
    });
    let config = ServeConfig {
        lease: LEASE,
        ..ServeConfig::new(vec![address(&root)], Security::Insecure)
    };
    let serving = ServingRegion::start(&root, config).unwrap();
    eprintln!("serves");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    serving.stop();
    serving.wait().unwrap();
}

/// Starts a server, and waits until it serves.
fn serve(root: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "served::server", "--ignored", "--nocapture"])
        .env(PLACE, root)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(
        said.any(|line| line.is_ok_and(|line| line.contains("serves"))),
        "the server ended before it served"
    );
    // Its later log is of no interest, but reading it keeps the process from blocking.
    std::thread::spawn(move || said.for_each(drop));
    child
}

/// A scripted node that writes under a lock of its own, and remembers its writes.
struct LockWriter {
    script: ScriptedPeer,
    lock: u32,
    grant: GrantNumber,
    /// Last received record of each other node.
    received: Vec<(NodeId, RecordNumber)>,
}

impl LockWriter {
    fn join(root: &Path, segment: u32, journal: u128, lock: u32) -> LockWriter {
        let (script, joined) = ScriptedPeer::join(&address(root), &Security::Insecure, segment, journal);
        let mut writer = LockWriter {
            script,
            lock,
            grant: GrantNumber(0),
            received: joined.applied,
        };
        writer.until("Current", |message| {
            matches!(message, ToNode::Current).then_some(())
        });
        writer.script.ask(lock, LockMode::Exclusive);
        let (grant, version) = writer.until("Grant", |message| match message {
            ToNode::Lock(ToCache::Grant { grant, version, .. }) => Some((*grant, *version)),
            _ => None,
        });
        assert_eq!(version, LockVersion(0), "of lock {lock}");
        writer.grant = grant;
        writer
    }

    fn bytes(&self, number: RecordNumber) -> Vec<u8> {
        let mut bytes = number.0.to_le_bytes().to_vec();
        bytes.push(self.lock as u8);
        bytes
    }

    fn write(&mut self) {
        let next = self.script.number.next();
        let bytes = self.bytes(next);
        self.script.write(self.lock, next.0, &bytes);
    }

    /// Receives until a message of interest comes, and remembers the records before it.
    fn until<T>(&mut self, what: &str, interest: impl Fn(&ToNode<Bytes>) -> Option<T>) -> T {
        loop {
            let message = self.script.hear(what).unwrap();
            if let ToNode::Record { node, number, .. } = message {
                self.note(node, number);
            }
            if let Some(found) = interest(&message) {
                return found;
            }
        }
    }

    fn hear(&mut self, from: NodeId, until: RecordNumber) {
        while self.heard_of(from) < until {
            self.until("Record", |message| {
                matches!(message, ToNode::Record { .. }).then_some(())
            });
        }
    }

    /// A known record may come again; none is left out.
    fn note(&mut self, node: NodeId, number: RecordNumber) {
        let before = self.heard_of(node);
        assert!(
            number <= before.next(),
            "record {number} of node {node} came after {before}"
        );
        self.received.retain(|(whose, _)| *whose != node);
        self.received.push((node, number.max(before)));
        self.received.sort_unstable();
    }

    fn heard_of(&self, node: NodeId) -> RecordNumber {
        let known = self.received.iter().find(|(whose, _)| *whose == node);
        known.map_or(RecordNumber(0), |(_, number)| *number)
    }

    /// Resumes like a node whose server is gone: it sends unmerged records again, and then claims. It must be
    /// sent every record that it lacks, even if the former server had it durable and unsent.
    fn resume(&mut self, root: &Path, reads_all: bool) {
        if reads_all {
            for (node, number) in self.script.drain() {
                self.note(node, number);
            }
        }
        let merged = self
            .script
            .resume(&address(root), &Security::Insecure, self.received.clone());
        assert!(merged <= self.script.number);
        let mut number = merged.next();
        while number <= self.script.number {
            let payload = self.script.record(self.lock, number.0, &self.bytes(number));
            self.script.tail(number, payload);
            number = number.next();
        }
        self.script.say(&ToServer::Claims(vec![TokenClaim {
            lock: LockId(self.lock),
            grant: self.grant,
            hold: LockMode::Exclusive,
            version: LockVersion(self.script.number.0),
        }]));
        let asked = self.script.ping();
        self.until("Pong", |message| match message {
            ToNode::Rejoin => panic!("it lacks something, and is to begin anew"),
            ToNode::Pong { nonce, .. } if *nonce >= asked => Some(()),
            _ => None,
        });
    }
}

#[test]
fn nodes_resume_with_the_successor_of_a_killed_server() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("region");
    // A log that is not trimmed during the test: records that it lacks cannot be sent.
    RegionStore::create(&root, &plan(8 << 20)).unwrap();
    let (store, _) = RegionStore::open(&root, || ()).unwrap();
    let segment = store.segment();
    store.close().unwrap();
    let mut server = serve(&root);
    let mut writers: Vec<LockWriter> = (0..3)
        .map(|index| LockWriter::join(&root, segment, u128::from(index) + 1, index * 5))
        .collect();
    let mut random = TestRng(3);
    for round in 0..ROUNDS {
        for _ in 0..random.below(300) {
            let who = random.below(3) as usize;
            writers[who].write();
        }
        // Some records may have been received, some be durable, and some not have arrived.
        if round % 2 == 0 {
            let (from, until) = (writers[0].script.id, writers[0].script.number);
            writers[1].hear(from, until);
        }
        // A record is durable, and lost on its way to other nodes.
        writers[0].write();
        let last = writers[0].script.number;
        writers[0].until("Kept", |message| match message {
            ToNode::Durable { number, .. } if *number >= last => Some(()),
            _ => None,
        });
        server.kill().unwrap();
        server.wait().unwrap();
        server = serve(&root);
        for (index, writer) in writers.iter_mut().enumerate() {
            writer.resume(&root, index != 2);
        }
        let all: Vec<(NodeId, RecordNumber)> = writers
            .iter()
            .map(|writer| (writer.script.id, writer.script.number))
            .collect();
        for writer in &mut writers {
            let own = writer.script.id;
            for (from, until) in all.iter().filter(|(from, _)| *from != own) {
                writer.hear(*from, *until);
            }
        }
    }
    for writer in &mut writers {
        writer.write();
        writer.script.kept(writer.script.number);
    }
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success(), "it ends well");
    let (store, _) = RegionStore::open(&root, || ()).unwrap();
    let region = all_pages(&store);
    assert_eq!(store.table().faults(), []);
    for writer in &writers {
        let start = (u64::from(writer.lock) * SPAN) as usize;
        let bytes = writer.bytes(writer.script.number);
        assert_eq!(region[start..start + bytes.len()], bytes);
        let node = store.table().node(writer.script.id).unwrap();
        assert_eq!(node.merged, writer.script.number);
    }
}
