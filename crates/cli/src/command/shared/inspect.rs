//! Reading a region's directory from outside: nothing is changed and nothing is locked.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use netram_shared::server::RegionTable;

use crate::command::rvm::inspection::LogInspection;
use crate::command::rvm::verdict::LogVerdict;

/// A region, as read from its directory.
pub(crate) struct InspectedRegion {
    pub(super) look: LogInspection,
    pub(super) table: RegionTable,
    /// Bytes of the region's file.
    pub(super) region_bytes: Result<u64, String>,
    /// Damage and doubts of the log.
    pub(super) verdict: LogVerdict,
}

impl InspectedRegion {
    /// Reads the region in `root`: the table's file with the log's transactions over it.
    pub(super) fn at(root: &Path) -> Result<InspectedRegion> {
        let path = root.join("table");
        if !path.is_file() {
            return Err(anyhow!(
                "{} is not a shared region; name the directory that `netram shared create` made",
                root.display()
            ));
        }
        let look = LogInspection::at(root)?;
        let segment = look.segment(name(&path)?)?;
        let file = segment.open()?;
        let mut bytes = vec![0; usize::try_from(file.len())?];
        let read = file.read_at(0, &mut bytes);
        read.with_context(|| format!("reading {}", path.display()))?;
        let (overlay, verdict) = look.overlay(&segment)?;
        overlay.apply(0, &mut bytes);
        let table = RegionTable::read(&bytes).with_context(|| path.display().to_string())?;
        let region = look.segment(name(&root.join("region"))?)?;
        let region_bytes = region
            .open()
            .map(|file| file.len())
            .map_err(|error| error.to_string());
        Ok(InspectedRegion {
            look,
            table,
            region_bytes,
            verdict,
        })
    }

    /// Whether a process has the region open.
    pub(super) fn is_served(&self) -> bool {
        self.look.inspect.in_use()
    }
}

fn name(path: &Path) -> Result<&str> {
    path.to_str()
        .ok_or_else(|| anyhow!("{} is not UTF-8; give the directory another name", path.display()))
}
