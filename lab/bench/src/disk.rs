//! Floors of the disk: `fdatasync` after each small write, and a sequential read of a file.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};

use crate::error::{BenchError, ErrorContext};
use crate::histogram::{LatencyRecorder, LatencySummary};

/// Size in bytes of the overwritten file: a small log's, so that its blocks are spread likewise.
const OVERWRITTEN_BYTES: usize = 8 << 20;
/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;

/// Times writes at the end of a growing file, each write synced. The file's size changes, which costs a
/// journal commit of the file system.
///
/// # Errors
///
/// Fails if the file cannot be created, written or synced.
pub fn sync_appends(directory: &Path, bytes: usize, count: usize) -> Result<LatencySummary, BenchError> {
    let file = tempfile::tempfile_in(directory).context("make a file to sync")?;
    synced(&file, bytes, count, usize::MAX)
}

/// Times overwrites of a file whose blocks exist already, each synced: the least cost of durability on this
/// disk.
///
/// # Errors
///
/// Fails if the file cannot be created, written or synced.
pub fn sync_overwrites(directory: &Path, bytes: usize, count: usize) -> Result<LatencySummary, BenchError> {
    let mut file = tempfile::tempfile_in(directory).context("make a file to sync")?;
    file.write_all(&vec![1; OVERWRITTEN_BYTES])
        .context("fill a file")?;
    file.sync_all().context("sync a file")?;
    synced(&file, bytes, count, OVERWRITTEN_BYTES)
}

fn synced(file: &File, bytes: usize, count: usize, size: usize) -> Result<LatencySummary, BenchError> {
    let block = vec![2; bytes];
    let mut at = 0;
    let mut recorder = LatencyRecorder::start(&[]);
    for _ in 0..count {
        if at + bytes > size {
            at = 0;
        }
        let began = Instant::now();
        file.write_all_at(&block, at as u64).context("write a file")?;
        file.sync_data().context("sync a file")?;
        recorder.record(began.elapsed());
        at += bytes;
    }
    Ok(recorder.finish())
}

/// Seconds of a sequential read of `path`. With `cold`, its pages are dropped from the page cache before.
///
/// # Errors
///
/// Fails if the file cannot be read.
pub fn read_seconds(path: &Path, cold: bool) -> Result<f64, BenchError> {
    let what = format_args!("read {}", path.display());
    let mut file = OpenOptions::new().read(true).open(path).context(what)?;
    if cold {
        drop_cache(path)?;
    }
    let mut block = vec![0; READ_BYTES];
    let began = Instant::now();
    while file.read(&mut block).context(what)? > 0 {}
    Ok(began.elapsed().as_secs_f64())
}

/// Writes the dirty pages of `path`, then drops its pages, as far as the kernel follows the advice.
///
/// # Errors
///
/// Fails if the file cannot be opened or synced.
pub fn drop_cache(path: &Path) -> Result<(), BenchError> {
    let what = format_args!("drop {} from the cache", path.display());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .context(what)?;
    file.sync_all().context(what)?;
    fadvise(&file, 0, None, Advice::DontNeed).context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_floors_measure_the_requested_writes() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(sync_appends(directory.path(), 200, 3).unwrap().count, 3);
        assert_eq!(sync_overwrites(directory.path(), 200, 3).unwrap().count, 3);
        let path = directory.path().join("file");
        std::fs::write(&path, vec![0; 3 << 20]).unwrap();
        assert!(read_seconds(&path, true).unwrap() > 0.0);
    }
}
