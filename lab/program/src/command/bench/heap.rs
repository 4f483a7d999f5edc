//! `netram-lab bench heap`: the persistent heap beside malloc, and under a long load.

use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use netram_bench::heap::{self, HeapEffort, HeapLoad, HeapSpeed, LOADS, SIZES, SizeMix};
use serde_json::json;

use super::CommonArgs;
use netram_cli::output;

/// Measure the persistent heap beside malloc
///
/// Speed: blocks of one size are allocated and freed, 500 in a transaction that is
/// committed without waiting; beside it malloc and free of as many in this process. Load: a
/// heap of 32 MiB (16 with --quick), three quarters of it allocated, under random
/// allocations and frees; results are the pages in use for each requested byte, and the
/// share of free pages outside the largest free extent. Opening: a heap of 1 GiB, half of
/// it allocated.
///
///   netram-lab bench heap --quick
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct BenchHeap {
    #[command(flatten)]
    common: CommonArgs,
}

impl BenchHeap {
    pub(super) fn run(self) -> Result<ExitCode> {
        let site = self.common.site()?;
        self.common.introduce(&site)?;
        let effort = if self.common.quick {
            HeapEffort::QUICK
        } else {
            HeapEffort::FULL
        };
        let mut speeds = Vec::new();
        for bytes in SIZES {
            output::remark(format_args!("measuring blocks of {bytes} bytes ..."));
            speeds.push(heap::speed(&site, bytes, effort)?);
        }
        let mut loads = Vec::new();
        for sizes in LOADS {
            output::remark(format_args!("measuring a load of {} sizes ...", name(sizes)));
            loads.push(heap::load(&site, sizes, effort)?);
        }
        output::remark("measuring the opening of a heap ...");
        let opening = heap::opening(&site)?;
        if self.common.json {
            self.common
                .json(&json!({ "speed": speeds, "load": loads, "opening": opening }))?;
            return Ok(ExitCode::SUCCESS);
        }
        show_speed(&speeds)?;
        output::line("")?;
        show_load(&loads)?;
        output::line("")?;
        output::line(format_args!(
            "opening a heap of {} with {} blocks: {} ms",
            output::bytes(opening.bytes),
            opening.blocks,
            output::number(opening.ms)
        ))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn show_speed(speeds: &[HeapSpeed]) -> Result<()> {
    let header = [
        "bytes",
        "alloc ns",
        "+ commit",
        "malloc ns",
        "free ns",
        "+ commit",
        "C free ns",
        "log B/alloc",
        "alone",
        "log B/free",
    ];
    let mut table = output::table(&header, 0);
    for speed in speeds {
        table.add_row([
            speed.bytes.to_string(),
            output::number(speed.alloc_ns),
            output::number(speed.alloc_commit_ns),
            output::number(speed.malloc_ns),
            output::number(speed.free_ns),
            output::number(speed.free_commit_ns),
            output::number(speed.c_free_ns),
            output::number(speed.alloc_log_bytes),
            output::number(speed.single_log_bytes),
            output::number(speed.free_log_bytes),
        ]);
    }
    output::line(table)
}

fn show_load(loads: &[HeapLoad]) -> Result<()> {
    let header = [
        "sizes",
        "allocations",
        "refused",
        "held",
        "pages/byte",
        "at worst",
        "scattered %",
        "step ns",
    ];
    let mut table = output::table(&header, 1);
    for load in loads {
        table.add_row([
            name(load.sizes).to_owned(),
            load.steps.to_string(),
            load.refused.to_string(),
            output::bytes(load.asked),
            format!("{:.3}", load.pages_per_byte),
            format!("{:.3}", load.pages_per_byte_max),
            format!("{:.0}", load.scattered * 100.0),
            output::number(load.step_ns),
        ]);
    }
    output::line(table)
}

fn name(sizes: SizeMix) -> &'static str {
    match sizes {
        SizeMix::Small => "small",
        SizeMix::Mixed => "mixed",
        SizeMix::Large => "large",
        SizeMix::Drifting => "drifting",
    }
}
