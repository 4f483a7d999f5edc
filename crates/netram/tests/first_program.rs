//! The README's program is the example `bank`, and its commits are at a lender.

use std::path::Path;
use std::process::Command;

use netram::transport::Security;
use netram_lender::{Lender, LenderConfig};

/// Returns the program of a text, from its first `use` on.
fn program(text: &str) -> &str {
    let start = text.find("use std::").expect("a program begins with its imports");
    let rest = &text[start..];
    rest.split("\n```").next().unwrap_or(rest).trim_end()
}

#[test]
fn the_readme_shows_the_example() {
    let readme = include_str!("../README.md");
    assert_eq!(program(readme), program(include_str!("../examples/bank.rs")));
}

#[test]
fn each_run_adds_to_the_balance_and_a_lender_holds_the_commit() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let socket = format!("unix:{}", directory.path().join("lender").display());
    let _lender = Lender::start(LenderConfig {
        listen: vec![socket.parse().unwrap()],
        security: Security::Insecure,
        memory: 64 << 20,
        store: Some(directory.path().join("lent")),
        ..LenderConfig::default()
    })
    .unwrap();
    let settings = format!("[journal]\nlenders = [\"{socket}\"]\ninsecure = true\none-domain = true\n");
    std::fs::write(directory.path().join("bank.log.toml"), settings).unwrap();
    // Cargo puts examples beside the directory of this test.
    let built = std::env::current_exe().unwrap();
    let example = built.ancestors().nth(2).unwrap().join("examples/bank");
    // On a busy machine the disk may have a commit before the lender has.
    let mut was_held = 0;
    for run in 1..=20 {
        let printed = printed(&example, directory.path());
        let start = format!("balance {}; lenders that hold the commit: ", 100 * run);
        let holders = printed
            .strip_prefix(&start)
            .unwrap_or_else(|| panic!("{printed}"));
        was_held += holders.trim_end().parse::<u32>().unwrap();
        if run >= 3 && was_held > 0 {
            return;
        }
    }
    panic!("a lender held no commit");
}

fn printed(example: &Path, directory: &Path) -> String {
    let mut command = Command::new(example);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("NETRAM_")) {
        command.env_remove(name);
    }
    let ran = command.current_dir(directory).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}
