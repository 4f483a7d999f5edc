//! `netram rvm`: recoverable memory from outside. Each subcommand is a file, the random test a directory;
//! what they share is in [`look`], [`overlay`], [`verdict`] and [`heaps`].

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
mod show;
pub mod verdict;

use std::process::ExitCode;

use anyhow::Result;
use clap::Subcommand;

/// Make, inspect, fill and test recoverable memory
///
/// Recoverable memory is a log and the segments (files) that programs map. LOG is
/// the log's file, with what belongs to it beside it (LOG.view, LOG.segments and
/// so on), or the directory that holds all of it.
///
///   netram rvm create bank.log --segment bank.data --size 1GiB
///   netram rvm show bank.log
///   netram rvm check bank.log
#[derive(Debug, Subcommand)]
#[command(verbatim_doc_comment)]
pub enum RvmCommand {
    Create(create::CreateLog),
    Show(show::ShowLog),
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
            RvmCommand::Show(show) => show.run(),
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
