//! `netram rvm load`: writing a file's bytes to a segment by transactions.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use netram_proto::port::{Durability, RecordLog};
use netram_rvm::{Region, RestoreMode, SegmentAllocation};
use netram_store::{JournaledRvm, OpenStore};

use super::inspection::{absolute, existing, number};
use crate::output;

/// Bytes of one transaction, unless the log's records are smaller.
const PART_BYTES_MAX: usize = 1024 * 1024;
/// Divisor of the largest payload that gives the bytes for values; the rest is for the record's fields.
const PAYLOAD_SHARE: usize = 2;
/// Segments created here are whole pages long.
const PAGE_BYTES: u64 = 4096;

/// Write a file's bytes to a segment, by transactions
///
/// The bytes are committed in parts that fit the log, so a crash in the middle leaves the first
/// parts written. No other program may have the log open. Lenders are those of LOG.toml or
/// NETRAM_LENDERS.
///
///   netram rvm load bank.log bank.data accounts.bin --create
///   netram rvm load bank.log bank.data header.bin --offset 4096 --atomic
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct LoadSegment {
    /// The log's file, or the directory that holds all of it
    log: PathBuf,
    /// Path of the segment
    segment: PathBuf,
    /// File with the bytes
    file: PathBuf,
    /// Offset in the segment of the first byte
    #[arg(long, value_name = "BYTES", value_parser = number, default_value = "0")]
    offset: u64,
    /// Write everything in one transaction, all or nothing; it must fit the log
    #[arg(long)]
    atomic: bool,
    /// Create the segment first, as long as needed
    #[arg(long)]
    create: bool,
}

impl LoadSegment {
    pub(super) fn run(self) -> Result<ExitCode> {
        let home = existing(&self.log)?;
        let mut file = File::open(&self.file).with_context(|| format!("opening {}", self.file.display()))?;
        let metadata = file
            .metadata()
            .with_context(|| format!("looking at {}", self.file.display()))?;
        if !metadata.is_file() {
            return Err(anyhow!(
                "{} is not a regular file; copy it to one first",
                self.file.display()
            ));
        }
        let length = metadata.len();
        let end = self
            .offset
            .checked_add(length)
            .ok_or_else(|| anyhow!("offset and length are beyond any segment"))?;
        let path = absolute(&self.segment)?;
        if !self.create && !path.exists() {
            return Err(anyhow!(
                "there is no segment {}; make it with --create, or name one that is there",
                path.display()
            ));
        }
        let what = || format!("opening {}", self.log.display());
        let settings = home.settings().with_context(what)?;
        let OpenStore { memory, .. } = home.open(&settings).with_context(what)?;
        let region = self.region(&memory, &path, end)?;
        let parts = match self.atomic {
            true => self.load_at_once(&memory, &region, &mut file, length)?,
            false => self.load_in_parts(&memory, &region, &mut file, length)?,
        };
        drop(region);
        let closed = memory.close().map_err(|(error, _)| error);
        closed.context("closing")?.close().context("closing")?;
        let parts = output::count(parts, "transaction");
        output::line(format_args!("{} in {parts}", output::bytes(length)))?;
        Ok(ExitCode::SUCCESS)
    }

    fn region(&self, memory: &JournaledRvm, path: &Path, end: u64) -> Result<Region> {
        let text = path.to_str().with_context(|| format!("{path:?} is not UTF-8"))?;
        if self.create {
            let length = end.max(1).next_multiple_of(PAGE_BYTES);
            memory.create_segment(text, length, SegmentAllocation::Preallocated)?;
        }
        let region = memory.map(text, 0, 0)?;
        let size = region.len() as u64;
        match end <= size {
            true => Ok(region),
            false => Err(anyhow!(
                "{} bytes at {} do not fit {text}, which has {size}; nothing was changed",
                end - self.offset,
                self.offset
            )),
        }
    }

    fn load_at_once(
        &self,
        memory: &JournaledRvm,
        region: &Region,
        file: &mut File,
        length: u64,
    ) -> Result<u64> {
        let payload_max = memory.log().state().payload_max as u64;
        if length > payload_max {
            return Err(anyhow!(
                "{length} bytes do not fit one transaction of this log, which holds {payload_max}; leave out --atomic, \
                 or give it a log (`netram rvm grow`) and a window (NETRAM_WINDOW) of more than twice that"
            ));
        }
        let mut bytes = Vec::with_capacity(length as usize);
        file.take(length).read_to_end(&mut bytes)?;
        let mut transaction = memory.begin(RestoreMode::NoRestore);
        transaction.write(region, self.offset as usize, &bytes)?;
        transaction.commit(Durability::Remote)?;
        Ok(1)
    }

    fn load_in_parts(
        &self,
        memory: &JournaledRvm,
        region: &Region,
        file: &mut File,
        length: u64,
    ) -> Result<u64> {
        let part = PART_BYTES_MAX.min(memory.log().state().payload_max / PAYLOAD_SHARE);
        let bar = output::is_watched().then(|| bar(length));
        let (mut done, mut parts) = (0, 0);
        let mut bytes = vec![0; part];
        while done < length {
            let piece = &mut bytes[..(length - done).min(part as u64) as usize];
            file.read_exact(piece).with_context(|| {
                format!(
                    "reading {}: {done} bytes of it are in the segment",
                    self.file.display()
                )
            })?;
            let mut transaction = memory.begin(RestoreMode::NoRestore);
            transaction.write(region, (self.offset + done) as usize, piece)?;
            transaction
                .commit(Durability::Remote)
                .with_context(|| format!("{done} bytes are in the segment; the next part failed"))?;
            done += piece.len() as u64;
            parts += 1;
            if let Some(bar) = &bar {
                bar.set_position(done);
            }
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        Ok(parts)
    }
}

fn bar(length: u64) -> ProgressBar {
    let bar = ProgressBar::new(length);
    if let Ok(style) =
        ProgressStyle::with_template("{bar:40.green} {bytes} of {total_bytes}, {bytes_per_sec}")
    {
        bar.set_style(style);
    }
    bar
}
