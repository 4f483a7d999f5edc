//! Programs that are killed, and lenders that hold records which the disk lacks.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Installed, Language, compilers, has, succeed};
use netram_journal::JournalInspector;
use netram_lender::{Lender, LenderConfig};
use netram_store::heap::HeapPlan;
use netram_store::{
    Durability, JournalLayout, JournaledRvm, RestoreMode, SegmentAllocation, Store, StoreSettings,
};
use netram_transport::{ClusterKey, NetAddress, Security};

const KILL: i32 = 9;
/// Commits that `lenders die` makes after its disk has stopped.
const COMMITS: u64 = 200;

/// A lender in this process, and the key with which programs reach it.
struct Lending {
    _lender: Lender,
    directory: tempfile::TempDir,
}

impl Lending {
    fn start() -> Lending {
        let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
        let key = ClusterKey::generate();
        key.save_new(&directory.path().join("cluster.key"))
            .expect("the key can be written");
        let config = LenderConfig {
            name: "capi".to_owned(),
            listen: vec![NetAddress::Unix(directory.path().join("lender.sock"))],
            security: Security::Key(key),
            memory: 64 << 20,
            store: Some(directory.path().join("lender.mem")),
            ..LenderConfig::default()
        };
        Lending {
            _lender: Lender::start(config).expect("a lender starts"),
            directory,
        }
    }

    fn address(&self) -> String {
        format!("unix:{}", self.directory.path().join("lender.sock").display())
    }

    fn key_file(&self) -> String {
        self.directory.path().join("cluster.key").display().to_string()
    }

    fn environment(&self, command: &mut Command) {
        command
            .env("NETRAM_LENDERS", self.address())
            .env("NETRAM_KEY_FILE", self.key_file())
            .env("NETRAM_ONE_DOMAIN", "1");
    }

    /// Writes the settings file of the log `log` in `place`.
    fn settings(&self, place: &Path) {
        let text = format!(
            "[journal]\nlenders = [{:?}]\nkey-file = {:?}\none-domain = true\n",
            self.address(),
            self.key_file()
        );
        std::fs::write(place.join("log.toml"), text).expect("the settings can be written");
    }
}

/// Runs `crash run` until it has printed `lines` numbers, kills it, and returns the last number printed.
fn run_and_kill(command: &mut Command, lines: usize) -> u64 {
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let output = BufReader::new(child.stdout.take().expect("the stream is piped"));
    let mut said = output.lines();
    let mut last = 0;
    for _ in 0..lines {
        let line = said.next().expect("the program runs until it is killed");
        last = line
            .expect("the output is numbers")
            .parse()
            .expect("it says numbers");
    }
    child.kill().expect("the command runs");
    // Numbers printed before its death count too.
    for line in said {
        let line = line.expect("the output is numbers");
        // The last line may be incomplete.
        last = line.parse().ok().filter(|number| *number > last).unwrap_or(last);
    }
    let status = child.wait().expect("the child can be waited for");
    assert_eq!(status.signal(), Some(KILL), "{status}");
    last
}

fn kill_rounds(lending: Option<&Lending>) {
    let installed = Installed::new();
    let program = installed.compile("crash", Language::C, &["-lrvm"]);
    let place = tempfile::tempdir().expect("a temporary directory");
    let command = |case: &str| {
        let mut command = installed.command(&program);
        if let Some(lending) = lending {
            lending.environment(&mut command);
        }
        command.arg(case).arg(place.path());
        command
    };
    let mut before = 0;
    for round in 0..8 {
        let said = run_and_kill(&mut command("run"), 20 + 37 * round);
        let found: u64 = succeed(&mut command("look"), "looking")
            .trim()
            .parse()
            .expect("the output is a number");
        assert!(found >= said, "{said} was acknowledged, {found} was found");
        assert!(said > before, "commits of the previous round remain");
        before = found;
    }
}

#[test]
fn a_killed_program_loses_no_acknowledged_commit() {
    if compilers() {
        kill_rounds(None);
    }
}

#[test]
fn a_killed_program_with_a_lender_loses_no_acknowledged_commit() {
    if compilers() {
        kill_rounds(Some(&Lending::start()));
    }
}

#[test]
fn a_killed_program_loses_its_open_transaction_but_no_flushed_commit() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile("crash", Language::C, &["-lrvm"]);
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut died = installed.command(&program);
    let status = died
        .arg("open_at_the_end")
        .arg(place.path())
        .status()
        .expect("the program starts");
    assert_eq!(status.signal(), Some(KILL), "{status}");
    let mut after = installed.command(&program);
    succeed(after.arg("open_after").arg(place.path()), "open_after");
}

/// Writes the content of the region of `crash`: a number at both ends, and bytes derived from it.
fn write_number(memory: &JournaledRvm, data: &str, number: u64) {
    let region = memory.map(data, 0, 0).expect("the segment can be mapped");
    let mut transaction = memory.begin(RestoreMode::Restore);
    let bytes = vec![(number % 251) as u8; 3000];
    for (at, bytes) in [
        (0, &number.to_ne_bytes()[..]),
        (8, &bytes),
        (900 * 1024, &number.to_ne_bytes()),
    ] {
        transaction
            .write(&region, at, bytes)
            .expect("the offset is in the region");
    }
    transaction
        .commit(Durability::Remote)
        .expect("the commit succeeds");
}

/// One store, used in turn by Rust and by C, in the layout that C never creates.
#[test]
fn a_store_serves_c_and_rust_in_turn() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile("crash", Language::C, &["-lrvm"]);
    let place = tempfile::tempdir().expect("a temporary directory");
    let data = place.path().join("data").display().to_string();
    let store =
        Store::create(&place.path().join("log"), JournalLayout::Directory, 1 << 20).expect("a new store");
    let open = || {
        store
            .open(&StoreSettings::default())
            .expect("the store opens")
            .memory
    };
    {
        let memory = open();
        memory
            .create_segment(&data, 1 << 20, SegmentAllocation::Sparse)
            .expect("a new segment");
        write_number(&memory, &data, 5);
    }
    for case in ["add", "add"] {
        succeed(installed.command(&program).arg(case).arg(place.path()), case);
    }
    let said = succeed(installed.command(&program).arg("look").arg(place.path()), "look");
    assert_eq!(said.trim(), "7");
    let region = open().map(&data, 0, 0).expect("the segment can be mapped");
    assert_eq!(region.get::<u64>(900 * 1024), Ok(7));
}

/// Does the same as `netram rvm heap`.
#[test]
fn a_heap_made_by_its_tool_is_loaded_by_c() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile("heap", Language::C, &["-lrvm", "-lpthread"]);
    let place = tempfile::tempdir().expect("a temporary directory");
    let store =
        Store::create(&place.path().join("log"), JournalLayout::Beside, 1 << 20).expect("a new store");
    let memory = store
        .open(&StoreSettings::default())
        .expect("the store opens")
        .memory;
    let plan = HeapPlan {
        path: &place.path().join("heap"),
        address: 0x200_0000_0000,
        heap_bytes: 1 << 20,
        static_bytes: 4096,
        allocation: SegmentAllocation::Sparse,
    };
    plan.make(&memory).expect("the heap is created");
    drop(memory);
    for round in ["the first time", "again"] {
        let mut command = installed.command(&program);
        succeed(command.arg("made_by_its_tool").arg(place.path()), round);
    }
}

/// The program stops its own disk before it commits, so that the commits can only be recovered from the
/// lender.
fn die_and_recover(configure: &dyn Fn(&mut Command, &Path)) {
    let installed = Installed::new();
    for language in crate::common::LANGUAGES {
        let program = installed.compile("lenders", language, &["-lrvm"]);
        let place = tempfile::tempdir().expect("a temporary directory");
        let command = |case: &str| {
            let mut command = installed.command(&program);
            configure(&mut command, place.path());
            command.arg(case).arg(place.path());
            command
        };
        let died = command("die").output().expect("the program starts");
        assert_eq!(
            died.status.signal(),
            Some(KILL),
            "{}",
            String::from_utf8_lossy(&died.stderr)
        );
        let log = JournalInspector::open(&place.path().join("log")).expect("the log can be read");
        let on_disk = log.verify(&mut |_| true).scan.records;
        assert!(on_disk < COMMITS, "{on_disk} of {COMMITS} had reached the disk");
        drop(log);
        succeed(&mut command("recover"), "recovering");
    }
}

#[test]
fn commits_missing_on_disk_come_from_the_lender_in_the_environment() {
    if compilers() {
        let lending = Lending::start();
        die_and_recover(&|command, _| lending.environment(command));
    }
}

#[test]
fn commits_missing_on_disk_come_from_the_lender_in_the_settings_file() {
    if compilers() {
        let lending = Lending::start();
        die_and_recover(&|_, place| lending.settings(place));
    }
}

/// Runs the links to lenders, and recovery from them, under valgrind.
#[test]
fn a_program_with_a_lender_is_clean_under_valgrind() {
    if !compilers() || !has("valgrind") {
        return;
    }
    let lending = Lending::start();
    let installed = Installed::new();
    let program = installed.compile("lenders", Language::C, &["-lrvm"]);
    let valgrind = installed.valgrind();
    let (first, rest) = valgrind.split_first().expect("the command is not empty");
    let run = |case: &str, place: &Path, watched: bool| {
        let mut command = match watched {
            true => installed.command(first),
            false => installed.command(&program),
        };
        if watched {
            command.args(rest).arg(&program);
        }
        lending.environment(&mut command);
        command.arg(case).arg(place);
        command
    };
    let place = tempfile::tempdir().expect("a temporary directory");
    succeed(&mut run("held", place.path(), true), "held");
    let place = tempfile::tempdir().expect("a temporary directory");
    let died = run("die", place.path(), false)
        .status()
        .expect("the program starts");
    assert_eq!(died.signal(), Some(KILL), "{died}");
    succeed(&mut run("recover", place.path(), true), "recover");
}

#[test]
fn without_its_lender_a_program_commits_to_the_disk() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile("lenders", Language::C, &["-lrvm"]);
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut command = installed.command(&program);
    command
        .env(
            "NETRAM_LENDERS",
            format!("unix:{}/nobody.sock", place.path().display()),
        )
        .env("NETRAM_INSECURE", "1");
    succeed(command.arg("nobody").arg(place.path()), "nobody");
}

#[test]
fn invalid_settings_make_initialize_fail() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile("lenders", Language::C, &["-lrvm"]);
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut command = installed.command(&program);
    // Lenders, but no key.
    command.env("NETRAM_LENDERS", "tcp://127.0.0.1:1");
    succeed(command.arg("wrong_settings").arg(place.path()), "wrong_settings");
}

#[test]
fn signals_do_not_interrupt_the_creation_of_a_log() {
    if !compilers() {
        return;
    }
    let installed = Installed::new();
    let program = installed.compile("start", Language::C, &["-lrvm"]);
    let place = tempfile::tempdir().expect("a temporary directory");
    let mut command = installed.command(&program);
    succeed(command.arg("interrupted").arg(place.path()), "interrupted");
}
