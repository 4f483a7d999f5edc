//! A node's process is stopped beyond its lease, and continued. Under its kept tokens it reads nothing before
//! its server has answered, since other nodes have the locks by then.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::KilledChild;
use crate::common::world::{TestPaths, add, try_read};

const PLACE: &str = "NETRAM_TEST_PLACE";
const NAME: &str = "NETRAM_TEST_NAME";
const LEASE: Duration = Duration::from_millis(800);
const SLEEPERS: [&str; 3] = ["one", "two", "three"];

/// Not a test of its own: a node that reads under a kept token, over and over. A read that begins after the
/// file `written` exists must see the later commit.
#[test]
#[ignore = "a process of the other test"]
fn sleeper() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(60));
        std::process::exit(3);
    });
    let written = directory.join("written");
    let node = TestPaths { directory }.join(&std::env::var(NAME).expect("a name"));
    let say = |text: &str| writeln!(std::io::stdout(), "\n{text}").expect("somebody reads");
    assert_eq!(try_read(&node, 0).expect("nobody has fenced it"), 1);
    say("reads");
    loop {
        let is_written = written.exists();
        match try_read(&node, 0) {
            Ok(1) if is_written => break say("old"),
            Ok(1) => (),
            Ok(value) => break say(&format!("new {value}")),
            Err(_) => break say("gone"),
        }
    }
}

#[test]
fn a_node_stopped_beyond_its_lease_reads_no_stale_data() {
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    let _lender = place.lender("a");
    place.create(1, &["a"]);
    let _serving = place.serve_with(LEASE);
    let writer = place.join("writer");
    assert_eq!(add(&writer, 0, 1).unwrap(), 1);
    let mut sleepers = SLEEPERS.map(|name| {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "asleep::sleeper", "--ignored", "--nocapture"])
            .env(PLACE, &place.directory)
            .env(NAME, name)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut process = KilledChild(child.unwrap());
        let said = BufReader::new(process.0.stdout.take().unwrap()).lines();
        (process, said.map_while(Result::ok))
    });
    for (_, said) in &mut sleepers {
        assert!(said.any(|line| line == "reads"), "it never joined");
    }
    sleepers.iter().for_each(|(process, _)| process.freeze());
    // The tokens are recalled, and the writer gets the lock when the leases are over.
    assert_eq!(add(&writer, 0, 1).unwrap(), 2);
    std::fs::write(place.directory.join("written"), "").unwrap();
    sleepers.iter().for_each(|(process, _)| process.signal("-CONT"));
    for (_, said) in &mut sleepers {
        let end = said.find(|line| line == "gone" || line == "old" || line.starts_with("new "));
        assert!(matches!(end.as_deref(), Some("gone" | "new 2")), "{end:?}");
    }
}
