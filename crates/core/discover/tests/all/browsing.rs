//! Browsing leaves nothing behind in the program that browsed.
//!
//! The test runs itself in a network of its own, so that no packet leaves this machine.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netram_discover::mdns::browse;

const INNER: &str = "NETRAM_TEST_BROWSING";

#[test]
fn a_program_that_browsed_has_no_thread_of_it() {
    let ran = Command::new("unshare")
        .args(["--net", "--", "sh", "-ec"])
        .arg("ip link set lo up; ip link add eth type veth peer name other; ip address add 10.78.0.1/24 dev eth; \
              ip link set eth up; ip link set other up; exec \"$@\"")
        .arg("sh")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "browsing::in_a_network_of_its_own", "--ignored", "--nocapture"])
        .env(INNER, "1")
        .stdin(Stdio::null())
        .output();
    let ran = match ran {
        Ok(ran) => ran,
        Err(error) => return skipped(&format!("unshare: {error}")),
    };
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    if !ran.status.success() && !said.contains("running 1 test") {
        return skipped(&said);
    }
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

/// Prints the notice directly to stderr, since the harness hides the output of a test that passes.
fn skipped(missing: &str) {
    use std::io::Write;
    // A failure to print cannot be reported anywhere.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED browsing: {missing}");
}

/// The inner half of the test above.
#[test]
#[ignore = "runs in a network that the other test makes"]
fn in_a_network_of_its_own() {
    if std::env::var_os(INNER).is_none() {
        return;
    }
    for _ in 0..3 {
        assert_eq!(browse(Duration::from_millis(200)).unwrap(), []);
    }
    // The thread has said that it ends; the system may take a moment to remove it.
    let deadline = Instant::now() + Duration::from_secs(60);
    while threads().iter().any(|name| name.starts_with("mDNS")) {
        assert!(Instant::now() < deadline, "{:?}", threads());
        std::thread::yield_now();
    }
}

fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok())
        .collect()
}
