//! The command line's promises: help everywhere, clear refusals, stable exit codes.

use std::path::Path;

use crate::common::{CommandOutput, netram, ran, run, skipped};

/// Commands whose help another program prints, and the one that prints the others' help.
const OTHERS: [&str; 4] = ["bench", "demo", "pagesim", "help"];

/// Every command, read from the help of the one above it.
fn commands() -> Vec<Vec<String>> {
    let (mut all, mut unread) = (Vec::new(), vec![Vec::new()]);
    while let Some(command) = unread.pop() {
        let help = help(&command).out;
        let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        for line in listed.take_while(|line| !line.is_empty()) {
            // A long description goes on in the next line, indented further.
            let name = line.strip_prefix("  ").filter(|rest| !rest.starts_with(' '));
            let name = name.and_then(|rest| rest.split(' ').next());
            if let Some(name) = name.filter(|name| !OTHERS.contains(name)) {
                unread.push([&command[..], &[name.to_owned()]].concat());
            }
        }
        all.push(command);
    }
    assert!(all.len() > 50, "{all:?}");
    all
}

fn help(command: &[String]) -> CommandOutput {
    let help = run(command.iter().map(String::as_str).chain(["--help"]));
    assert_eq!(help.code, 0, "{command:?}: {}", help.err);
    help
}

#[test]
fn every_subcommand_explains_itself_with_an_example() {
    for command in commands() {
        let help = help(&command).out;
        let example = format!("\n  netram {}", command.join(" "));
        assert!(
            help.contains(example.trim_end()),
            "{command:?} shows no example:\n{help}"
        );
        let longest = help.lines().map(|line| line.chars().count()).max();
        let longest = longest.unwrap_or(0);
        assert!(longest <= 100, "{command:?} has a help line of {longest} columns");
    }
}

/// One word has one meaning: a directory is not a folder, and a list of lenders is `--lender` repeated.
#[test]
fn help_uses_one_word_for_one_thing() {
    for command in commands() {
        let help = help(&command).out;
        for word in [
            "folder",
            "--lenders",
            "netram lend ",
            "netram disk",
            "netram unmount",
        ] {
            assert!(!help.contains(word), "{command:?} has `{word}`:\n{help}");
        }
    }
}

#[test]
fn netram_help_is_a_command() {
    for words in [&["help"][..], &["help", "lender"], &["lender", "help", "serve"]] {
        let ran = run(words.iter().copied());
        assert!(
            ran.code == 0 && ran.out.contains("Usage: netram"),
            "{words:?}: {}",
            ran.err
        );
    }
}

/// People type what they know from other tools.
#[test]
fn words_that_are_no_command_lead_to_the_one_that_is_meant() {
    for (words, command) in [
        (&["lend", "--listen", "tcp://a:1"][..], "`netram lender serve`"),
        (&["status", "tcp://a:1"], "`netram lender status`"),
        (&["disk", "create", "db"], "`netram volume`"),
        (&["unmount", "/srv/db"], "`netram mount detach`"),
        (&["recover", "/srv/db"], "`netram mount recover`"),
        (
            &["mount", "/srv/db", "--on", "j"],
            "`netram mount attach DIR --on JOURNAL`",
        ),
    ] {
        let ran = run(words.iter().copied());
        assert_eq!(ran.code, 2, "{words:?}");
        assert!(ran.err.contains(command), "{words:?}: {}", ran.err);
    }
}

#[test]
fn hidden_commands_and_flags_are_not_in_help() {
    let help = run(["--help"]);
    for hidden in ["  part ", "give-back"] {
        assert!(!help.out.contains(hidden), "{}", help.out);
    }
    let help = run(["lender", "serve", "--help"]);
    assert!(!help.out.contains("--with-parent"), "{}", help.out);
}

#[test]
fn there_is_a_man_page_for_every_subcommand() {
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(run(["man", directory.path().to_str().unwrap()]).code, 0);
    for command in commands() {
        let page = std::iter::once("netram".to_owned())
            .chain(command)
            .collect::<Vec<_>>()
            .join("-");
        let text = std::fs::read_to_string(directory.path().join(format!("{page}.1"))).expect(&page);
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
    assert!(!directory.path().join("netram-part.1").exists());
}

#[test]
fn man_pages_need_an_existing_directory() {
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
fn wrong_flags_end_in_code_2_with_a_remedy() {
    let lend = ["lender", "serve", "--listen", "unix:/tmp/a", "--insecure"];
    let lend = |more: [&'static str; 2]| [&lend[..], &more].concat();
    let mut cases = vec![
        (vec![], "Usage: netram"),
        (vec!["lneder"], "lender"),
        (vec!["lender", "serve", "--listen", "7420"], "tcp://host:port"),
        (lend(["--memory", "much"]), "64MiB"),
        (lend(["--wait", "hard"]), "yield:MICROSECONDS"),
        (lend(["--grace", "soon"]), "500ms"),
        (
            vec![
                "lender",
                "status",
                "unix:/tmp/a",
                "--insecure",
                "--key-file",
                "/tmp/b",
            ],
            "contradicts",
        ),
    ];
    match Path::new("/etc/netram/key").exists() {
        true => skipped("this machine has a cluster key in /etc/netram/key, so none is missing"),
        false => cases.extend([
            (vec!["lender", "serve"], "netram key create"),
            (
                vec!["lender", "status", "unix:/tmp/a"],
                "that the lenders were started with",
            ),
        ]),
    }
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
        .args(["lender", "status", "--insecure"])
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
        let made = run(["key", "create", file]);
        assert_eq!(made.code, 0, "{}", made.err);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let shown = run(["key", "status", file]);
        assert!(made.out.contains(shown.out.trim()), "{} {}", made.out, shown.out);
        let secret = std::fs::read_to_string(&path).unwrap();
        assert!(!made.out.contains(secret.trim()));
        let again = run(["key", "create", file]);
        assert_eq!(again.code, 1);
        assert!(again.err.contains("never overwritten"), "{}", again.err);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), secret);
    }

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_remedy() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let file = path.to_str().unwrap();
        run(["key", "create", file]);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let lend = [
            "lender",
            "serve",
            "--listen",
            "tcp://127.0.0.1:0",
            "--key-file",
            file,
        ];
        for arguments in [
            &["key", "status", file][..],
            &lend,
            &["lender", "status", "unix:/a", "--key-file", file],
        ] {
            let ran = run(arguments.iter().copied());
            assert_eq!(ran.code, 1);
            assert!(ran.err.contains("chmod 600"), "{}", ran.err);
        }
    }
}
