//! `netram-lab pagesim trace`.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_pagesim::{StudyOutcome, trace};

use super::study_args::StudyArgs;
use super::table::{self, ProgramStudy};

/// Study references that another tool has written down
///
/// Each line is a reference: `R ADDRESS BYTES` or `W ADDRESS BYTES`, or the output of
/// valgrind's lackey. This is a hundred times slower than `netram-lab pagesim exec`.
///
///   netram-lab pagesim trace --local 16MiB references.txt
///   valgrind --tool=lackey --trace-mem=yes --log-file=/dev/stdout true | netram-lab pagesim trace -
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct StudyTrace {
    /// The file, or - for standard input
    file: PathBuf,
    #[command(flatten)]
    choice: StudyArgs,
}

impl StudyTrace {
    pub(super) fn run(self) -> Result<ExitCode> {
        let settings = self.choice.settings()?;
        let mut study = settings.study();
        let name = self.file.display().to_string();
        let read = match name.as_str() {
            "-" => trace::read(io::stdin().lock(), &mut study),
            _ => {
                let file = File::open(&self.file).with_context(|| format!("opening {name}"))?;
                trace::read(BufReader::new(file), &mut study)
            }
        };
        read.with_context(|| format!("reading {name}"))?;
        table::print(&[ProgramStudy {
            program: name,
            outcome: StudyOutcome::of(&mut study),
            references: None,
            choice: &self.choice,
            settings: &settings,
        }])?;
        Ok(ExitCode::SUCCESS)
    }
}
