//! `netram rvm relocate`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use serde_json::{Value, json};

use super::inspection::existing;
use crate::output;

/// Tell a log where its segments are after they were moved
///
/// FROM is a segment as `netram rvm status` shows it, or a directory that held some; TO is the
/// new place. The file at TO must be the one that the log knows. If the log's directory is moved
/// as a whole, with the segments in it, this command is not needed.
///
///   netram rvm relocate bank.log /old/bank.data /new/bank.data
///   netram rvm relocate bank.log /old /new
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub struct RelocateSegment {
    /// The log's file, or its directory; no program may have it open
    log: PathBuf,
    /// The segment's old path, or that of a directory above it
    from: PathBuf,
    /// The new path
    to: PathBuf,
    /// Accept the file at TO even if the log does not recognise it, such as a copy made without
    /// extended attributes
    #[arg(long)]
    adopt: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl RelocateSegment {
    pub(super) fn run(self) -> Result<ExitCode> {
        let home = existing(&self.log)?;
        let (from, to) = (full(&self.from)?, full(&self.to)?);
        let moved = home
            .relocate(&from, &to, self.adopt)
            .with_context(|| format!("relocating segments of {}", self.log.display()))?;
        if self.json {
            let moved: Vec<Value> = moved
                .iter()
                .map(|moved| json!({ "from": moved.from, "to": moved.to }))
                .collect();
            output::json(&json!({ "relocated": moved }))?;
        } else {
            for moved in moved {
                output::line(format!("{} is now {}", moved.from, moved.to))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Returns the absolute path, with links resolved as far as it exists.
fn full(path: &Path) -> Result<String> {
    let mut absolute = std::path::absolute(path).with_context(|| path.display().to_string())?;
    if let Some((above, real)) = absolute
        .ancestors()
        .find_map(|above| Some((above, above.canonicalize().ok()?)))
    {
        let rest = absolute.strip_prefix(above).unwrap_or(Path::new(""));
        absolute = real.components().chain(rest.components()).collect();
    }
    let text = absolute.into_os_string().into_string();
    text.map_err(|path| anyhow!("{} is not UTF-8; choose another name", path.display()))
}
