//! Lenders, rule and number of members of open journals of several kinds, changed by command while they
//! commit.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use netram_journal::JournalConfig;
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::{Node, NodeOptions};
use netram_shared_machine::{LockId, LockMode};
use netram_transport::Security;
use serde_json::Value;

use crate::common::mounted::{MountFixture, cannot_mount, wait_until};
use crate::common::shared::{PATIENCE, SharedFixture, SharedServer};
use crate::common::{LenderProcess, run};

fn order(path: &Path, words: &[&str]) {
    let path = path.to_str().unwrap();
    let command = [&["journal", words[0], path], &words[1..], &["--wait"]].concat();
    let said = run(command);
    assert_eq!(said.code, 0, "{words:?}: {}{}", said.out, said.err);
    assert!(said.out.ends_with("complete\n"), "{words:?}: {}", said.out);
}

/// The addresses of the members of each open journal, and its rule.
fn members(path: &Path) -> Vec<(Vec<String>, String)> {
    let said = run(["journal", "lenders", path.to_str().unwrap(), "--json"]);
    let said: Value = serde_json::from_str(&said.out).unwrap_or_else(|_| panic!("{}{}", said.out, said.err));
    let of_journal = |open: &Value| {
        let lenders = open["state"]["lenders"].as_array().unwrap().iter();
        let mut members: Vec<String> = lenders
            .filter(|lender| lender["member"] == true)
            .map(|lender| lender["address"].as_str().unwrap().to_owned())
            .collect();
        members.sort();
        let rule = open["state"]["rule_in_force"].as_str().unwrap();
        (members, rule.to_owned())
    };
    said["open"].as_array().unwrap().iter().map(of_journal).collect()
}

/// Moves the journals of `path` from their one lender to the two others, and changes their rule. `commits`
/// counts what they have acknowledged; `more` is added to each command.
pub(crate) fn move_away(path: &Path, lenders: &[LenderProcess], more: &[&str], commits: &dyn Fn() -> u64) {
    let address = |index: usize| lenders[index].address.as_str();
    let go_on = || {
        let before = commits();
        wait_until("commits go on", || commits() > before + 20);
    };
    go_on();
    let order = |words: &[&str]| order(path, &[words, more].concat());
    order(&["add-lender", address(1), address(2), "--members", "2"]);
    go_on();
    order(&["remove-lender", address(0)]);
    go_on();
    order(&["set", "--rule", "any"]);
    go_on();
    let mut expected = [address(1).to_owned(), address(2).to_owned()];
    expected.sort();
    let found = members(path);
    assert!(!found.is_empty());
    for (members, rule) in found {
        assert_eq!((members.as_slice(), rule.as_str()), (&expected[..], "any"));
    }
}

/// Two more lenders for a journal in `directory` that has one.
pub(crate) fn two_more(directory: &Path, name: &str) -> [LenderProcess; 2] {
    [1, 2].map(|number| {
        let listen = format!("unix:{}/more-{number}", directory.display());
        let name = format!("{name}-more-{number}");
        LenderProcess::start(&name, &["--insecure", "--listen", &listen])
    })
}

#[test]
fn a_mounted_directory_moves_to_other_lenders_while_files_are_synced() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("orders", 1, "4MiB");
    let more = two_more(mounted.directory.path(), "orders-mount");
    mounted.lenders.extend(more);
    let file = mounted.dir().join("log");
    let (stop, synced) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut log = File::create(&file).unwrap();
            while !stop.load(Ordering::SeqCst) {
                let line = synced.load(Ordering::SeqCst) + 1;
                writeln!(log, "{line}").unwrap();
                log.sync_data().unwrap();
                synced.store(line, Ordering::SeqCst);
            }
        });
        let ordered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            move_away(&mounted.dir(), &mounted.lenders, &[], &|| {
                synced.load(Ordering::SeqCst)
            });
        }));
        stop.store(true, Ordering::SeqCst);
        ordered.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    mounted.kill();
    // The first lender has nothing that anybody needs.
    drop(mounted.lenders.remove(0));
    mounted.mount();
    let lines = std::fs::read_to_string(&file).unwrap().lines().count() as u64;
    assert!(lines >= synced.load(Ordering::SeqCst), "{lines}");
    assert_eq!(mounted.unmount().code, 0);
}

/// The commands find no settings of a node's journal, which its program has: so they change what is open.
#[test]
fn a_regions_node_moves_to_other_lenders_while_it_commits() {
    let place = SharedFixture::new();
    let made = place.shared("create", "plan", &["--size", "64KiB", "--log-size", "1MiB"]);
    assert_eq!(made.code, 0, "{}", made.err);
    let server = SharedServer::start(&place, "plan", &["--lease", "60s"]);
    let listen = format!("unix:{}", place.path("lender").display());
    let mut lenders = vec![LenderProcess::start(
        "orders-node",
        &["--insecure", "--listen", &listen],
    )];
    lenders.extend(two_more(place.path("lender").parent().unwrap(), "orders-node"));
    let journal = JournalConfig {
        one_domain: true,
        ..JournalConfig::with_lenders(vec![listen.parse().unwrap()], Security::Insecure, 1)
    };
    let join = |name: &str, journal: Option<JournalConfig>| {
        let address = server.address.parse().unwrap();
        let options = NodeOptions::new(address, Security::Insecure, place.path(name));
        Node::join(NodeOptions {
            journal,
            server_timeout: PATIENCE,
            ..options
        })
        .unwrap()
    };
    let node = join("node", Some(journal));
    let (stop, commits) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let number = commits.load(Ordering::SeqCst) + 1;
                let mut txn = node.begin(RestoreMode::Restore).unwrap();
                txn.acquire(LockId(0), LockMode::Exclusive).unwrap();
                txn.write(0, &number.to_le_bytes()).unwrap();
                txn.commit(Durability::Remote).unwrap();
                commits.store(number, Ordering::SeqCst);
            }
        });
        let ordered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut files = std::fs::read_dir(place.path("node")).unwrap();
            let is_journal = |path: &std::path::PathBuf| path.join("log").exists();
            let path = files.find_map(|file| file.ok().map(|file| file.path()).filter(is_journal));
            let path = path.expect("the node has a journal");
            move_away(&path, &lenders, &["--until-closed"], &|| {
                commits.load(Ordering::SeqCst)
            });
        }));
        stop.store(true, Ordering::SeqCst);
        ordered.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    node.leave().unwrap();
    let other = join("other", None);
    let mut txn = other.begin(RestoreMode::Restore).unwrap();
    txn.acquire(LockId(0), LockMode::Shared).unwrap();
    drop(txn);
    let reader = other.reader().unwrap();
    let found = reader.read().unwrap()[..8].to_vec();
    assert_eq!(found, commits.load(Ordering::SeqCst).to_le_bytes());
}
