//! `netram rvm`: recoverable memory, looked at and changed from outside its programs. A file for each
//! subcommand; what they share is in [`inspection`], [`overlay`], [`verdict`] and [`heaps`].

mod apply;
pub mod check;
mod create;
mod dump;
mod grow;
mod heap;
mod heaps;
pub mod inspection;
mod load;
mod log;
pub mod overlay;
mod relocate;
mod status;
pub mod verdict;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// Create, inspect and fill recoverable memory
///
/// Recoverable memory is a log and segments: files that programs map into memory and change by
/// transactions. LOG is the log's file, which has its companions beside it (LOG.view,
/// LOG.segments, LOG.toml and so on), or the directory that holds all of these.
///
///   netram rvm create bank.log --segment bank.data --size 1GiB
///   netram rvm status bank.log
///   netram rvm check bank.log
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum RvmCommand {
    Create(create::CreateLog),
    Status(status::ShowLog),
    Log(log::ShowTransactions),
    Heap(heap::CreateHeap),
    Load(load::LoadSegment),
    Dump(dump::DumpSegment),
    Check(check::CheckLog),
    Grow(grow::GrowLog),
    Apply(apply::ApplyLog),
    Relocate(relocate::RelocateSegment),
}

impl RvmCommand {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            RvmCommand::Create(create) => create.run(),
            RvmCommand::Status(status) => status.run(),
            RvmCommand::Log(log) => log.run(),
            RvmCommand::Heap(heap) => heap.run(),
            RvmCommand::Load(load) => load.run(),
            RvmCommand::Dump(dump) => dump.run(),
            RvmCommand::Check(check) => check.run(),
            RvmCommand::Grow(grow) => grow.run(),
            RvmCommand::Apply(apply) => apply.run(),
            RvmCommand::Relocate(relocate) => relocate.run(),
        }
    }
}
