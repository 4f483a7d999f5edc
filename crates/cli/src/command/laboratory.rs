//! Commands of the laboratory: `netram-lab` runs them, so that this program has nothing of it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Result, anyhow};

/// Name of the laboratory's program.
const PROGRAM: &str = "netram-lab";

/// Arguments, passed on unchanged.
#[derive(Debug, clap::Args)]
pub struct Words {
    /// Arguments for `netram-lab`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

impl Words {
    /// Replaces this process by `netram-lab COMMAND WORDS`.
    pub(super) fn run(self, command: &str) -> Result<ExitCode> {
        let program = beside_this().unwrap_or_else(|| PROGRAM.into());
        let error = Command::new(&program).arg(command).args(self.words).exec();
        if error.kind() == std::io::ErrorKind::NotFound {
            return Err(anyhow!(
                "`netram {command}` is a command of the laboratory, and {PROGRAM} is neither beside this program nor in PATH: \
                 build it in netram's sources (`cargo build --release -p {PROGRAM}`)"
            ));
        }
        Err(anyhow!("{}: {error}", program.display()))
    }
}

fn beside_this() -> Option<PathBuf> {
    let program = netram_process::this_program().ok()?;
    let candidate = program.parent().unwrap_or(Path::new("/")).join(PROGRAM);
    candidate.is_file().then_some(candidate)
}
