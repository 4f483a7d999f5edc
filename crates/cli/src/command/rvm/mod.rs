//! `netram rvm`: recoverable memory from outside. Each subcommand is a file, the random test a folder; what they share
//! is in [`look`], [`overlay`], [`verdict`] and [`heaps`].

mod apply;
pub mod check;
mod create;
mod dump;
mod grow;
mod heap;
mod heaps;
mod load;
mod log;
pub mod look;
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
pub enum Rvm {
    Create(create::Create),
    Show(show::Show),
    Log(log::Log),
    Heap(heap::Heap),
    Load(load::Load),
    Dump(dump::Dump),
    Check(check::Check),
    Grow(grow::Grow),
    Apply(apply::Apply),
    Relocate(relocate::Relocate),
}

impl Rvm {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self {
            Rvm::Create(create) => create.run(),
            Rvm::Show(show) => show.run(),
            Rvm::Log(log) => log.run(),
            Rvm::Heap(heap) => heap.run(),
            Rvm::Load(load) => load.run(),
            Rvm::Dump(dump) => dump.run(),
            Rvm::Check(check) => check.run(),
            Rvm::Grow(grow) => grow.run(),
            Rvm::Apply(apply) => apply.run(),
            Rvm::Relocate(relocate) => relocate.run(),
        }
    }
}
