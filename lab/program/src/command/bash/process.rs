//! A child process: started from this program, killed when dropped, its messages kept for as long as it
//! lives.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::{Context, Result};

/// Number of lines of a child's messages that an error shows.
const LINES_SHOWN: usize = 5;

/// A child of this process.
pub(super) struct StressProcess {
    child: Child,
    messages: PathBuf,
}

impl StressProcess {
    /// Starts `program` with `arguments`; its standard error goes to a file of `name` in `directory`.
    pub(super) fn start(
        program: &Path,
        arguments: &[String],
        directory: &Path,
        name: &str,
    ) -> Result<StressProcess> {
        let messages = directory.join(format!("{name}.messages"));
        let what = || format!("starting {name}");
        let file = File::create(&messages).with_context(what)?;
        let mut command = Command::new(program);
        // The settings of the user who runs the test must not affect it.
        for (name, _) in std::env::vars_os() {
            let ours = name.to_str().is_some_and(|name| name.starts_with("NETRAM_"));
            if ours && name != "NETRAM_LOG" {
                command.env_remove(name);
            }
        }
        let child = command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(file)
            .spawn()
            .with_context(what)?;
        Ok(StressProcess { child, messages })
    }

    /// The child's standard output, once.
    pub(super) fn output(&mut self) -> Result<std::process::ChildStdout> {
        self.child.stdout.take().context("a child's output was taken")
    }

    /// Its exit status, if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().context("waiting for a child")
    }

    /// Kills it, if it still runs, and waits for its end.
    pub(super) fn kill(&mut self) -> Result<ExitStatus> {
        // It may have ended a moment ago.
        let _ = self.child.kill();
        self.child.wait().context("waiting for a child")
    }

    /// The last of its messages in one line; after a panic, the panic's.
    pub(super) fn last_messages(&self) -> String {
        let text = fs::read_to_string(&self.messages).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let panicked = lines.iter().position(|line| line.contains("panicked at"));
        let first = panicked.unwrap_or(lines.len().saturating_sub(LINES_SHOWN));
        let shown: Vec<&str> = lines.into_iter().skip(first).take(LINES_SHOWN).collect();
        shown.join(" | ")
    }
}

impl Drop for StressProcess {
    fn drop(&mut self) {
        // Both fail only when it has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
