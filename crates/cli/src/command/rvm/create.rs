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
use crate::settings::{self, LenderArgs, owned, put};

/// Create a log, and segments for it
///
/// Lenders given here are written to the settings file beside the log (LOG.toml), which may be
/// edited; without any, commits wait for this disk. Log and segments are allocated in full, so
/// that a full disk cannot stop a commit later. An existing file is never touched.
///
///   netram rvm create bank.log --segment bank.data --size 1GiB \
///       --lender tcp://10.0.0.2:7420 --lender tcp://10.0.0.3:7420
///   netram rvm create /var/lib/bank --directory --log-size 256MiB
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct CreateLog {
    /// The new log's file, or with --directory the new directory
    log: PathBuf,
    /// Bytes of the log: how much can be committed before the log must be truncated
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    log_size: SizeArg,
    /// Also create this segment (the data file that programs map); repeat it for several
    #[arg(long, value_name = "PATH")]
    segment: Vec<PathBuf>,
    /// Bytes of the segments: once for all, or once for each in their order
    #[arg(long, value_name = "SIZE")]
    size: Vec<SizeArg>,
    /// Do not allocate the segments' space: a full disk may then stop truncation later
    #[arg(long)]
    sparse: bool,
    /// Put the log and everything that belongs to it into one new directory
    #[arg(long)]
    directory: bool,
    #[command(flatten)]
    lenders: LenderArgs,
}

impl CreateLog {
    pub(super) fn run(self) -> Result<ExitCode> {
        let segments = self.segments()?;
        let settings = self.settings()?;
        for (path, _) in &segments {
            text(path)?;
            if path.symlink_metadata().is_ok() {
                let path = path.display();
                return Err(anyhow!(
                    "{path} exists already; choose another path, or remove it. Nothing was created"
                ));
            }
        }
        let layout = match self.directory {
            true => JournalLayout::Directory,
            false => JournalLayout::Beside,
        };
        let home = Store::create(&self.log, layout, self.log_size.0).context("creating a log")?;
        output::line(format_args!(
            "log {}, {}",
            home.log().display(),
            output::bytes(self.log_size.0)
        ))?;
        settings::write(&home.settings_file(), &settings, |_| Ok(()))?;
        self.fill(&home, &segments).with_context(|| {
            format!(
                "the log {} was created, but not all of its segments",
                home.log().display()
            )
        })?;
        self.lenders
            .remark_waiting("commits", &home.settings_file(), self.log_size.0);
        Ok(ExitCode::SUCCESS)
    }

    fn segments(&self) -> Result<Vec<(PathBuf, SizeArg)>> {
        let sizes = match (self.segment.len(), self.size.as_slice()) {
            (0, []) => Vec::new(),
            (0, _) => {
                return Err(UsageError(
                    "--size is the size of segments: name these with --segment PATH".to_owned(),
                )
                .into());
            }
            (count, [size]) => vec![*size; count],
            (count, sizes) if sizes.len() == count => sizes.to_vec(),
            (count, sizes) => {
                let sentence = format!(
                    "{} and {}: give --size SIZE once for all, or once for each",
                    output::count(count as u64, "segment"),
                    output::count(sizes.len() as u64, "size")
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

    /// Returns the contents of the settings file, which were read as an opening will.
    fn settings(&self) -> Result<toml::Table> {
        let mut settings = self.lenders.table()?;
        if !settings.is_empty() {
            put(&mut settings, "key-file", self.lenders.key()?);
            settings = owned([("journal", settings)]);
            StoreSettings::parse(&toml::to_string(&settings)?, &self.log)?.journal_config()?;
        }
        Ok(settings)
    }

    fn fill(&self, home: &Store, segments: &[(PathBuf, SizeArg)]) -> Result<()> {
        if segments.is_empty() {
            return Ok(());
        }
        // Nothing has been committed yet, so no lender is needed.
        let opened = home.open(&StoreSettings::default())?;
        let allocation = match self.sparse {
            true => SegmentAllocation::Sparse,
            false => SegmentAllocation::Preallocated,
        };
        for (path, size) in segments {
            let path = text(path)?;
            opened.memory.create_segment(path, size.0, allocation)?;
            // A segment enters the table when it is first mapped.
            opened.memory.map(path, 0, 0)?;
            output::line(format_args!("segment {path}, {}", output::bytes(size.0)))?;
        }
        Ok(())
    }
}

/// Returns a path as text, as the segment table stores it.
fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .with_context(|| format!("{path:?} is not UTF-8; choose another name. Nothing was created"))
}
