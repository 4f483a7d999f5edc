//! The metrics of a program under `netram run`.

use super::programs::interpreter;
use super::*;
use crate::common::mounted::wait_until;
use crate::telemetry::{assert_checked, has_program, port, scraped, value};

/// Goes over 32 MiB that do not compress, again and again.
const PROGRAM: &str = "
import mmap, os
far = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(0, len(far), 4096):
    far[page:page + 4096] = os.urandom(4096)
turn = 0
while True:
    turn = (turn + 1) % 256
    for page in range(0, len(far), 4096):
        far[page] = turn
";

#[test]
fn a_program_in_far_memory_tells_how_long_its_faults_take() {
    let Some(python) = interpreter() else {
        return;
    };
    let Some(site) = RunTestbed::new("metrics", 2, "96MiB") else {
        return;
    };
    let page = port();
    let mut command = site.run("4MiB", &["--metrics", &page], &python);
    let mut running = start(
        command
            .args(["-c", PROGRAM])
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    );
    let name = "netram_far_fault_duration_seconds_count{";
    wait_until("faults are timed", || {
        value(&scraped(&page), name, "from=\"lender\"").is_some_and(|count| count > 1000.0)
    });
    let text = scraped(&page);
    assert!(
        value(&text, name, "from=\"zeros\"").is_some_and(|count| count > 1000.0),
        "{text}"
    );
    assert_eq!(
        value(&text, "netram_far_local_limit_bytes{", ""),
        Some(4.0 * 1048576.0),
        "{text}"
    );
    assert!(
        value(&text, "netram_far_local_bytes{", "") <= Some(4.0 * 1048576.0),
        "{text}"
    );
    if has_program("promtool") {
        assert_checked(&text);
    }
    // `timeout` would be killed, and not the program: its signal goes on to it.
    let pid = rustix::process::Pid::from_child(&running);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    running.wait().unwrap();
}

#[test]
fn an_address_in_use_is_refused_before_the_program_starts() {
    let Some(site) = RunTestbed::new("metrics-used", 1, "16MiB") else {
        return;
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut command = site.run("1MiB", &["--metrics", &address], Path::new("echo"));
    let ran = finish(command.arg("ran"));
    assert!(ran.code == 1 && ran.out.is_empty(), "{}{}", ran.out, ran.err);
    assert!(
        ran.err.contains("another process listens there") && ran.err.contains(&address),
        "{}",
        ran.err
    );
}
