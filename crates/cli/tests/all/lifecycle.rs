//! A lender keeps a journal's bytes through restarts, until it is told that the journal was deleted.

use std::path::Path;
use std::time::{Duration, Instant};

use netram_journal::owner::JournalOwner;
use netram_journal::{Journal, JournalConfig};
use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::limit::WINDOW_BYTES_MIN;
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_proto::wire::{ChainPoint as Chain, Frame, FrameHeader, FrameKind, RecordHeader, finish_record};
use netram_transport::{Link, NetAddress, OwnerKey, Security, connect};
use rustix::process::Signal;

use crate::common::{LenderProcess, run};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const ID: JournalId = JournalId(0xABCD << 100);

/// A journal's directory as a crash at this moment would leave it.
pub(crate) fn crashed(journal: &Path, copy: &Path) {
    std::fs::create_dir(copy).unwrap();
    for name in ["log", "view", "data.key", "lock"] {
        std::fs::copy(journal.join(name), copy.join(name)).unwrap();
    }
}

/// A new journal that is open, with a record that only the lender has for the length of a test.
pub(crate) fn with_a_record(root: &Path, lender: &str) -> (Journal, JournalConfig) {
    Journal::create(root, 1 << 20).unwrap();
    let config = JournalConfig {
        one_domain: true,
        window_bytes: 1 << 20,
        disk_delay: Duration::from_secs(3600),
        ..JournalConfig::with_lenders(vec![lender.parse().unwrap()], Security::Insecure, 1)
    };
    let (journal, _) = Journal::open(root, config.clone()).unwrap();
    journal.wait_for_members(PATIENCE).unwrap();
    let ticket = journal
        .append(RecordKind(16), 3, &mut |into| into.copy_from_slice(b"abc"))
        .unwrap();
    journal.wait(ticket, Durability::Remote).unwrap();
    (journal, config)
}

/// The lender is killed, and its machine's operator starts it with twice the memory while the client is down:
/// what the client had acknowledged was thrown away with the file (rule 23).
#[test]
fn a_lender_started_with_another_size_refuses_and_as_before_its_client_recovers_all() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let listen = format!("unix:{}", path("lender.sock").display());
    let arguments = ["--listen", &listen, "--insecure"];
    let mut lender = LenderProcess::start("resized", &arguments);
    let (journal, config) = with_a_record(&path("journal"), &listen);
    crashed(&path("journal"), &path("crashed"));
    lender.stop(Signal::KILL);
    drop(journal);

    let store = lender.store().to_str().unwrap().to_owned();
    let started = |memory: &str, more: &[&str]| {
        let usual = [
            "lender",
            "serve",
            "--listen",
            &listen,
            "--insecure",
            "--store",
            &store,
            "--memory",
            memory,
        ];
        run(usual.iter().chain(more).copied())
    };
    for (memory, more) in [("32MiB", [].as_slice()), ("16MiB", &["--journals-max", "2000"])] {
        let refused = started(memory, more);
        assert_eq!(refused.code, 1, "{}", refused.err);
        for named in [
            "journal ",
            " bytes",
            "--memory 16777216 --journals-max 1024",
            "--discard-windows",
        ] {
            assert!(refused.err.contains(named), "{named}: {}", refused.err);
        }
    }
    let again = LenderProcess::start("resized", &arguments);
    let (journal, recovered) = Journal::open(&path("crashed"), config).unwrap();
    assert_eq!(recovered.records_from_members, 1);
    let mut found = Vec::new();
    let mut each = |record: netram_proto::port::Record<'_>| {
        found.push(record.payload.to_vec());
        true
    };
    journal.read(journal.state().head, &mut each).unwrap();
    assert_eq!(found, [b"abc"]);
    drop((journal, again));
}

/// A client that holds a window with one record, by its frames.
pub(crate) struct Client(Link);

impl Client {
    /// Connects, and proves that `owner` is the client.
    fn connect(address: &str, owner: &JournalOwner) -> Client {
        let address: NetAddress = address.parse().unwrap();
        let mut client = Client(connect(&address, &Security::Insecure, PATIENCE).unwrap());
        owner.introduce(&mut client.0).unwrap();
        let id = owner.journal().0.to_le_bytes();
        client.say(FrameHeader::new(FrameKind::Bind), &id, FrameKind::Bound);
        client
    }

    pub(crate) fn new(address: &str, owner: &JournalOwner) -> Client {
        let mut client = Client::connect(address, owner);
        let header = |kind| FrameHeader {
            epoch: Epoch(1),
            sender: 7,
            ..FrameHeader::new(kind)
        };
        owner
            .queue(&mut client.0, &header(FrameKind::Fence), &[])
            .unwrap();
        client.hear(FrameKind::Fenced);
        let join = FrameHeader {
            stable: Lsn(1),
            ..header(FrameKind::Join)
        };
        client.say(join, &WINDOW_BYTES_MIN.to_le_bytes(), FrameKind::Ack);
        let record = RecordHeader::new(Chain::default(), Epoch(1), Lsn(0), RecordKind(16), false, 100);
        let mut bytes = vec![0; record.length];
        record.write(&mut bytes);
        finish_record(&mut bytes, owner.journal().into());
        client.say(header(FrameKind::Append), &bytes, FrameKind::Ack);
        client
    }

    /// The same client opens the journal again, and needs none of what the lender holds.
    fn trim(address: &str, owner: &JournalOwner) {
        let mut client = Client::connect(address, owner);
        let ping = FrameHeader {
            epoch: Epoch(1),
            sender: 7,
            stable: Lsn(u64::MAX),
            ..FrameHeader::new(FrameKind::Ping)
        };
        client.say(ping, &[], FrameKind::Pong);
    }

    fn say(&mut self, header: FrameHeader, body: &[u8], answer: FrameKind) {
        self.0.queue(&[&header.encode(body.len()), body]).unwrap();
        self.hear(answer);
    }

    fn hear(&mut self, answer: FrameKind) {
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            self.0.flush().unwrap();
            if let Some(packet) = self.0.receive().unwrap() {
                assert_eq!(Frame::parse(packet).unwrap().header.kind, answer);
                return;
            }
            std::thread::yield_now();
        }
        panic!("the lender does not answer");
    }
}

#[test]
fn a_lender_forgets_a_journal_on_request_and_none_by_mistake() {
    forgets_on_request(&JournalOwner::none(ID), |lender| lender.address.clone());
}

/// A journal that has an owner is forgotten for the lender's operator, and for nobody else with the key.
#[test]
fn a_lender_forgets_an_owned_journal_for_its_operator_only() {
    let key = OwnerKey::derive(&[7; 32]);
    let id = JournalId(key.owned());
    let owner = JournalOwner::with(id, key).unwrap();
    forgets_on_request(&owner, |lender| format!("unix:{}", lender.operator().display()));
    let lender = LenderProcess::start("operated", &["--listen", "tcp://127.0.0.1:0", "--insecure"]);
    drop(Client::new(&lender.address, &owner));
    let id = id.to_string();
    let remote = run(["lender", "forget", &id, &lender.address, "--insecure", "--force"]);
    assert_eq!(remote.code, 1);
    assert!(remote.out.contains("belongs to its client"), "{}", remote.out);
    assert!(lender.status()["journals"][0]["used_bytes"].as_u64().unwrap() > 0);
    let here = run(["lender", "forget", &id, "--force"]);
    let told = format!("unix:{}: forgotten", lender.operator().display());
    assert!(here.out.contains(&told), "{} {}", here.out, here.err);
    assert_eq!(lender.status()["journals_used"], 0);
}

/// A lender forgets the owner's journal when it is told at `address`, and only if nobody needs it.
fn forgets_on_request(owner: &JournalOwner, address: impl Fn(&LenderProcess) -> String) {
    let arguments = [
        "--listen",
        "tcp://127.0.0.1:0",
        "--insecure",
        "--journals-max",
        "2",
    ];
    let lender = LenderProcess::start("forgets", &arguments);
    let id = owner.journal().to_string();
    let told_at = address(&lender);
    let forget = |more: &[&str]| {
        let usual = ["lender", "forget", &id, &told_at, "--insecure"];
        run(usual.iter().chain(more).copied())
    };
    let unknown = forget(&[]);
    assert!(
        unknown.code == 0 && unknown.out.contains("does not know this journal"),
        "{}",
        unknown.out
    );
    let client = Client::new(&lender.address, owner);
    let served = forget(&["--force"]);
    assert!(
        served.code == 1 && served.out.contains("is connected"),
        "{}",
        served.out
    );
    drop(client);
    let alone = || {
        let until = Instant::now() + PATIENCE;
        while lender.status()["journals"][0]["sessions"] != 0 {
            assert!(Instant::now() < until);
        }
    };
    alone();
    let status = run(["lender", "status", &lender.address, "--insecure"]).out;
    assert!(
        status.contains("1 of 2") && status.contains("last heard"),
        "{status}"
    );
    let holds = forget(&[]);
    assert!(
        holds.code == 1 && holds.out.contains("only copy"),
        "{}",
        holds.out
    );
    assert!(lender.status()["journals"][0]["used_bytes"].as_u64().unwrap() > 0);
    Client::trim(&lender.address, owner);
    alone();
    let window = forget(&[]);
    assert!(
        window.code == 1 && window.out.contains("cannot be opened"),
        "{}",
        window.out
    );
    let done = forget(&["--force"]);
    assert!(
        done.code == 0 && done.out.contains("forgotten"),
        "{} {}",
        done.out,
        done.err
    );
    let status = lender.status();
    assert_eq!(
        (&status["memory"]["used"], &status["journals_used"]),
        (&0.into(), &0.into())
    );
    assert_eq!(status["journals_max"], 2);
}

/// The lenders of its last view are notified although the command does not name them.
#[test]
fn deleting_a_journal_frees_its_memory_at_lenders_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let listen = format!("unix:{}", path("lender.sock").display());
    let arguments = ["--listen", &listen, "--insecure"];
    let mut lender = LenderProcess::start("deleted", &arguments);
    let (journal, _) = with_a_record(&path("journal"), &listen);
    crashed(&path("journal"), &path("crashed"));
    let delete = |name: &str, more: &[&str]| {
        let journal = path(name);
        let usual = ["journal", "delete", journal.to_str().unwrap()];
        run(usual.iter().chain(more).copied())
    };
    let in_use = delete("journal", &["--yes"]);
    assert!(
        in_use.code == 1 && in_use.err.contains("in use"),
        "{}",
        in_use.err
    );
    // The lender does not hear that the writer closed the journal: as after a crash.
    lender.stop(Signal::KILL);
    drop(journal);
    let lender = LenderProcess::start("deleted", &arguments);
    assert!(lender.status()["memory"]["used"].as_u64() > Some(0));

    let unsaid = delete("crashed", &[]);
    assert!(unsaid.code == 2 && unsaid.err.contains("--yes"), "{}", unsaid.err);
    std::fs::write(path("crashed").join("notes"), b"").unwrap();
    let foreign = delete("crashed", &["--yes"]);
    assert!(
        foreign.code == 1 && foreign.err.contains("notes"),
        "{}",
        foreign.err
    );
    assert!(path("crashed").join("log").exists());
    std::fs::remove_file(path("crashed").join("notes")).unwrap();
    // It may be a copy, as it is here, and its original need the lender.
    let counts = delete("crashed", &["--yes"]);
    assert!(
        counts.code == 1 && counts.err.contains("was not closed") && counts.err.contains(&listen),
        "{}",
        counts.err
    );
    assert!(path("crashed").join("log").exists());
    assert!(lender.status()["memory"]["used"].as_u64() > Some(0));
    let done = delete("crashed", &["--yes", "--force"]);
    assert!(
        done.code == 0 && done.out.contains("is deleted"),
        "{}{}",
        done.out,
        done.err
    );
    assert!(!path("crashed").exists());
    let status = lender.status();
    assert_eq!(
        (&status["memory"]["used"], &status["journals_used"]),
        (&0.into(), &0.into())
    );
    let gone = delete("crashed", &["--yes"]);
    assert!(
        gone.code == 1 && gone.err.contains("is neither a journal"),
        "{}",
        gone.err
    );
}

/// An ordinary user whose limit leaves no room for another thread: opening a journal panicked in the program
/// that did so.
#[test]
fn without_room_for_a_thread_a_journal_says_why_its_lenders_are_not_heard() {
    if !rustix::process::geteuid().is_root() {
        return crate::common::skipped("root, to become a user whose limit of processes counts");
    }
    const NOBODY: u32 = 65534;
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| directory.path().join(name);
    let listen = format!("unix:{}", path("lender.sock").display());
    let _lender = LenderProcess::start("unheard", &["--listen", &listen, "--insecure"]);
    let (_journal, _) = with_a_record(&path("journal"), &listen);
    crashed(&path("journal"), &path("crashed"));
    let files = std::fs::read_dir(path("crashed")).unwrap();
    let files = files.map(|file| file.unwrap().path());
    for file in files.chain([path("crashed"), directory.path().to_owned()]) {
        std::os::unix::fs::chown(file, Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let mut command = std::process::Command::new("prlimit");
    command
        .args(["--nproc=1", crate::common::program(), "journal", "recover"])
        .arg(path("crashed"))
        .args(["--check", "--insecure", "--patience", "300ms"]);
    std::os::unix::process::CommandExt::uid(&mut command, NOBODY);
    let ran = crate::common::finish(&mut command);
    let said = ran.out + &ran.err;
    assert!(ran.code == 1 || ran.code == 3, "{}: {said}", ran.code);
    assert!(
        !said.contains("panicked") && said.contains("temporarily unavailable"),
        "{said}"
    );
}
