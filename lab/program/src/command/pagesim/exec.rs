//! `netram-lab pagesim exec`.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_pagesim::process::{self, ExitDescription};

use super::study_args::StudyArgs;
use super::table::{self, ProgramStudy};
use netram_cli::output;

/// Run a program, and study its references to memory
///
/// A program compiled by `netram-lab pagesim cc` runs natively. Any other runs in QEMU's
/// user-mode emulator (Debian: qemu-user), more slowly, with its libraries and all its
/// threads. Child processes are not studied.
///
///   netram-lab pagesim exec -- ./prog 1000
///   netram-lab pagesim exec --machine tcp --local 64MiB --remote 4GiB -- python3 job.py
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct StudyExecution {
    #[command(flatten)]
    choice: StudyArgs,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    words: Vec<OsString>,
}

impl StudyExecution {
    pub(super) fn run(self) -> Result<ExitCode> {
        let settings = self.choice.settings()?;
        let directory = tempfile::tempdir().context("making a directory for the outcome")?;
        let written = directory.path().join("outcome");
        let program = Path::new(&self.words[0]);
        let mut command = process::command(program, &settings, &written)?;
        let (status, outcome) = process::run(command.args(&self.words[1..]), program, &written)?;
        let name = program.display().to_string();
        let children = outcome.children;
        table::print(&[ProgramStudy {
            program: name.clone(),
            outcome,
            references: None,
            choice: &self.choice,
            settings: &settings,
        }])?;
        if children > 0 {
            let forks = output::counted(children, "child", "children");
            output::remark(format_args!(
                "{name} forked {forks}; their references are not counted"
            ));
        }
        if !status.success() {
            output::remark(format_args!("{name} {}", ExitDescription(status)));
        }
        Ok(match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(code) => ExitCode::from(code),
            None => ExitCode::FAILURE,
        })
    }
}
