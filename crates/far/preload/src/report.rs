//! Report of what was moved, as a line or as JSON.

use std::fmt;
use std::fs;

use netram_far::run::RunReport;
use netram_far::{ArenaStatus, ArenaTally};
use netram_far_machine::limit::PAGE_BYTES;

use crate::heap::PreloadHeap;
use crate::start::remark;

/// Figures of a run.
struct RunSummary {
    status: ArenaStatus,
    allocated_bytes: u64,
}

/// Writes the report to its destination.
pub(crate) fn tell(heap: &PreloadHeap, report: &RunReport) {
    let run = RunSummary {
        status: heap.status(),
        allocated_bytes: heap.allocated_bytes(),
    };
    match report {
        RunReport::None => (),
        RunReport::Line => remark(format_args!("{run}")),
        RunReport::File(path) => {
            if let Err(error) = fs::write(path, run.json()) {
                remark(format_args!("the report could not be written: {error}"));
            }
        }
    }
}

impl RunSummary {
    fn json(&self) -> String {
        let RunSummary {
            status,
            allocated_bytes: held,
        } = self;
        let ArenaTally {
            faults,
            zeros,
            activated: shown,
            unpacked,
            fetched,
            starved,
            ahead,
            proved,
            sent,
            packed,
            // An unmodified program does not use these.
            words: _,
            written: _,
            patch_fetches: _,
        } = status.tally;
        let (local, used, aside) = (
            bytes(status.frames),
            bytes(status.used),
            status.pending * PAGE_BYTES,
        );
        format!(
            "{{\"faults\":{faults},\"zeros\":{zeros},\"shown\":{shown},\"unpacked\":{unpacked},\"fetched\":{fetched},\"starved\":{starved},\
             \"ahead\":{ahead},\"proved\":{proved},\"sent\":{sent},\"packed\":{packed},\"local_bytes\":{local},\"used_bytes\":{used},\
             \"aside_bytes\":{aside},\"held_bytes\":{held}}}\n"
        )
    }
}

impl fmt::Display for RunSummary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = &self.status.tally;
        write!(
            out,
            "{} faults: {} pages of zeros, {} still here, {} packed here, {} fetched ({}); {} more ahead of need in {} runs that were wanted; {} sent ({})",
            tally.faults,
            tally.zeros,
            tally.activated,
            tally.unpacked,
            tally.fetched,
            Mib(tally.fetched),
            tally.ahead,
            tally.proved,
            tally.sent,
            Mib(tally.sent),
        )
    }
}

/// A number of pages, displayed in bytes.
struct Mib(u64);

impl fmt::Display for Mib {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{:.1} MiB",
            self.0 as f64 * PAGE_BYTES as f64 / f64::from(1 << 20)
        )
    }
}

fn bytes(pages: u32) -> u64 {
    u64::from(pages) * PAGE_BYTES as u64
}
