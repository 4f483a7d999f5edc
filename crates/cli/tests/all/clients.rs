//! Named clients as an operator gives them keys: the commands, a lender that reads the file again on SIGHUP,
//! and a journal that goes on meanwhile.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netram_journal::{Journal, JournalConfig};
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_transport::{ClusterKey, ConnectError, Security, connect};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{CommandOutput, LenderProcess, run};
use crate::lifecycle::PATIENCE;
use crate::neighbour::{earlier_program, ran};

/// An operator's directory: a file of clients, their keys, and a lender that serves from it.
struct Office(tempfile::TempDir);

impl Office {
    fn new() -> Office {
        Office(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Runs `netram key WORDS --clients FILE`, which succeeds.
    fn key(&self, words: &[&str]) -> CommandOutput {
        let done = self.try_key(words);
        assert_eq!(done.code, 0, "{}", done.err);
        done
    }

    fn try_key(&self, words: &[&str]) -> CommandOutput {
        let clients = self.text("clients");
        run([&["key"], words, &["--clients", &clients]].concat())
    }

    /// Gives a client a key, which is written to a file of this name.
    fn give(&self, command: &str, name: &str, file: &str, words: &[&str]) {
        let out = self.text(file);
        self.key(&[&[command, name, "--out", &out], words].concat());
    }

    fn list(&self) -> Value {
        serde_json::from_str(&self.key(&["list", "--json"]).out).unwrap()
    }

    fn listen(&self) -> String {
        format!("unix:{}", self.path("lender.sock").display())
    }

    fn lender(&self, name: &str) -> LenderProcess {
        let (listen, clients) = (self.listen(), self.text("clients"));
        LenderProcess::start(name, &["--listen", &listen, "--clients", &clients])
    }

    fn security(&self, key: &str) -> Security {
        Security::Key(ClusterKey::load(&self.path(key)).unwrap())
    }

    /// Opens a journal at the lender with this key.
    fn journal(&self, root: &Path, key: &str) -> Journal {
        let config = JournalConfig {
            one_domain: true,
            window_bytes: 1 << 20,
            disk_delay: Duration::from_secs(3600),
            ..JournalConfig::with_lenders(vec![self.listen().parse().unwrap()], self.security(key), 1)
        };
        if !root.exists() {
            Journal::create(root, 1 << 20).unwrap();
        }
        let (journal, _) = Journal::open(root, config).unwrap();
        journal.wait_for_members(PATIENCE).unwrap();
        journal
    }

    fn is_admitted(&self, key: &str) -> bool {
        match connect(&self.listen().parse().unwrap(), &self.security(key), PATIENCE) {
            Ok(_) => true,
            Err(ConnectError::WrongKey) => false,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Sends SIGHUP, and waits until the lender admits this key, or no longer.
fn reload(office: &Office, lender: &LenderProcess, key: &str, admitted: bool) {
    kill_process(Pid::from_raw(lender.id() as i32).unwrap(), Signal::HUP).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while office.is_admitted(key) != admitted {
        assert!(Instant::now() < deadline, "the file of clients is not read again");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn commit(journal: &Journal) {
    let ticket = journal
        .append(RecordKind(16), 3, &mut |into| into.copy_from_slice(b"abc"))
        .unwrap();
    journal.wait(ticket, Durability::Remote).unwrap();
}

#[test]
fn a_key_is_rotated_and_another_revoked_while_a_journal_commits() {
    let office = Office::new();
    office.give("add", "db", "db.key", &["memory=8MiB", "status=no"]);
    office.give("add", "other", "other.key", &[]);
    let lender = office.lender("named");
    let journal = office.journal(&office.path("journal"), "db.key");
    let other = office.journal(&office.path("other"), "other.key");
    (0..50).for_each(|_| commit(&journal));
    commit(&other);

    office.give("rotate", "db", "db-new.key", &[]);
    assert!(
        !office.is_admitted("db-new.key"),
        "not before the lender has read it"
    );
    reload(&office, &lender, "db-new.key", true);
    (0..50).for_each(|_| commit(&journal));
    let successor = office.journal(&office.path("second"), "db-new.key");
    office.key(&["revoke", "db", "--old"]);
    reload(&office, &lender, "db.key", false);
    (0..50).for_each(|_| commit(&successor));

    // The program that still has the old key falls back to its disk and loses nothing. With the new key it
    // recovers what only the lender has.
    let ticket = journal
        .append(RecordKind(16), 3, &mut |into| into.copy_from_slice(b"abc"))
        .unwrap();
    journal.wait(ticket, Durability::Disk).unwrap();
    drop(journal);
    commit(&office.journal(&office.path("journal"), "db-new.key"));

    office.key(&["revoke", "other"]);
    reload(&office, &lender, "other.key", false);
    let names: Vec<Value> = office.list()["clients"].as_array().unwrap().clone();
    assert_eq!(names.len(), 1);
    assert_eq!(
        (&names[0]["name"], &names[0]["limits"]["memory"]),
        (&"db".into(), &"8MiB".into())
    );
    assert_eq!(names[0]["fingerprints"].as_array().unwrap().len(), 1);
    commit(&successor);
}

#[test]
fn the_commands_refuse_what_cannot_be_and_show_no_key() {
    let office = Office::new();
    office.give("add", "db", "db.key", &["memory=1GiB"]);
    let secret = fs::read_to_string(office.path("db.key")).unwrap();
    let mode = |name: &str| fs::metadata(office.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("db.key"), mode("clients")), (0o600, 0o600));
    let shown = office.key(&["list"]);
    assert!(
        shown.out.contains("db") && shown.out.contains("1GiB"),
        "{}",
        shown.out
    );
    assert!(
        !shown.out.contains(&secret.trim_end()[14..]),
        "a key is never shown"
    );
    let out = office.text("new.key");
    for (words, problem) in [
        (&["add", "db", "--out", &out][..], "twice"),
        (&["add", "a b", "--out", &out], "letters"),
        (&["add", "c", "root=yes", "--out", &out], "memory, journals"),
        (&["add", "c", "memory=much", "--out", &out], "64MiB"),
        (
            &["add", "c", "--out", &office.text("db.key")],
            "never overwritten",
        ),
        (
            &["rotate", "nobody", "--out", &out],
            "no client `nobody`; it has: db",
        ),
        (&["revoke", "nobody"], "no client `nobody`"),
        (&["revoke", "db", "--old"], "one key only"),
    ] {
        let refused = office.try_key(words);
        assert_ne!(refused.code, 0, "{words:?}: {}", refused.out);
        assert!(refused.err.contains(problem), "{words:?}: {}", refused.err);
        assert!(!office.path("new.key").exists(), "{words:?} leaves no key behind");
    }
    let after = office.list();
    assert_eq!(after["clients"].as_array().unwrap().len(), 1);
}

#[test]
fn a_lender_refuses_a_file_of_clients_that_cannot_be() {
    let office = Office::new();
    office.give("add", "db", "db.key", &[]);
    let good = fs::read_to_string(office.path("clients")).unwrap();
    let (clients, listen) = (office.text("clients"), office.listen());
    let serve = |more: &[&str]| {
        let arguments = ["lender", "serve", "--listen", &listen, "--clients", &clients];
        run([&arguments[..], more].concat())
    };
    for (text, mode, problem) in [
        (format!("{good}{good}"), 0o600, "`db` is there twice"),
        (format!("{good}root = yes\n"), 0o600, "`root` is not known"),
        (good.clone(), 0o644, "chmod 600"),
        ("[db]\nkey = netram-key-1:12\n".to_owned(), 0o600, "line 2"),
    ] {
        fs::write(office.path("clients"), text).unwrap();
        fs::set_permissions(office.path("clients"), fs::Permissions::from_mode(mode)).unwrap();
        let refused = serve(&[]);
        assert_ne!(refused.code, 0, "{}", refused.out);
        assert!(refused.err.contains(problem), "{}", refused.err);
    }
    let beside = serve(&["--key-file", &office.text("db.key")]);
    assert_eq!(beside.code, 2);
    assert!(beside.err.contains("leave --key-file"), "{}", beside.err);
}

/// Programs before named clients do not say which key they have. The cluster's key becomes that of the first
/// name, and they go on.
#[test]
fn a_client_of_the_last_release_is_known_by_the_first_name() {
    let office = Office::new();
    let earlier = earlier_program(office.0.path());
    let made = run(["key", "create", &office.text("cluster.key")]);
    assert_eq!(made.code, 0, "{}", made.err);
    office.key(&["add", "fleet", "--key-file", &office.text("cluster.key")]);
    office.give("add", "new", "new.key", &[]);
    let lender = office.lender("adopting");
    let (listen, key) = (office.listen(), office.text("cluster.key"));
    let asked = ["lender", "status", &listen, "--json", "--key-file", &key];
    let shown = ran(&earlier, &asked);
    assert_eq!(shown.code, 0, "{}", shown.err);
    // The key of another name is not tried for it.
    let other = office.text("new.key");
    let asked = ["lender", "status", &listen, "--json", "--key-file", &other];
    assert_ne!(ran(&earlier, &asked).code, 0);
    let table = run(["lender", "status", &listen, "--key-file", &key]);
    assert!(
        table.out.contains("fleet") && table.out.contains("new"),
        "{}",
        table.out
    );
    drop(lender);
}
