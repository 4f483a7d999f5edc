//! `netram-lab pagesim` on real programs: compiled by it with gcc and with clang, unmodified in the emulator,
//! or as a trace. Their references are known, and each way's counts are compared with them.

mod emulated;
mod input;
mod paper;
mod traced;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::common::{CommandOutput, finish, netram};
use serde_json::Value;
use tempfile::TempDir;

/// Whether a program that a test needs is installed; prints a message if not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        // Written past the test harness, which would swallow it.
        let _ = writeln!(std::io::stderr(), "SKIPPED: there is no `{program}`");
    }
    found
}

/// The library that receives references. Cargo builds it only for its own package's tests, so it is built
/// here.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| crate::common::library("netram-tracer"))
}

/// `netram-lab pagesim`, set up to find the library.
fn pagesim() -> Command {
    let mut command = netram();
    command.arg("pagesim").env("NETRAM_TRACER", library());
    command
}

/// A C program and the directory in which it is compiled.
struct Program {
    directory: TempDir,
}

impl Program {
    /// Compiles `NAME.c` by `netram-lab pagesim cc`.
    fn traced(name: &str, compiler: &str, words: &[&str]) -> Program {
        let program = Program::new();
        let mut command = pagesim();
        command
            .args(["cc", "-Wall", "-Werror", "-O2"])
            .args(words)
            .arg("-o")
            .arg(program.path())
            .arg(source(name))
            .arg("-pthread")
            .env("NETRAM_CC", compiler);
        let ran = finish(&mut command);
        assert_eq!(ran.code, 0, "{}", ran.err);
        program
    }

    /// Compiles `NAME.c` without tracing.
    fn plain(name: &str, words: &[&str]) -> Program {
        let program = Program::new();
        let mut command = Command::new("gcc");
        command
            .arg("-O2")
            .args(words)
            .arg("-o")
            .arg(program.path())
            .arg(source(name))
            .arg("-pthread");
        let ran = finish(&mut command);
        assert_eq!(ran.code, 0, "{}", ran.err);
        program
    }

    fn new() -> Program {
        let directory = tempfile::tempdir().unwrap();
        Program { directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("program")
    }

    /// Runs it by `netram-lab pagesim exec`.
    fn exec(&self, options: &[&str], words: &[&str]) -> CommandOutput {
        let mut command = pagesim();
        command
            .arg("exec")
            .args(options)
            .arg("--")
            .arg(self.path())
            .args(words);
        let mut limited = Command::new("timeout");
        limited.args(["--signal=KILL", "120"]).arg(command.get_program());
        limited.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => limited.env(name, value),
                None => limited.env_remove(name),
            };
        }
        finish(&mut limited)
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/all/pagesim")
        .join(format!("{name}.c"))
}

/// JSON result of the only program that was studied. The program's own output comes before it.
fn studied(ran: &CommandOutput) -> Value {
    assert_eq!(ran.code, 0, "{}\n{}", ran.err, ran.out);
    let start = ran.out.find('[').unwrap_or_else(|| panic!("{}", ran.out));
    let all: Value = serde_json::from_str(&ran.out[start..]).unwrap();
    all[0].clone()
}
