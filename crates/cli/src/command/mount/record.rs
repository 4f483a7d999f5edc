//! Records of mounted directories, which say on what journal each is: the kernel's table does not.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use netram_supervise::ProcessIdentity;
use serde::{Deserialize, Serialize};

use super::table::resolved;

/// Contents of a record.
#[derive(Debug, Serialize, Deserialize)]
struct RecordFile {
    directory: PathBuf,
    journal: PathBuf,
    pid: u32,
    /// The process that supervises the server, or is it; `None` in records of earlier releases.
    #[serde(default)]
    process: Option<ProcessIdentity>,
}

/// The record of a mounted directory, a file as long as the process that attached it lives.
#[derive(Debug)]
pub(super) struct MountRecord {
    contents: RecordFile,
}

impl MountRecord {
    /// Writes the record. Without it only `netram mount list` and `status` know less, so a failure is not one
    /// of the mount.
    pub(super) fn keep(dir: &Path, journal: &Path) -> Option<MountRecord> {
        let contents = RecordFile {
            directory: resolved(dir).ok()?,
            journal: journal.canonicalize().ok()?,
            pid: std::process::id(),
            process: ProcessIdentity::of(std::process::id()).ok(),
        };
        let written = write(&contents);
        written
            .inspect_err(|error| tracing::warn!(%error, "`netram mount list` will not show the journal"))
            .ok()?;
        Some(MountRecord { contents })
    }

    /// Whether the process that attached a mounted directory is known to be gone.
    pub(super) fn is_left(dir: &Path) -> bool {
        let process = read(dir).and_then(|record| record.process);
        process.is_some_and(|process| !process.is_alive())
    }

    /// Returns the journal of a mounted directory, if its record can be read.
    pub(super) fn journal_of(dir: &Path) -> Option<PathBuf> {
        Some(read(dir)?.journal)
    }
}

impl Drop for MountRecord {
    fn drop(&mut self) {
        // The record of a later process must stay.
        let directory = &self.contents.directory;
        if read(directory).is_some_and(|there| there.pid == self.contents.pid) {
            let _ = fs::remove_file(place().join(name(directory, "json")));
        }
    }
}

fn write(contents: &RecordFile) -> io::Result<()> {
    let path = file(&contents.directory, "json")?;
    fs::write(path, serde_json::to_vec(contents)?)
}

fn read(dir: &Path) -> Option<RecordFile> {
    let bytes = fs::read(place().join(name(dir, "json"))).ok()?;
    let contents: RecordFile = serde_json::from_slice(&bytes).ok()?;
    (contents.directory == dir).then_some(contents)
}

/// Returns the log of a directory that is mounted in the background.
pub(super) fn log_file(dir: &Path) -> Result<PathBuf> {
    file(&resolved(dir)?, "log").with_context(|| {
        let place = place();
        format!(
            "making {} (set XDG_RUNTIME_DIR to a directory that this user may write)",
            place.display()
        )
    })
}

/// Returns the path of a directory's file, whose own directory is made.
fn file(dir: &Path, ending: &str) -> io::Result<PathBuf> {
    let place = place();
    DirBuilder::new().mode(0o700).recursive(true).create(&place)?;
    Ok(place.join(name(dir, ending)))
}

/// Returns the directory of records: root's, or the user's own.
fn place() -> PathBuf {
    const NAME: &str = "netram-mount";
    if rustix::process::geteuid().is_root() {
        return Path::new("/run").join(NAME);
    }
    let variable = |name| std::env::var_os(name).filter(|dir| !dir.is_empty());
    match (variable("XDG_RUNTIME_DIR"), variable("HOME")) {
        (Some(dir), _) => Path::new(&dir).join(NAME),
        (None, Some(home)) => Path::new(&home).join(".local/state").join(NAME),
        (None, None) => Path::new("/run").join(NAME),
    }
}

/// Returns a file name for a directory: its path with `-` for `/`, and `%` before what would be ambiguous.
fn name(dir: &Path, ending: &str) -> String {
    let text = dir.to_string_lossy();
    let escaped = text.trim_matches('/').replace('%', "%%").replace('-', "%-");
    format!("{}.{ending}", escaped.replace('/', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_two_directories_differ() {
        let names = ["/srv/a-b", "/srv/a/b", "/srv/a%-b", "/srv/a%/b"].map(|dir| name(Path::new(dir), "log"));
        for (index, one) in names.iter().enumerate() {
            assert!(!names[..index].contains(one), "{names:?}");
            assert!(!one.contains('/'));
        }
    }
}
