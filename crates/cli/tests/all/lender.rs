//! Lenders, status and journals through the program, as an operator meets them.

use std::time::{Duration, Instant};

use crate::common::{LenderProcess, available, run};
use netram_journal::LinkFailure;
use rustix::process::Signal;
use serde_json::Value;

/// How long a lender may take to notice a change in /proc.
const PATIENCE: Duration = Duration::from_secs(60);

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn status_shows_lenders_that_answer_and_those_that_do_not() {
    let lender = LenderProcess::start(
        "status",
        &["--listen", "tcp://127.0.0.1:0", "--insecure", "--domain", "ups-1"],
    );
    let address = lender.address.as_str();
    let alive = run(["lender", "status", address, "--insecure", "--json"]);
    assert_eq!(alive.code, 0, "{}", alive.err);
    let answer = &json(&alive.out)[0];
    assert_eq!(answer["address"], address);
    assert_eq!(answer["report"]["domain"], "ups-1");
    assert_eq!(answer["report"]["memory"]["used"], 0);

    let both = run(["lender", "status", address, "unix:/nowhere/a.sock", "--insecure"]);
    assert_eq!(both.code, 1, "an unreachable lender shows in the exit code");
    assert!(
        both.out.contains("ups-1") && both.out.contains("unix:/nowhere/a.sock"),
        "{}",
        both.out
    );
    let nothing = LinkFailure::NothingListens.to_string();
    assert!(both.out.contains(&nothing), "{}", both.out);
}

/// They are the sentences by which a client says why a lender does not count.
#[test]
fn status_says_why_a_lender_does_not_answer_as_its_clients_do() {
    let directory = tempfile::tempdir().unwrap();
    let key = |name: &str| {
        let path = directory.path().join(name).to_str().unwrap().to_owned();
        assert_eq!(run(["key", "create", &path]).code, 0);
        path
    };
    let (ours, theirs) = (key("ours"), key("theirs"));
    let listen = ["--listen", "tcp://127.0.0.1:0"];
    let keyed = LenderProcess::start("keyed", &[&listen[..], &["--key-file", &theirs]].concat());
    let open = LenderProcess::start("open", &[&listen[..], &["--insecure"]].concat());
    let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mute = format!("tcp://{}", mute.local_addr().unwrap());
    let cases = [
        (keyed.address.as_str(), ours.as_str(), LinkFailure::WrongKey),
        (&open.address, &ours, LinkFailure::NoKeyThere),
        ("tcp://127.0.0.1:1", &ours, LinkFailure::NothingListens),
        (&mute, &ours, LinkFailure::NoAnswer),
        (
            "tcp://no-such-name.invalid:1",
            &ours,
            LinkFailure::NameNotFound("no-such-name.invalid".into()),
        ),
    ];
    for (address, key, away) in cases {
        let said = run([
            "lender",
            "status",
            address,
            "--key-file",
            key,
            "--timeout",
            "300ms",
            "--json",
        ]);
        let error = json(&said.out)[0]["error"].as_str().unwrap().to_owned();
        // Without a name server it is not known that the name does not exist.
        let unanswered = LinkFailure::NameUnanswered("no-such-name.invalid".into()).to_string();
        let sentence = error.trim_end_matches('.').to_lowercase();
        let expected = [away.to_string(), unanswered].map(|one| one.to_lowercase());
        assert!(expected.contains(&sentence), "{address}: {error}");
    }
}

#[test]
fn status_tells_of_a_lender_whose_machine_is_short_of_memory() {
    let directory = tempfile::tempdir().unwrap();
    available(directory.path(), 768 << 20);
    let proc = directory.path().to_str().unwrap();
    let listen = ["--listen", "tcp://127.0.0.1:0", "--insecure", "--pressure", "7.5"];
    let watch = ["--keep-free", "512MiB", "--proc", proc];
    let lender = LenderProcess::start("short", &[listen.as_slice(), &watch].concat());
    let until_short = |short: bool| {
        let until = Instant::now() + PATIENCE;
        loop {
            let memory = lender.status()["memory"].clone();
            let lent = if short { 0 } else { 16 << 20 };
            let given = (16 << 20) - lent;
            if memory["offered"] == lent && memory["given_back"] == given {
                return run(["lender", "status", &lender.address, "--insecure"]).out;
            }
            assert!(Instant::now() < until, "{memory}");
        }
    };
    assert!(!until_short(false).contains("offers"));
    available(directory.path(), 0);
    let out = until_short(true);
    assert!(out.contains("lending, insecure, offers less"), "{out}");
    assert!(
        out.contains("offers 0 B of 16.0 MiB: 0 windows and 0 pages are asked back, 16.0 MiB returned"),
        "{out}"
    );
}

#[test]
fn how_short_of_memory_a_machine_may_be_is_checked() {
    let lend = [
        "lender",
        "serve",
        "--listen",
        "unix:/nowhere/a.sock",
        "--insecure",
    ];
    for (option, value, says) in [
        ("--pressure", "101", "a percentage of time, from 0 to 100"),
        ("--pressure", "much", "invalid value"),
        ("--keep-free", "much", "is not a size"),
    ] {
        let ran = run([lend.as_slice(), &[option, value]].concat());
        assert_eq!(ran.code, 2, "{}", ran.err);
        assert!(ran.err.contains(says), "{}", ran.err);
    }
}

#[test]
fn a_lender_with_a_key_tells_strangers_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (key, other) = (file("key"), file("other"));
    run(["key", "create", &key]);
    run(["key", "create", &other]);
    let socket = format!("unix:{}", file("lender.sock"));
    let lender = LenderProcess::start("secure", &["--listen", &socket, "--key-file", &key]);
    assert_eq!(
        run(["lender", "status", &lender.address, "--key-file", &key]).code,
        0
    );
    let wrong = run(["lender", "status", &lender.address, "--key-file", &other]);
    assert_eq!(wrong.code, 1);
    assert!(wrong.out.contains("cluster key is not ours"), "{}", wrong.out);
    let without = run(["lender", "status", &lender.address, "--insecure"]);
    assert_eq!(without.code, 1);
    assert!(
        without.out.contains("requires the cluster key"),
        "{}",
        without.out
    );
    assert_eq!(
        run(["lender", "status", &lender.address, "--key-file", &key]).code,
        0,
        "and it is unharmed"
    );
}

#[test]
fn a_signal_stops_a_lender_and_its_memory_is_kept_or_given_back() {
    for (name, extra, kept) in [("keep", None, true), ("forget", Some("--forget"), false)] {
        let arguments = ["--listen", "tcp://127.0.0.1:0", "--insecure"]
            .into_iter()
            .chain(extra);
        let mut lender = LenderProcess::start(name, &arguments.collect::<Vec<_>>());
        assert!(lender.store().exists());
        let signal = if kept { Signal::TERM } else { Signal::INT };
        assert_eq!(lender.stop(signal), Some(0));
        assert_eq!(lender.store().exists(), kept);
    }
}

#[test]
fn two_lenders_do_not_lend_the_same_memory() {
    let lender = LenderProcess::start("first", &["--listen", "tcp://127.0.0.1:0", "--insecure"]);
    let store = lender.store().to_str().unwrap();
    let second = run([
        "lender",
        "serve",
        "--listen",
        "tcp://127.0.0.1:0",
        "--insecure",
        "--store",
        store,
    ]);
    assert_eq!(second.code, 1);
    assert!(
        second.err.starts_with("netram: starting the lender: "),
        "{}",
        second.err
    );
    assert!(second.err.contains("in use by another lender"), "{}", second.err);
    let spare = format!("/dev/shm/netram-test-{}-spare.mem", std::process::id());
    let spare = spare.as_str();
    let taken = run([
        "lender",
        "serve",
        "--listen",
        &lender.address,
        "--insecure",
        "--memory",
        "1MiB",
        "--store",
        spare,
    ]);
    assert_eq!(taken.code, 1);
    assert!(taken.err.contains("in use by another process"), "{}", taken.err);
    let _ = std::fs::remove_file(spare);
}

#[test]
fn a_lender_reads_its_configuration_file_and_refuses_unknown_keys() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lender.toml");
    let file = path.to_str().unwrap();
    std::fs::write(
        &path,
        "listen = ['tcp://127.0.0.1:0']\ninsecure = true\ndomain = 'from-file'\n",
    )
    .unwrap();
    let lender = LenderProcess::start("config", &["--config", file]);
    let status = run(["lender", "status", &lender.address, "--insecure", "--json"]);
    assert_eq!(json(&status.out)[0]["report"]["domain"], "from-file");
    std::fs::write(&path, "lisen = ['tcp://127.0.0.1:0']").unwrap();
    let refused = run(["lender", "serve", "--config", file]);
    assert_eq!(refused.code, 1);
    assert!(
        refused.err.contains("lisen") && refused.err.contains(file),
        "{}",
        refused.err
    );
}

#[test]
fn a_journal_is_made_shown_verified_and_recovered() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let dir = path.to_str().unwrap();
    let made = run(["journal", "create", dir, "--size", "1MiB"]);
    assert_eq!(made.code, 0, "{}", made.err);
    let shown = json(&run(["journal", "status", dir, "--json"]).out);
    assert!(made.out.contains(shown["journal"].as_str().unwrap()));
    assert_eq!(shown["capacity"], 1 << 20);
    assert_eq!(shown["view"]["epoch"], 0);
    let recovered = run(["journal", "recover", dir]);
    assert_eq!(recovered.code, 0, "{}", recovered.err);
    assert!(recovered.out.contains("this is epoch 1"), "{}", recovered.out);
    let verified = run(["journal", "check", dir]);
    assert_eq!(verified.code, 0);
    assert!(verified.out.contains("every record is whole"), "{}", verified.out);
    assert!(run(["journal", "status", dir]).out.contains("epoch     1"));
    assert_eq!(
        run(["journal", "create", dir]).code,
        1,
        "an existing journal is not touched"
    );
}

#[test]
fn a_directory_that_is_not_a_journal_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("journal");
    let dir = path.to_str().unwrap();
    for command in ["status", "check", "recover"] {
        let ran = run(["journal", command, dir]);
        assert_eq!(ran.code, 1);
        assert!(
            ran.err.contains(dir)
                && ran.err.contains("netram journal create")
                && ran.err.contains("netram rvm create"),
            "{}",
            ran.err
        );
    }
    run(["journal", "create", dir, "--size", "1MiB"]);
    std::fs::write(path.join("log"), vec![7; 4096]).unwrap();
    let ran = run(["journal", "status", dir]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("log"), "{}", ran.err);
    let tiny = directory.path().join("tiny");
    assert_eq!(
        run(["journal", "create", tiny.to_str().unwrap(), "--size", "1"]).code,
        1
    );
    assert!(!tiny.exists());
}
