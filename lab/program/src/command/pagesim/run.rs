//! `netram-lab pagesim run`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use netram_pagesim::Outcome;
use netram_pagesim::mascots96::Program;

use super::choice::Choice;
use super::table::{self, Studied};

/// A built-in program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Name {
    /// A matrix of 1500 x 1500 is transposed in place
    Trans,
    /// A matrix of 1500 x 1500 times a vector
    Mvec,
    /// Elimination in a matrix of 1500 x 1500: its first three pivots
    Gauss,
    /// 1400 records of 8 KB are sorted
    Sort,
    /// All of them
    All,
}

impl Name {
    fn programs(self) -> &'static [Program] {
        match self {
            Name::Trans => &[Program::Trans],
            Name::Mvec => &[Program::Mvec],
            Name::Gauss => &[Program::Gauss],
            Name::Sort => &[Program::Sort],
            Name::All => &Program::ALL,
        }
    }
}

/// Study a program of the paper
///
/// With the paper's machine a program has as many references as the paper
/// printed: those that are not to its data are to local memory.
///
///   netram-lab pagesim run all
///   netram-lab pagesim run trans --local 4MiB,8MiB,16MiB --policy counters:16,counters:64,counters:256
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Run {
    /// Which
    program: Name,
    #[command(flatten)]
    choice: Choice,
}

impl Run {
    pub(super) fn run(self) -> Result<ExitCode> {
        let settings = self.choice.settings()?;
        let mut studied = Vec::new();
        for program in self.program.programs() {
            let mut study = settings.study();
            program.reference(&mut study);
            let printed = self.choice.is_mascots96().then(|| program.references());
            studied.push(Studied {
                program: program.name().to_owned(),
                outcome: Outcome::of(&mut study),
                references: printed,
                choice: &self.choice,
                settings: &settings,
            });
        }
        table::print(&studied)?;
        Ok(ExitCode::SUCCESS)
    }
}
