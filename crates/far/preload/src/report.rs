//! What was moved, in a line or as JSON.

use std::fmt;
use std::fs;

use netram_far::run::Report;
use netram_far::{ArenaStatus, Tally};
use netram_far_machine::limit::PAGE_BYTES;

use crate::heap::Heap;
use crate::start::remark;

/// What is told of a run.
struct Run {
    status: ArenaStatus,
    held: u64,
}

/// Tells it where it is to be told.
pub(crate) fn tell(heap: &Heap, report: &Report) {
    let run = Run {
        status: heap.status(),
        held: heap.held(),
    };
    match report {
        Report::None => (),
        Report::Line => remark(format_args!("{run}")),
        Report::File(path) => {
            if let Err(error) = fs::write(path, run.json()) {
                remark(format_args!("the report was not written: {error}"));
            }
        }
    }
}

impl Run {
    fn json(&self) -> String {
        let Run { status, held } = self;
        let Tally {
            faults,
            zeros,
            shown,
            unpacked,
            fetched,
            starved,
            ahead,
            proved,
            sent,
            packed,
            // A program as it is has none.
            words: _,
            written: _,
            mended: _,
        } = status.tally;
        let (local, used, aside) = (
            bytes(status.frames),
            bytes(status.used),
            status.aside * PAGE_BYTES,
        );
        format!(
            "{{\"faults\":{faults},\"zeros\":{zeros},\"shown\":{shown},\"unpacked\":{unpacked},\"fetched\":{fetched},\"starved\":{starved},\
             \"ahead\":{ahead},\"proved\":{proved},\"sent\":{sent},\"packed\":{packed},\"local_bytes\":{local},\"used_bytes\":{used},\
             \"aside_bytes\":{aside},\"held_bytes\":{held}}}\n"
        )
    }
}

impl fmt::Display for Run {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = &self.status.tally;
        write!(
            out,
            "{} faults: {} pages of zeros, {} still here, {} packed here, {} fetched ({}); {} more ahead of need in {} runs that were wanted; {} sent ({})",
            tally.faults,
            tally.zeros,
            tally.shown,
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

/// So many pages.
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
