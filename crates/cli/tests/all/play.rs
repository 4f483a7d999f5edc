//! `netram play`: two lenders and a shell, in which every command finds them.

use std::path::Path;

use crate::common::{finish, netram};

#[test]
fn commands_in_the_shell_find_both_lenders_and_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let script = "set -e
        echo play $PPID
        echo lenders $NETRAM_LENDERS
        echo processes $NETRAM_PLAY_LENDERS
        echo parent $PPID
        $NETRAM lender status --json
        $NETRAM journal create journal --size 1MiB
        $NETRAM journal recover journal
        # A bare name is in the current directory.
        $NETRAM rvm create bank.log --segment bank.data --size 1MiB --lender tcp://127.0.0.1:1
        grep -q 127.0.0.1:1 bank.log.toml
        # The shell's own lenders end with it: no file names them.
        $NETRAM rvm create other.log
        test ! -e other.log.toml
        exit 7";
    let mut command = netram();
    command
        .args(["play", "--memory", "16MiB", "--", "sh", "-c", script])
        .env("NETRAM", crate::common::program())
        .current_dir(directory.path());
    let ran = finish(&mut command);
    assert_eq!(ran.code, 7, "{}\n{}", ran.out, ran.err);
    let line = |word: &str| {
        let found = ran.out.lines().find_map(|line| line.strip_prefix(word));
        found
            .unwrap_or_else(|| panic!("no `{word}` in {}", ran.out))
            .trim()
            .to_owned()
    };
    assert_eq!(line("lenders").split(',').count(), 2, "{}", ran.out);
    for id in line("processes").split(' ') {
        assert!(!Path::new("/proc").join(id).exists(), "lender {id} runs on");
    }
    for name in ["a", "b"] {
        let memory = format!("/dev/shm/netram-play-{}-{name}.mem", line("play"));
        assert!(!Path::new(&memory).exists(), "{memory} is left");
    }
}

#[test]
fn a_command_that_does_not_exist_is_named() {
    let ran = finish(netram().args(["play", "--memory", "16MiB", "--", "no-such-program"]));
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("starting no-such-program"), "{}", ran.err);
}
