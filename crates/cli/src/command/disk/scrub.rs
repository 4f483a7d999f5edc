//! `netram disk scrub`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use netram_disk::{BLOCK_BYTES, Device, DeviceError};
use netram_volume::Volume;
use serde_json::json;

use super::{absolute, refuse_attached};
use crate::output;

/// Bytes read at once. A bad block costs its part being read again in single blocks.
const PART_BYTES: u64 = 1 << 20;
/// Bad blocks that are named; more are counted.
const NAMED_MAX: usize = 20;

/// Read every block of a volume and compare it with its checksum
///
/// It must not be attached or served. It is opened, which recovers it if it was
/// not closed. Nothing is repaired yet: restore bad blocks from a copy, or write
/// them anew. Exit code 1 when there are any.
///
///   netram disk scrub /var/lib/netram/db
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Scrub {
    /// The volume's directory
    volume: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What was found.
#[derive(Default)]
struct Findings {
    /// Bytes that were read; holes are not.
    read: u64,
    bad: Vec<u64>,
    bad_count: u64,
}

impl Scrub {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = absolute(&self.volume)?;
        refuse_attached(&path)?;
        let what = || format!("scrubbing {}", self.volume.display());
        let (volume, _) = Volume::open(&path).with_context(what)?;
        let findings = scrub(&volume).with_context(what);
        volume.close().with_context(what)?;
        let findings = findings?;
        match self.json {
            true => output::json(&json!({
                "read_bytes": findings.read,
                "bad_blocks": findings.bad_count,
                "named": findings.bad,
            }))?,
            false => findings.tell()?,
        }
        Ok(match findings.bad_count {
            0 => ExitCode::SUCCESS,
            _ => ExitCode::FAILURE,
        })
    }
}

impl Findings {
    fn tell(&self) -> Result<()> {
        for block in &self.bad {
            let from = block * BLOCK_BYTES;
            output::line(format_args!(
                "block {block} (bytes {from} to {}) is bad",
                from + BLOCK_BYTES
            ))?;
        }
        let bad = output::count(self.bad_count, "bad block");
        output::line(format_args!("{} read, {bad}", output::bytes(self.read)))
    }

    fn bad(&mut self, block: u64) {
        self.bad_count += 1;
        if self.bad.len() < NAMED_MAX {
            self.bad.push(block);
        }
    }
}

fn scrub(volume: &Volume) -> Result<Findings, DeviceError> {
    let length = volume.geometry().bytes;
    let progress = match output::is_watched() {
        true => bar(length),
        false => ProgressBar::hidden(),
    };
    let mut findings = Findings::default();
    let mut buffer = vec![0; PART_BYTES as usize];
    let mut at = 0;
    while at < length {
        let part = PART_BYTES.min(length - at);
        let mut taken = false;
        volume.extents(at, part, &mut |_, hole| {
            taken |= !hole;
            !taken
        })?;
        if taken {
            read_part(volume, at, &mut buffer[..part as usize], &mut findings)?;
        }
        at += part;
        progress.set_position(at);
    }
    progress.finish_and_clear();
    Ok(findings)
}

fn read_part(
    volume: &Volume,
    at: u64,
    buffer: &mut [u8],
    findings: &mut Findings,
) -> Result<(), DeviceError> {
    findings.read += buffer.len() as u64;
    match volume.read(at, buffer) {
        Err(DeviceError::Corrupt { .. }) => (),
        other => return other,
    }
    for (index, block) in buffer.chunks_mut(BLOCK_BYTES as usize).enumerate() {
        match volume.read(at + index as u64 * BLOCK_BYTES, block) {
            Err(DeviceError::Corrupt { block }) => findings.bad(block),
            other => other?,
        }
    }
    Ok(())
}

fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40.green} {bytes} of {total_bytes}, {bytes_per_sec}, {eta}")
    {
        bar.set_style(style);
    }
    bar
}
