//! Log lines: few, of one form, and those that the guide names.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use netram_journal::{Journal, JournalConfig};
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_transport::Security;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::mounted::{cannot_mount, wait_until};
use crate::common::{LenderProcess, finish, netram, start};

const PATIENCE: Duration = Duration::from_secs(20);
const ROUNDS: usize = 6;

/// A client causes one line a session, however often it connects (case 36).
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

/// The fields of a line of `--log-format json`, in their order. Programs that collect logs rely on them.
const FIELDS: [&str; 5] = ["time", "level", "target", "message", "fields"];

/// Asserts that a service's standard error is JSON throughout, and returns the messages.
fn json_messages(log: &Path) -> Vec<String> {
    let text = fs::read_to_string(log).unwrap();
    let message = |line: &str| {
        let value: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let mut keys: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
        keys.sort_by_key(|key| FIELDS.iter().position(|field| field == key));
        assert_eq!(keys, FIELDS, "{line}");
        assert!(value["fields"].is_object(), "{line}");
        let level = value["level"].as_str().unwrap();
        assert!(["ERROR", "WARN", "INFO"].contains(&level), "{line}");
        let time = value["time"].as_str().unwrap();
        assert!(humantime::parse_rfc3339(time).is_ok(), "{line}");
        assert!(value["target"].as_str().unwrap().starts_with("netram"), "{line}");
        value["message"].as_str().unwrap().to_owned()
    };
    text.lines().map(message).collect()
}

/// Runs a service until its standard output has `announced` and its log `logged`; then ends it.
fn served(log: &Path, line: &str, announced: &str, logged: &str) {
    let out = log.with_extension("out");
    let mut command = netram();
    command.args(["-v", "--log-format", "json"]).args(line.split(' '));
    command.current_dir(log.parent().unwrap());
    command
        .stdout(File::create(&out).unwrap())
        .stderr(File::create(log).unwrap());
    let mut service = start(&mut command);
    let has = |file: &Path, text: &str| fs::read_to_string(file).unwrap().contains(text);
    wait_until(logged, || has(&out, announced) && has(log, logged));
    kill_process(Pid::from_child(&service), Signal::TERM).unwrap();
    assert!(
        service.wait().unwrap().success(),
        "{line}: {}",
        fs::read_to_string(log).unwrap()
    );
    let messages = json_messages(log);
    assert!(
        messages.iter().any(|message| message.starts_with(logged)),
        "{messages:?}"
    );
}

#[test]
fn every_line_of_every_service_is_json_with_the_same_fields() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let at = |name: &str| directory.path().join(name);
    let log = at("log");
    let socket = |name: &str| format!("unix:{}", at(name).display());
    let store = format!("/dev/shm/netram-test-json-{}.mem", std::process::id());
    let lend = format!(
        "lender serve --insecure --memory 16MiB --forget --store {store} --listen {}",
        socket("own.sock")
    );
    served(&log, &lend, "ready", "lending");

    let lender = LenderProcess::start(
        "json-log",
        &["--listen", "tcp://127.0.0.1:0", "--insecure", "--domain", "b"],
    );
    let options = format!("--insecure --lender {}", lender.address);
    let make = |line: &str| {
        let line = format!("{line} {options}");
        let ran = finish(netram().current_dir(directory.path()).args(line.split(' ')));
        assert_eq!(ran.code, 0, "{line}: {}", ran.err);
    };
    make("volume create db --size 1MiB --journal-size 4MiB");
    let serve = format!("volume serve db --listen {}", socket("nbd.sock"));
    // A signal before it is ready would end it at once.
    served(&log, &serve, "ready", "connected");
    make("shared create plan --size 1MiB --span-size 1MiB");
    let serve = format!("shared serve plan --insecure --listen {}", socket("plan.sock"));
    served(&log, &serve, "ready", "loaded the newest records");
    if cannot_mount() {
        return;
    }
    fs::create_dir(at("dir")).unwrap();
    let attach = format!("mount attach dir --on journal {options}");
    served(&log, &attach, "mounted", "connected");
}

/// The last line of a command that fails is JSON, too, and the first of one that has something to remark.
#[test]
fn errors_and_remarks_of_a_command_are_json_as_well() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    for (words, part) in [
        (
            &[
                "lender",
                "serve",
                "--listen",
                "tcp://127.0.0.1:0",
                "--key-file",
                "/nowhere",
            ][..],
            "/nowhere",
        ),
        (
            &["volume", "create", "db", "--size", "1MiB"],
            "no --lender was given",
        ),
    ] {
        let mut command = netram();
        command
            .current_dir(directory.path())
            .args(words)
            .env("NETRAM_LOG_FORMAT", "json");
        finish_into(&mut command, &log);
        let messages = json_messages(&log);
        assert!(
            messages.iter().any(|message| message.contains(part)),
            "{messages:?}"
        );
    }
}

fn finish_into(command: &mut std::process::Command, log: &Path) {
    command.stdout(Stdio::null()).stderr(File::create(log).unwrap());
    let _ = start(command).wait().unwrap();
}

/// String literals of the product's sources, one a line: continued ones are joined.
fn sources(directory: &Path, into: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with("tests") || path.ends_with("target") => (),
            true => sources(&path, into),
            false if path.extension().is_some_and(|ending| ending == "rs") => {
                let text = fs::read_to_string(&path).unwrap();
                let mut parts = text.split("\\\n");
                into.push_str(parts.next().unwrap_or_default());
                parts.for_each(|part| into.push_str(part.trim_start()));
            }
            false => (),
        }
    }
}

/// The messages of log lines in the guide, from the first column of its tables.
fn documented(guide: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut section = "";
    for line in guide.lines() {
        section = line.strip_prefix("## ").unwrap_or(section);
        let Some(cell) = line.strip_prefix("| ").and_then(|row| row.split(" | ").next()) else {
            continue;
        };
        if section.starts_with("Logs of") || cell.starts_with("log: ") {
            found.extend(cell.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    found
}

/// Operators search for these sentences, and their alerts on logs match them.
#[test]
fn every_log_line_of_the_guide_is_in_the_source() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let guide = fs::read_to_string(root.join("docs/guide/operations/monitoring.md")).unwrap();
    let mut text = String::new();
    sources(&root.join("crates"), &mut text);
    let messages = documented(&guide);
    assert!(messages.len() > 20, "{messages:?}");
    for message in messages {
        // Values stand between the parts.
        let parts: Vec<&str> = message.split('…').map(str::trim).collect();
        let stands = |line: &str| {
            let mut rest = line;
            parts.iter().all(|part| match rest.split_once(part) {
                Some((_, behind)) => {
                    rest = behind;
                    true
                }
                None => false,
            })
        };
        assert!(text.lines().any(stands), "no line of the source says: {message}");
    }
}
