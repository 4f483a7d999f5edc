//! `netram-lab pagesim run`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Args, ValueEnum};
use netram_pagesim::StudyOutcome;
use netram_pagesim::mascots96::PaperProgram;

use super::study_args::StudyArgs;
use super::table::{self, ProgramStudy};

/// A built-in program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum BuiltinName {
    /// Transpose a matrix of 1500 x 1500 in place
    Trans,
    /// Multiply a matrix of 1500 x 1500 by a vector
    Mvec,
    /// Eliminate with the first three pivots of a matrix of 1500 x 1500
    Gauss,
    /// Sort 1400 records of 8 KB
    Sort,
    /// All of them
    All,
}

impl BuiltinName {
    fn programs(self) -> &'static [PaperProgram] {
        match self {
            BuiltinName::Trans => &[PaperProgram::Trans],
            BuiltinName::Mvec => &[PaperProgram::Mvec],
            BuiltinName::Gauss => &[PaperProgram::Gauss],
            BuiltinName::Sort => &[PaperProgram::Sort],
            BuiltinName::All => &PaperProgram::ALL,
        }
    }
}

/// Study a program of the paper
///
/// With the paper's machine a program has the number of references that the paper states:
/// those not to its data are to local memory.
///
///   netram-lab pagesim run all
///   netram-lab pagesim run trans --local 4MiB,8MiB,16MiB --policy counters:16,counters:64,counters:256
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct StudyBuiltin {
    /// The program
    program: BuiltinName,
    #[command(flatten)]
    choice: StudyArgs,
}

impl StudyBuiltin {
    pub(super) fn run(self) -> Result<ExitCode> {
        let settings = self.choice.settings()?;
        let mut studied = Vec::new();
        for program in self.program.programs() {
            let mut study = settings.study();
            program.reference(&mut study);
            let printed = self.choice.is_mascots96().then(|| program.references());
            studied.push(ProgramStudy {
                program: program.name().to_owned(),
                outcome: StudyOutcome::of(&mut study),
                references: printed,
                choice: &self.choice,
                settings: &settings,
            });
        }
        table::print(&studied)?;
        Ok(ExitCode::SUCCESS)
    }
}
