//! Refusals before the program starts, each with the reason and the remedy.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::{RunTestbed, compiled, finish, library, netram, output, skipped, text};

/// Runs a command that must be refused, without output of the program. Returns the error.
fn refused(command: &mut Command, code: i32) -> String {
    let ran = output(command);
    assert_eq!(ran.status.code(), Some(code), "{ran:?}");
    assert_eq!(text(&ran.stdout), "");
    text(&ran.stderr)
}

/// A run with a lender that is not there.
fn run(local: &str) -> Command {
    let mut command = netram();
    command.args([
        "run",
        "--insecure",
        "--lender",
        "unix:/nowhere/a.sock",
        "--local",
        local,
    ]);
    command.env("NETRAM_FARRUN", library());
    command
}

fn refused_to_run(program: &Path) -> String {
    refused(run("1MiB").arg("--").arg(program), 1)
}

#[test]
fn programs_that_load_no_library_are_refused_by_their_kind() {
    let (_directory, fixed) = compiled("heap", &["-static"]);
    let said = refused_to_run(&fixed);
    assert!(said.contains("is statically linked"), "{said}");

    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    std::fs::write(&script, "#!/bin/sh\necho started\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = refused_to_run(&script);
    assert!(said.contains("is a script: name the interpreter"), "{said}");

    std::fs::write(&script, "no program").unwrap();
    let said = refused_to_run(&script);
    assert!(said.contains("is not a program for this machine"), "{said}");

    let said = refused_to_run(Path::new("no-such-program"));
    assert!(
        said.contains("no-such-program is in no directory of PATH"),
        "{said}"
    );
}

/// Half of Python's users have pyenv, asdf or mise, whose `python3` is a script.
#[test]
fn a_shim_is_refused_with_the_way_to_the_program() {
    let directory = tempfile::tempdir().unwrap();
    let shims = directory.path().join("shims");
    std::fs::create_dir(&shims).unwrap();
    let shim = shims.join("python3");
    std::fs::write(&shim, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&shim, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = netram();
    command
        .args(["run", "--local", "1MiB", "--spill", "/tmp", "--"])
        .arg(&shim);
    let said = refused(&mut command, 1);
    assert!(said.contains("sys.executable"), "{said}");
}

#[test]
fn a_program_that_gets_rights_by_its_file_is_refused() {
    let (_directory, heap) = compiled("heap", &[]);
    std::fs::set_permissions(&heap, std::fs::Permissions::from_mode(0o4755)).unwrap();
    if !rustix::process::getuid().is_root() {
        return skipped("only root gives a program to another user");
    }
    std::os::unix::fs::chown(&heap, Some(65534), None).unwrap();
    // That took the bit away.
    std::fs::set_permissions(&heap, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let said = refused_to_run(&heap);
    assert!(said.contains("has rights that its caller has not"), "{said}");
}

#[test]
fn a_cap_that_is_too_small_is_refused_with_the_least() {
    let said = refused(run("100KiB").args(["--", "true"]), 2);
    assert!(
        said.contains("the cap of local memory must be 256 KiB at least"),
        "{said}"
    );
    let said = refused(run("1MiB").args(["--threshold", "100", "--", "true"]), 2);
    assert!(said.contains("--threshold must be 1KiB at least"), "{said}");
    let said = refused(run("1MiB").args(["--copies", "3", "--", "true"]), 2);
    assert!(said.contains("--copies"), "{said}");
}

#[test]
fn without_a_lender_that_takes_pages_nothing_starts() {
    let Some(site) = RunTestbed::new("none", 1, "16MiB") else {
        return;
    };
    let said = refused(run("1MiB").args(["--", "true"]), 1);
    assert!(
        said.contains("no lender takes pages: unix:/nowhere/a.sock"),
        "{said}"
    );
    let lender = super::LenderProcess::start(
        "run-no-deposits",
        &["--listen", "tcp://127.0.0.1:0", "--insecure", "--deposits", "0"],
    );
    let mut command = netram();
    command
        .args([
            "run",
            "--insecure",
            "--local=1MiB",
            "--lender",
            &lender.address,
            "--",
            "true",
        ])
        .env("NETRAM_FARRUN", library());
    let said = refused(&mut command, 1);
    assert!(said.contains("`--deposits 0`"), "{said}");
    // A lender that cannot be reached is reported, and does not stop the others.
    let both = format!("{},unix:/nowhere/a.sock", site.addresses());
    let mut command = netram();
    command
        .args([
            "run",
            "--insecure",
            "--local=1MiB",
            "--lender",
            &both,
            "--",
            "echo",
            "started",
        ])
        .env("NETRAM_FARRUN", library());
    let ran = finish(&mut command);
    assert_eq!((ran.code, ran.out.as_str()), (0, "started\n"));
    assert!(
        ran.err
            .contains("netram run: lender unix:/nowhere/a.sock cannot be reached yet"),
        "{}",
        ran.err
    );
}

#[test]
fn a_limit_on_addresses_is_reported_before_the_program_starts() {
    let mut inner = run("1MiB");
    inner.args(["--", "true"]);
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 8000000; exec \"$@\"", "sh"]);
    command
        .arg(inner.get_program())
        .args(inner.get_args())
        .env("NETRAM_FARRUN", library());
    let said = refused(&mut command, 1);
    assert!(
        said.contains("the limit on addresses (ulimit -v) is 7.6 GiB"),
        "{said}"
    );
}

#[test]
fn a_user_without_the_right_is_refused_with_the_remedy() {
    let allowed = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    let device =
        std::fs::metadata("/dev/userfaultfd").is_ok_and(|about| about.permissions().mode() & 0o006 != 0);
    if allowed.trim() != "0" || device || !rustix::process::getuid().is_root() {
        return skipped("every user may have page faults served here, or this one cannot become another");
    }
    let mut inner = run("1MiB");
    inner.args(["--", "true"]);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command
        .arg(inner.get_program())
        .args(inner.get_args())
        .env("NETRAM_FARRUN", library());
    let ran = output(&mut command);
    if text(&ran.stderr).contains("Permission denied") {
        return skipped("another user cannot execute what is built here");
    }
    assert_eq!(ran.status.code(), Some(1), "{ran:?}");
    let said = text(&ran.stderr);
    assert!(said.contains("sysctl vm.unprivileged_userfaultfd=1"), "{said}");
}

#[test]
fn forbidden_calls_on_far_memory_fail_and_the_heap_stays() {
    let Some(site) = RunTestbed::new("refusals", 1, "64MiB") else {
        return;
    };
    let (_directory, heap) = compiled("heap", &[]);
    let ran = finish(site.run("2MiB", &[], &heap).arg("refusals"));
    assert_eq!((ran.code, ran.out.as_str()), (0, "refused\n"), "{}", ran.err);
    assert!(ran.err.contains("mlockall is refused"), "{}", ran.err);
}
