//! What the command line promises: help everywhere, clear refusals, stable exit codes.

use crate::common::{netram, ran, run};

/// Every subcommand that people may use.
const COMMANDS: [&[&str]; 21] = [
    &[],
    &["lend"],
    &["status"],
    &["journal"],
    &["journal", "create"],
    &["journal", "show"],
    &["journal", "verify"],
    &["journal", "recover"],
    &["rvm"],
    &["rvm", "create"],
    &["rvm", "show"],
    &["rvm", "log"],
    &["rvm", "load"],
    &["rvm", "dump"],
    &["rvm", "check"],
    &["rvm", "grow"],
    &["key"],
    &["key", "new"],
    &["key", "show-id"],
    &["run"],
    &["man"],
];

#[test]
fn every_subcommand_explains_itself_with_an_example() {
    for command in COMMANDS.into_iter().chain([&["completions"][..]]) {
        let help = run(command.iter().copied().chain(["--help"]));
        assert_eq!(help.code, 0, "{command:?}: {}", help.err);
        let example = format!("\n  netram {}", command.join(" "));
        assert!(
            help.out.contains(example.trim_end()),
            "{command:?} shows no example:\n{}",
            help.out
        );
        let longest = help
            .out
            .lines()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0);
        assert!(longest <= 100, "{command:?} has a help line of {longest} columns");
    }
}

#[test]
fn what_is_hidden_stays_hidden() {
    let help = run(["--help"]);
    assert!(!help.out.contains("play"), "{}", help.out);
    assert!(!run(["lend", "--help"]).out.contains("--with-parent"));
}

#[test]
fn there_is_a_man_page_for_every_subcommand() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(run(["man", directory.path().to_str().unwrap()]).code, 0);
    for command in COMMANDS {
        let page = std::iter::once("netram")
            .chain(command.iter().copied())
            .collect::<Vec<_>>()
            .join("-");
        let text = std::fs::read_to_string(directory.path().join(format!("{page}.1"))).expect(&page);
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(!directory.path().join("netram-play.1").exists());
}

#[test]
fn man_pages_need_a_directory_that_is_there() {
    let ran = run(["man", "/nowhere"]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.err.starts_with("netram: writing man pages into /nowhere: "),
        "{}",
        ran.err
    );
}

#[test]
fn completions_exist_for_the_common_shells() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(["completions", shell]);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("netram"), "{shell}");
    }
}

#[test]
fn flags_that_make_no_sense_end_in_code_2_and_say_what_to_write() {
    let cases: [(&[&str], &str); 10] = [
        (&[], "Usage: netram"),
        (&["lned"], "lend"),
        (&["lend"], "--listen tcp://HOST:PORT"),
        (&["lend", "--listen", "tcp://127.0.0.1:0"], "netram key new"),
        (&["lend", "--listen", "7420"], "tcp://host:port"),
        (
            &[
                "lend",
                "--listen",
                "unix:/tmp/a",
                "--insecure",
                "--memory",
                "much",
            ],
            "64MiB",
        ),
        (
            &["lend", "--listen", "unix:/tmp/a", "--insecure", "--wait", "hard"],
            "yield:MICROSECONDS",
        ),
        (
            &["lend", "--listen", "unix:/tmp/a", "--insecure", "--grace", "soon"],
            "500ms",
        ),
        (&["status"], "ADDR"),
        (
            &["status", "unix:/tmp/a", "--insecure", "--key-file", "/tmp/b"],
            "contradicts",
        ),
    ];
    for (arguments, remedy) in cases {
        let ran = run(arguments.iter().copied());
        assert_eq!(ran.code, 2, "{arguments:?}: {}", ran.err);
        assert!(
            ran.err.contains(remedy),
            "{arguments:?} does not say `{remedy}`: {}",
            ran.err
        );
    }
}

#[test]
fn settings_come_from_variables_too() {
    let command = netram()
        .args(["status", "--insecure"])
        .env("NETRAM_LENDERS", "unix:/nowhere/a.sock")
        .output();
    let ran = ran(command.unwrap());
    assert_eq!(ran.code, 1);
    assert!(ran.out.contains("unix:/nowhere/a.sock"), "{}", ran.out);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let mut child = netram()
        .args(["completions", "bash"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ended = child.wait_with_output().unwrap();
    assert!(
        ended.status.success(),
        "{}",
        String::from_utf8_lossy(&ended.stderr)
    );
}

mod key {
    use super::run;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_new_key_is_private_named_by_its_id_and_never_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let file = path.to_str().unwrap();
        let made = run(["key", "new", file]);
        assert_eq!(made.code, 0, "{}", made.err);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let shown = run(["key", "show-id", file]);
        assert!(made.out.contains(shown.out.trim()), "{} {}", made.out, shown.out);
        let secret = std::fs::read_to_string(&path).unwrap();
        assert!(!made.out.contains(secret.trim()));
        let again = run(["key", "new", file]);
        assert_eq!(again.code, 1);
        assert!(again.err.contains("never overwritten"), "{}", again.err);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), secret);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let file = path.to_str().unwrap();
        run(["key", "new", file]);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let lend = ["lend", "--listen", "tcp://127.0.0.1:0", "--key-file", file];
        for arguments in [
            &["key", "show-id", file][..],
            &lend,
            &["status", "unix:/a", "--key-file", file],
        ] {
            let ran = run(arguments.iter().copied());
            assert_eq!(ran.code, 1);
            assert!(ran.err.contains("chmod 600"), "{}", ran.err);
        }
    }
}
