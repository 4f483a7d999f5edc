//! `netram rvm create`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use netram_rvm::SegmentAllocation;
use netram_store::{JournalLayout, Store, StoreSettings};

use super::inspection::absolute;
use crate::options::{SizeArg, UsageError};
use crate::output;

/// Make a log, and segments for it
///
/// The log and the segments are allocated in full, so that a full disk cannot
/// stop a commit later. Nothing that exists is touched. Lenders are named
/// afterwards, in the settings file beside the log (LOG.toml) or in NETRAM_LENDERS.
///
///   netram rvm create bank.log --segment bank.data --size 1GiB
///   netram rvm create /var/lib/bank --directory --log-size 256MiB
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CreateLog {
    /// The new log's file, or with --directory the new directory for all of it
    log: PathBuf,
    /// Bytes of the log: how much can be committed before the log has to be truncated
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    log_size: SizeArg,
    /// Make this segment too; several may be given
    #[arg(long, value_name = "PATH")]
    segment: Vec<PathBuf>,
    /// The segment's size; once for all segments, or once for each, in their order
    #[arg(long, value_name = "SIZE")]
    size: Vec<SizeArg>,
    /// Keep the segments' space for when it is written: a full disk may then stop truncation
    #[arg(long)]
    sparse: bool,
    /// Put the log and all that belongs to it into one new directory
    #[arg(long)]
    directory: bool,
}

impl CreateLog {
    pub(super) fn run(self) -> Result<ExitCode> {
        let segments = self.segments()?;
        for (path, _) in &segments {
            text(path)?;
            if path.symlink_metadata().is_ok() {
                let path = path.display();
                return Err(anyhow!(
                    "there is a file {path} already; choose another path, or remove it. Nothing was made"
                ));
            }
        }
        let layout = match self.directory {
            true => JournalLayout::Directory,
            false => JournalLayout::Beside,
        };
        let home = Store::create(&self.log, layout, self.log_size.0).context("making a log")?;
        output::line(format_args!(
            "log {}, {}",
            home.log().display(),
            output::bytes(self.log_size.0)
        ))?;
        self.fill(&home, &segments).with_context(|| {
            format!(
                "the log {} was made, not all of its segments",
                home.log().display()
            )
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn segments(&self) -> Result<Vec<(PathBuf, SizeArg)>> {
        let sizes = match (self.segment.len(), self.size.as_slice()) {
            (0, []) => Vec::new(),
            (0, _) => {
                return Err(
                    UsageError("--size is for segments: name them with --segment PATH".to_owned()).into(),
                );
            }
            (count, [size]) => vec![*size; count],
            (count, sizes) if sizes.len() == count => sizes.to_vec(),
            (count, sizes) => {
                let sentence = format!(
                    "{count} segments and {} sizes: give --size SIZE once for all, or once for each",
                    sizes.len()
                );
                return Err(UsageError(sentence).into());
            }
        };
        let paths = self.segment.iter().map(|path| absolute(path));
        Ok(paths
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .zip(sizes)
            .collect())
    }

    fn fill(&self, home: &Store, segments: &[(PathBuf, SizeArg)]) -> Result<()> {
        if segments.is_empty() {
            return Ok(());
        }
        // Nothing has been committed, so the disk alone will do.
        let opened = home.open(&StoreSettings::default())?;
        let allocation = match self.sparse {
            true => SegmentAllocation::Sparse,
            false => SegmentAllocation::Preallocated,
        };
        for (path, size) in segments {
            let path = text(path)?;
            opened.memory.create_segment(path, size.0, allocation)?;
            // The table learns of a segment when it is first mapped.
            opened.memory.map(path, 0, 0)?;
            output::line(format_args!("segment {path}, {}", output::bytes(size.0)))?;
        }
        Ok(())
    }
}

/// The segment table's way of writing a path.
fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{path:?} is not UTF-8; choose another name. Nothing was made"))
}
