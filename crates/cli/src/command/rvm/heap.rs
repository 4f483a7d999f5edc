//! `netram rvm heap`: a segment with a persistent heap for C programs, as the original RVM's `rdsinit` makes.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use netram_rvm::SegmentAllocation;
use netram_store::heap::HeapPlan;

use super::inspection::{absolute, existing, number};
use crate::options::{SizeArg, UsageError};
use crate::output;

/// Make a segment with a heap for C programs, which rds_load_heap loads
///
/// Does the same as `rds_zap_heap` of rds.h, and rdsinit of the original RVM. Every program that
/// loads the heap has it at ADDRESS in its memory, followed by its static data: choose an address
/// range that no program uses for anything else. The segment is a new file. No other program may
/// have the log open.
///
///   netram rvm heap bank.log bank.data --heap 64MiB --static 1MiB --address 0x20000000000
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CreateHeap {
    /// The log's file, or the directory that holds all of it
    log: PathBuf,
    /// The new segment's path
    segment: PathBuf,
    /// Bytes of the heap
    #[arg(long, value_name = "SIZE")]
    heap: SizeArg,
    /// Bytes for the program's static data
    #[arg(long = "static", value_name = "SIZE", default_value = "4096")]
    statics: SizeArg,
    /// Address in memory where the heap begins, a multiple of 4096
    #[arg(long, value_parser = number)]
    address: u64,
    /// Do not allocate the segment's space: a full disk may then stop truncation later
    #[arg(long)]
    sparse: bool,
}

impl CreateHeap {
    pub(super) fn run(self) -> Result<ExitCode> {
        let home = existing(&self.log)?;
        let path = absolute(&self.segment)?;
        let plan = HeapPlan {
            path: &path,
            address: memory(self.address)?,
            heap_bytes: memory(self.heap.0)?,
            static_bytes: memory(self.statics.0)?,
            allocation: match self.sparse {
                true => SegmentAllocation::Sparse,
                false => SegmentAllocation::Preallocated,
            },
        };
        let what = || format!("opening {}", self.log.display());
        let settings = home.settings().with_context(what)?;
        let memory = home.open(&settings).with_context(what)?.memory;
        let made = plan.make(&memory);
        // In the segment's file too, so that it can be looked at and copied.
        let made = made
            .map_err(anyhow::Error::from)
            .and_then(|()| Ok(memory.truncate()?));
        let closed = memory.close().map_err(|(error, _)| error);
        made.with_context(|| format!("making a heap in {}", path.display()))?;
        closed.context("closing")?.close().context("closing")?;
        output::line(format_args!(
            "heap {}, {} at {:#x}, followed by {} of static data",
            path.display(),
            output::bytes(self.heap.0),
            self.address,
            output::bytes(self.statics.0)
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns a number that fits an address or a length in memory.
fn memory(number: u64) -> Result<usize> {
    let fits = usize::try_from(number);
    Ok(fits.map_err(|_| UsageError(format!("{number:#x} is beyond this machine's memory")))?)
}
