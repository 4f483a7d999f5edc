//! `netram man` and `netram completions`, from the same types as the flags.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

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
    /// Writes a page of a section for each command of a program.
    pub(crate) fn run(self, program: &Command, section: &str) -> Result<ExitCode> {
        let mut program = program.clone().disable_help_subcommand(true);
        program.build();
        let what = || format!("writing man pages into {}", self.dir.display());
        write_pages(&program, section, &self.dir).with_context(what)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn write_pages(command: &Command, section: &str, dir: &Path) -> io::Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write_pages(command, section, dir)?;
    }
    Man::new(command.clone()).section(section).generate_to(dir)?;
    Ok(())
}

impl PrintCompletions {
    /// Prints completions of a program's commands.
    pub(crate) fn run(self, mut program: Command) -> Result<ExitCode> {
        let name = program.get_name().to_owned();
        // Collected first: the generator panics if the output is closed.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut program, name, &mut script);
        io::Write::write_all(&mut io::stdout().lock(), &script)?;
        Ok(ExitCode::SUCCESS)
    }
}
