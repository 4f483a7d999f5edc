//! `netram rvm dump`: the committed bytes of a segment, as the next opening would show them.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, ensure};
use clap::Args;

use super::inspection::{ByteRange, LogInspection, number};
use crate::output;

/// Bytes read, laid over and written at once.
const PIECE_BYTES: u64 = 1024 * 1024;
/// Bytes in a line of hexadecimal output.
const LINE_BYTES: usize = 16;

/// Write the committed bytes of a segment to a file or to standard output
///
/// These are the segment's file with the log's transactions over it. Nothing is changed, and the
/// log need not have been closed. Bytes that only lenders hold are missing, which a note on
/// standard error says. Of a damaged log nothing is written.
///
///   netram rvm dump bank.log bank.data --output bank.copy
///   netram rvm dump bank.log bank.data --offset 4096 --length 64 --hex
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct DumpSegment {
    /// The log's file, or the directory that holds all of it
    log: PathBuf,
    /// The segment: its path or its number
    segment: String,
    /// Offset of the first byte
    #[arg(long, value_name = "BYTES", value_parser = number, default_value = "0")]
    offset: u64,
    /// Number of bytes [default: to the end]
    #[arg(long, value_name = "BYTES", value_parser = number)]
    length: Option<u64>,
    /// The new file; `-` is standard output
    #[arg(long, value_name = "FILE", default_value = "-")]
    output: PathBuf,
    /// Write lines of hexadecimal digits, each with its offset, instead of the bytes
    #[arg(long)]
    hex: bool,
}

impl DumpSegment {
    pub(super) fn run(self) -> Result<ExitCode> {
        let look = LogInspection::at(&self.log)?;
        let segment = look.segment(&self.segment)?;
        let file = segment.open()?;
        let stretch = self.stretch(file.len(), &segment.path)?;
        let (overlay, verdict) = look.overlay(&segment)?;
        ensure!(
            verdict.damage.is_empty(),
            "{}. Nothing was written: without all of the log these are not the committed bytes",
            verdict.damage.join("; ")
        );
        let mut out = self.open()?;
        let (mut at, end) = (stretch.offset, stretch.offset + stretch.length);
        let mut piece = vec![0; PIECE_BYTES.min(stretch.length) as usize];
        while at < end {
            let bytes = &mut piece[..(end - at).min(PIECE_BYTES) as usize];
            file.read_at(at, bytes)
                .with_context(|| format!("reading {} at {at}", segment.path))?;
            overlay.apply(at, bytes);
            match self.hex {
                true => write_hex(&mut out, at, bytes)?,
                false => out.write_all(bytes)?,
            }
            at += bytes.len() as u64;
        }
        out.flush()?;
        look.caution();
        for sentence in &verdict.notes {
            output::remark(format_args!("netram: {sentence}"));
        }
        if !self.to_standard_output() {
            output::line(format_args!(
                "{} of {} in {}",
                output::bytes(stretch.length),
                segment.path,
                self.output.display()
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn to_standard_output(&self) -> bool {
        self.output.as_os_str() == "-"
    }

    fn stretch(&self, size: u64, path: &str) -> Result<ByteRange> {
        let length = self.length.unwrap_or(size.saturating_sub(self.offset));
        let stretch = ByteRange {
            offset: self.offset,
            length,
        };
        match stretch.end() {
            Some(end) if end <= size => Ok(stretch),
            _ => Err(anyhow!(
                "bytes {}+{length} are not in {path}, which has {size}",
                self.offset
            )),
        }
    }

    fn open(&self) -> Result<Box<dyn Write>> {
        if self.to_standard_output() {
            return Ok(Box::new(BufWriter::new(io::stdout().lock())));
        }
        let opened = OpenOptions::new().write(true).create_new(true).open(&self.output);
        let what = || {
            format!(
                "making {}; a file that exists is never overwritten",
                self.output.display()
            )
        };
        Ok(Box::new(BufWriter::new(opened.with_context(what)?)))
    }
}

fn write_hex(out: &mut dyn Write, offset: u64, bytes: &[u8]) -> io::Result<()> {
    for (index, line) in bytes.chunks(LINE_BYTES).enumerate() {
        write!(out, "{:010x} ", offset + (index * LINE_BYTES) as u64)?;
        for byte in line {
            write!(out, " {byte:02x}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
