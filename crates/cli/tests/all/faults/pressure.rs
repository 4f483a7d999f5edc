//! A lender whose machine's users want its memory: they get it, and commits keep their copies.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::drain::{MEMBERS, check, until_member};
use crate::common::available as available_is;
use crate::faults::harness::process::{FaultsProcess, netram};
use crate::faults::harness::{ClientProcess, FaultsFixture, FaultsLender, skipped};

const MIB: u64 = 1 << 20;
/// Bytes that the lender lends, and that it gives back.
const LENT: u64 = 512 * MIB;
const WINDOW: u64 = 64 * MIB;
/// Bytes that the machine can spare beside what is lent.
const SPARE: u64 = 256 * MIB;
/// Bytes that stay available whatever the users take, for this test's programs and other tests.
const LEFT: u64 = 1024 * MIB;
/// Times that users take memory, if other programs have freed some meanwhile.
const TAKERS_MAX: usize = 8;
/// Maximum time for a lender to give all back. It takes less than a second on an idle machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes of memory that are available on this machine.
fn available() -> u64 {
    let meminfo = std::fs::read_to_string("/proc/meminfo").expect("/proc is there");
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    1024 * kib
        .and_then(|kib| kib.parse::<u64>().ok())
        .expect("it is a number")
}

/// Has users take so much that `lacking` bytes are missing. They do until it is dropped.
fn take(place: &FaultsFixture, keep_free: u64, lacking: u64) -> FaultsProcess {
    let bytes = (available() + lacking)
        .saturating_sub(keep_free)
        .max(MIB)
        .to_string();
    let mut command = Command::new("stress-ng");
    command.args([
        "--vm",
        "1",
        "--vm-keep",
        "--vm-bytes",
        &bytes,
        "--timeout",
        "120s",
    ]);
    FaultsProcess::start(&mut command, &place.memory().join("stress-ng.log"))
}

fn starts(place: &FaultsFixture, name: &str, more: &[&str]) -> FaultsLender {
    let address = format!("unix:{}", place.memory().join(name).display());
    FaultsLender::start(place, name, &address, &[], more)
}

fn memory(lender: &FaultsLender, place: &FaultsFixture) -> Value {
    lender.report(place)["memory"].clone()
}

fn see_the_real_memory(proc: &Path) {
    symlink("/proc/pressure", proc.join("pressure")).expect("the directory is the test's");
    symlink("/proc/meminfo", proc.join("live")).expect("the directory is the test's");
    std::fs::rename(proc.join("live"), proc.join("meminfo")).expect("it is there");
}

/// Has users take memory until the lender has given all back. Returns the users, and the time from the first
/// shortage on.
fn take_until_given_back(
    place: &FaultsFixture,
    pressed: &FaultsLender,
    keep_free: u64,
) -> (Vec<FaultsProcess>, Option<Duration>) {
    let mut takers = vec![take(place, keep_free, LENT + SPARE)];
    let (mut lacking, mut began) = (None, Instant::now());
    let deadline = began + PATIENCE;
    loop {
        let now = Instant::now();
        assert!(now < deadline, "{}", memory(pressed, place));
        if available() < keep_free {
            lacking.get_or_insert(now);
        }
        if memory(pressed, place)["given_back"] == LENT {
            return (takers, lacking.map(|since| now - since));
        }
        if takers.len() < TAKERS_MAX && now - began > PATIENCE / 10 {
            (lacking, began) = (None, now);
            takers.push(take(place, keep_free, LENT));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Windows stayed, whatever the machine's users wanted.
#[test]
fn users_who_take_memory_get_it_from_the_lender_and_no_commit_fails() {
    const TEST: &str = "users_who_take_memory_get_it_from_the_lender_and_no_commit_fails";
    let installed = Command::new("stress-ng")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if installed.is_err() {
        return skipped(TEST, "there is no stress-ng (package stress-ng)");
    }
    if available() < 4 * LENT + SPARE + LEFT {
        return skipped(TEST, "this machine has less than 3.25 GiB of memory to spare");
    }
    let place = FaultsFixture::new();
    let stays = ["--keep-free", "0", "--pressure", "0", "--memory", "512MiB"];
    let mut others = ["b", "c"].map(|name| starts(&place, name, &stays));
    let keep_free = available() - LENT - SPARE;
    // Until the clients have joined, it sees enough memory: other programs take some, too.
    let proc = tempfile::tempdir_in(place.memory()).expect("memory takes directories");
    available_is(proc.path(), keep_free + 2 * LENT);
    let (lent, keeps) = (LENT.to_string(), keep_free.to_string());
    let proc_path = proc.path().display().to_string();
    let watches = ["--memory", &lent, "--keep-free", &keeps, "--proc", &proc_path];
    let pressed = starts(&place, "a", &watches);
    let directories =
        [(); 3].map(|()| tempfile::tempdir_in(place.disk()).expect("the disk takes directories"));
    let mut clients = [0, 1, 2].map(|at: usize| {
        let lenders = [&pressed, &others[0], &others[1]];
        let client = place.journal_in(directories[at].path(), WINDOW, &lenders, MEMBERS);
        client
            .with_window(WINDOW)
            .with_log(place.memory().join(format!("client-{at}.log")))
    });
    // With three lenders there, it could be a spare.
    others[1].kill();
    let running: Vec<ClientProcess> = clients.iter().map(|client| client.start()).collect();
    for running in &running {
        until_member(running, &pressed, true);
    }
    others[1].restart();
    see_the_real_memory(proc.path());
    let (mut takers, took) = take_until_given_back(&place, &pressed, keep_free);
    for taker in &mut takers {
        taker.signal(Signal::TERM);
        taker.wait();
    }
    for (client, running) in clients.iter_mut().zip(running) {
        until_member(&running, &pressed, false);
        running.until_acks_by_rule(20);
        let heard = running.heard();
        let longest = check(running);
        eprintln!(
            "{LENT} bytes came back within {took:?}; {} commits, the longest took {longest:?}",
            heard.acks
        );
        client.learn(&heard);
        client.recover();
    }
}

#[test]
fn an_operator_has_a_part_of_the_memory_given_back() {
    let place = FaultsFixture::new();
    let mut lenders = ["a", "b", "c"].map(|name| place.lender(name));
    let mut client = place.journal(&lenders.each_ref(), MEMBERS);
    // With three lenders there, the first could be a spare.
    lenders[2].kill();
    let running = client.start();
    until_member(&running, &lenders[0], true);
    lenders[2].restart();
    let operator = format!(
        "unix:{}",
        netram_lender::operator_path(lenders[0].store()).display()
    );
    let resize = |size: &str| netram(&["lender", "resize", "--lender", &operator, "--memory", size]);
    let (code, said) = resize("8MiB");
    assert_eq!(code, 0, "{said}");
    assert!(
        said.ends_with("8.0 MiB offered, 1.0 MiB of it lent, 8.0 MiB returned to the machine\n"),
        "{said}"
    );
    let (code, said) = resize("0");
    assert_eq!(code, 0, "{said}");
    until_member(&running, &lenders[0], false);
    let (code, said) = resize("17MiB");
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("start it with a larger --memory"), "{said}");
    assert_eq!(resize("all").0, 0);
    assert_eq!(resize("much").0, 2);
    running.until_acks_by_rule(20);
    let heard = running.heard();
    check(running);
    client.learn(&heard);
    client.recover();
}
