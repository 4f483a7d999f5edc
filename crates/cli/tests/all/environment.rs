//! The program runs with variables that are set and empty, and on a small stack (case 35).

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{finish, netram, start};

/// Every variable of ours that a source names.
fn variables() -> BTreeSet<String> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut directories: Vec<PathBuf> = [
        "cli",
        "core/journal",
        "memory/store",
        "lender",
        "block/volume",
        "files/mount",
        "shared/driver",
    ]
    .map(|name| crates.join(name).join("src"))
    .into();
    let mut names = BTreeSet::new();
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let source = std::fs::read_to_string(path).unwrap();
            for (at, _) in source.match_indices("NETRAM_") {
                let is_part = |byte: &char| byte.is_ascii_uppercase() || *byte == '_';
                let name: String = source[at..].chars().take_while(is_part).collect();
                names.insert(name.trim_end_matches('_').to_owned());
            }
        }
    }
    assert!(names.len() > 20 && names.contains("NETRAM_MEMORY"), "{names:?}");
    names
}

/// The program, in what surrounds a test of this module.
struct Site<'a>(&'a dyn Fn() -> Command);

impl Site<'_> {
    /// Makes a key, starts a lender and asks for its status: what a first day needs.
    fn works(&self) {
        // The default memory is taken at once, so it must not be on a disk.
        let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
        let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
        let (key, socket, memory) = (path("key"), format!("unix:{}", path("socket")), path("memory"));
        self.says(&["key", "create", &key], "");
        let mut lend = (self.0)();
        lend.args([
            "lender",
            "serve",
            "--with-parent",
            "--listen",
            &socket,
            "--key-file",
            &key,
            "--store",
            &memory,
        ]);
        let mut lender = Reaped(start(lend.stdout(Stdio::piped()).stderr(Stdio::inherit())));
        let mut said = BufReader::new(lender.0.stdout.take().unwrap()).lines();
        assert!(
            said.any(|line| line.unwrap() == "ready"),
            "the lender ended before it was ready"
        );
        self.says(&["lender", "status", &socket, "--key-file", &key], "lending");
        self.says(&["volume", "list"], "");
        self.says(&["volume", "--help"], "attach");
    }

    fn says(&self, arguments: &[&str], expected: &str) {
        let ran = finish((self.0)().args(arguments));
        assert!(
            ran.code == 0 && ran.out.contains(expected),
            "{arguments:?}: {}{}",
            ran.out,
            ran.err
        );
    }
}

struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_variable_that_is_empty_counts_as_unset() {
    let names = variables();
    Site(&|| {
        let mut command = netram();
        command.envs(names.iter().map(|name| (name, "")));
        command
    })
    .works();
}

#[test]
fn a_small_stack_is_enough() {
    Site(&|| {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -s 64; exec \"$@\"", "sh", crate::common::program()]);
        // Arguments and variables may have a quarter of the stack.
        command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin");
        command
            .env("NETRAM_STATE_DIR", env!("CARGO_TARGET_TMPDIR"))
            .stdin(Stdio::null());
        command
    })
    .works();
}
