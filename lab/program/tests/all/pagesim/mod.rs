//! `netram-lab pagesim` on real programs: compiled by it with gcc and with clang, in the emulator as they
//! are, or as a trace. What they reference is known, so what each way sees is compared with it.

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

/// Whether a program is here that a test needs; says aloud when it is not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        // Written past the test harness, which would swallow it.
        let _ = writeln!(std::io::stderr(), "SKIPPED: there is no `{program}`");
    }
    found
}

/// The library to which programs tell their references. Cargo makes it for its own package's tests only, so
/// it is asked for it.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| crate::common::library("netram-tracer"))
}

/// `netram-lab pagesim`, where it finds the library.
fn pagesim() -> Command {
    let mut command = netram();
    command.arg("pagesim").env("NETRAM_TRACER", library());
    command
}

/// A program in C and where it is compiled.
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

    /// Compiles `NAME.c` as ever.
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

/// What JSON says of the one program that was studied. Before it stands what that printed.
fn studied(ran: &CommandOutput) -> Value {
    assert_eq!(ran.code, 0, "{}\n{}", ran.err, ran.out);
    let start = ran.out.find('[').unwrap_or_else(|| panic!("{}", ran.out));
    let all: Value = serde_json::from_str(&ran.out[start..]).unwrap();
    all[0].clone()
}
