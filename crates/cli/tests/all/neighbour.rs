//! Releases that are neighbours may be mixed: the program of the last wire version, kept as a file, beside
//! this one.
//!
//! `kept/netram-wire-1.gz` has lenders and the commands of journals only (`cargo build --release -p
//! netram-cli --no-default-features` of the last commit that spoke wire version 1, stripped).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use netram_journal::{Journal, JournalConfig};
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_transport::Security;

use crate::common::{CommandOutput, LenderProcess, clean, finish, netram};
use crate::lifecycle::{PATIENCE, crashed, with_a_record};

/// The program of wire version 1, in `directory`.
pub(crate) fn earlier_program(directory: &Path) -> PathBuf {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept/netram-wire-1.gz");
    let program = directory.join("netram-wire-1");
    let unpacked = Command::new("gzip").arg("-dc").arg(&kept).output().unwrap();
    assert!(unpacked.status.success(), "{kept:?}");
    fs::write(&program, unpacked.stdout).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

pub(crate) fn ran(program: &Path, arguments: &[&str]) -> CommandOutput {
    finish(clean(Command::new(program)).args(arguments))
}

/// A journal with an owner at a lender that knows none: it is served, and a crash loses nothing.
#[test]
fn a_lender_of_the_last_wire_version_keeps_a_journal_of_this_one() {
    let directory = tempfile::tempdir().unwrap();
    let earlier = earlier_program(directory.path());
    let path = |name: &str| directory.path().join(name);
    let listen = format!("unix:{}", path("lender.sock").display());
    let arguments = ["--listen", &listen, "--insecure"];
    let _lender = LenderProcess::of_program(clean(Command::new(&earlier)), "16MiB", "earlier", &arguments);
    let (journal, config) = with_a_record(&path("journal"), &listen);
    crashed(&path("journal"), &path("crashed"));
    let (again, recovered) = Journal::open(&path("crashed"), config).unwrap();
    assert_eq!(recovered.records_from_members, 1);
    drop((again, journal));
}

/// The earlier program asks this lender, and ends a journal without an owner there. One that has an owner is
/// not its business.
#[test]
fn a_client_of_the_last_wire_version_is_served_by_this_lender() {
    let directory = tempfile::tempdir().unwrap();
    let earlier = earlier_program(directory.path());
    let path = |name: &str| directory.path().join(name);
    let listen = format!("unix:{}", path("lender.sock").display());
    let lender = LenderProcess::start("neighbour", &["--listen", &listen, "--insecure"]);
    let (journal, _) = with_a_record(&path("journal"), &listen);
    let shown = ran(&earlier, &["lender", "status", &listen, "--insecure", "--json"]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    let id = lender.status()["journals"][0]["id"].as_str().unwrap().to_owned();
    drop(journal);
    let owned = ran(
        &earlier,
        &["lender", "forget", &id, &listen, "--insecure", "--force"],
    );
    assert_eq!(owned.code, 1, "{}", owned.out);
    let root = path("unowned");
    Journal::create_unowned(&root, 1 << 20).unwrap();
    let lenders = vec![listen.parse().unwrap()];
    let config = JournalConfig {
        one_domain: true,
        window_bytes: 1 << 20,
        ..JournalConfig::with_lenders(lenders, Security::Insecure, 1)
    };
    let (journal, _) = Journal::open(&root, config).unwrap();
    journal.wait_for_members(PATIENCE).unwrap();
    let ticket = journal
        .append(RecordKind(16), 3, &mut |into| into.copy_from_slice(b"abc"))
        .unwrap();
    journal.wait(ticket, Durability::Disk).unwrap();
    let id = journal.id().to_string();
    drop(journal);
    let free = ran(
        &earlier,
        &["lender", "forget", &id, &listen, "--insecure", "--force"],
    );
    assert_eq!(free.code, 0, "{}", free.out);
}

/// A journal's directory that this release has written is refused by the earlier one, and stays as it is.
#[test]
fn a_journal_of_this_release_is_refused_by_the_earlier_program_unharmed() {
    let directory = tempfile::tempdir().unwrap();
    let earlier = earlier_program(directory.path());
    let root = directory.path().join("journal");
    Journal::create(&root, 1 << 20).unwrap();
    let (journal, _) = Journal::open(&root, JournalConfig::default()).unwrap();
    drop(journal);
    let text = root.to_str().unwrap();
    let before = fs::read(root.join("view")).unwrap();
    let refused = ran(&earlier, &["journal", "recover", text, "--insecure"]);
    assert_eq!(refused.code, 1, "{} {}", refused.out, refused.err);
    assert!(refused.err.contains("format"), "{}", refused.err);
    assert_eq!(fs::read(root.join("view")).unwrap(), before);
    let opened = finish(netram().args(["journal", "recover", text, "--insecure"]));
    assert_eq!(opened.code, 0, "{}", opened.err);
}
