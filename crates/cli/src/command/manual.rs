//! `netram man` and `netram completions`, from the same types as the flags.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Netram;

/// Write the man pages into a directory
///
/// There is a page for netram and one for each subcommand.
///
///   netram man /usr/local/share/man/man1
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct WriteManPages {
    /// An existing directory
    dir: PathBuf,
}

/// Print completions of a shell
///
///   netram completions bash > /etc/bash_completion.d/netram
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct PrintCompletions {
    /// The shell
    shell: Shell,
}

impl WriteManPages {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let what = || format!("writing man pages into {}", self.dir.display());
        clap_mangen::generate_to(Netram::command(), &self.dir).with_context(what)?;
        Ok(ExitCode::SUCCESS)
    }
}

impl PrintCompletions {
    pub(crate) fn run(self) -> Result<ExitCode> {
        // Collected first: the generator panics if the output is closed.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Netram::command(), "netram", &mut script);
        io::Write::write_all(&mut io::stdout().lock(), &script)?;
        Ok(ExitCode::SUCCESS)
    }
}
