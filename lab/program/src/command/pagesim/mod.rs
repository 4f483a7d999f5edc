//! `netram-lab pagesim`: the study of paging policies, on the paper's programs and on any others. Each
//! subcommand has a file; they share the options in [`study_args`] and the result in [`table`].

mod cc;
mod exec;
mod run;
mod study_args;
mod table;
mod trace;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// Would other machines' memory help this program, and under which policy?
///
/// A program runs, and every memory reference that it makes goes through models of a
/// machine, one for each policy, all at once. The result is the average reference in
/// cycles, and the time that the machine would take.
///
///   netram-lab pagesim run all                        # the paper's programs and machine
///   netram-lab pagesim cc -O2 -o prog prog.c          # compile a program to be studied
///   netram-lab pagesim exec --machine tcp --local 64MiB,256MiB -- ./prog
///   netram-lab pagesim exec --machine rdma --local 32MiB -- sort -S 200M words
///
/// Policies:
///   disk                 what does not fit is on the disk
///   ram-disk             whole pages go to remote memory and come back
///   remote-main          remote memory is referenced word by word; no page moves
///   counters:N           word by word; after N words a page comes home
///   software-counters:N  the same, where software fetches the word
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub(crate) enum PagesimCommand {
    Run(run::StudyBuiltin),
    Cc(cc::CompileProgram),
    Exec(exec::StudyExecution),
    Trace(trace::StudyTrace),
}

impl PagesimCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            PagesimCommand::Run(run) => run.run(),
            PagesimCommand::Cc(cc) => cc.run(),
            PagesimCommand::Exec(exec) => exec.run(),
            PagesimCommand::Trace(trace) => trace.run(),
        }
    }
}
