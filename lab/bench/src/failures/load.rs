//! fio on the file system: synchronous writes with checksums, which it verifies, and a log with the time of
//! each.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;
use crate::tool::{finish, wait_until};

const BLOCK_BYTES: u64 = 4096;
/// Size in bytes of the file that random writes overwrite repeatedly.
const RANDOM_BYTES: u64 = 16 << 20;
/// Bytes that no sequential run exceeds.
const SEQUENCE_BYTES: u64 = 256 << 20;
/// Longer than any scenario: a load is stopped before.
const RUNTIME: &str = "--runtime=1800";
/// Minimum number of writes in a measured stretch; fewer give no useful median.
const WRITES_MIN: u64 = 30;
/// Exit code of fio after it was asked to stop.
const STOPPED_EXIT_CODE: i32 = 128;

/// Access pattern of fio.
#[derive(Clone, Copy, Debug)]
pub(super) enum FioPattern {
    /// Random blocks of a file, in passes, each read back soon after it was written. This load outlives the
    /// failure.
    Random,
    /// Consecutive blocks until the load is cut off. The number of acknowledged blocks tells which must be
    /// there.
    Sequence,
}

/// From one moment to another.
pub(super) type TimeRange = Range<SystemTime>;

/// A running fio. Killed when dropped.
pub(super) struct FioLoad {
    process: Child,
    directory: PathBuf,
    report: PathBuf,
}

/// Result of a fio run.
pub(super) struct FioResult {
    writes: Vec<FioWrite>,
    /// Bytes that were acknowledged.
    acked_bytes: u64,
    /// fio's error message.
    pub(super) failure: Option<String>,
}

/// One write: when it returned, and its latency.
struct FioWrite {
    at: Duration,
    took_us: f64,
}

/// Latencies of the writes in a stretch of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteStats {
    pub(super) median_us: f64,
    pub(super) longest_ms: f64,
}

impl FioLoad {
    /// Starts fio in the directory `below` with its reports in `beside`, and waits until it writes.
    pub(super) fn start(kind: FioPattern, below: &Path, beside: &Path) -> Result<FioLoad, BenchError> {
        let directory = beside.join("fio");
        // Left over from an earlier load of this scenario.
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).context("make a directory for fio's reports")?;
        let report = directory.join("report.json");
        let output = File::create(&report).context("make fio's report")?;
        let complaints = File::create(directory.join("complaints")).context("make fio's report")?;
        let mut command = fio(kind, below);
        command
            .args(["--output-format=json", "--log_unix_epoch=1"])
            .arg(format!("--write_lat_log={}", directory.join("log").display()))
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(complaints);
        let process = command.spawn().context("start fio")?;
        let load = FioLoad {
            process,
            directory,
            report,
        };
        load.until_written(WRITES_MIN)?;
        Ok(load)
    }

    /// Lets it run for `span`, and longer if there are too few writes. Returns the measured time range.
    pub(super) fn watch(&self, span: Duration) -> Result<TimeRange, BenchError> {
        let (from, written) = (SystemTime::now(), self.written()?);
        std::thread::sleep(span);
        self.until_written(written + WRITES_MIN)?;
        Ok(from..SystemTime::now())
    }

    fn until_written(&self, blocks: u64) -> Result<(), BenchError> {
        wait_until("fio writes", || Ok(self.written()? >= blocks))
    }

    /// Number of blocks written, as the system counts them; a few bytes of reports may be included.
    fn written(&self) -> Result<u64, BenchError> {
        let path = format!("/proc/{}/io", self.process.id());
        let counts = fs::read_to_string(path).context("ask how much fio has written")?;
        let bytes = counts.lines().find_map(|line| line.strip_prefix("wchar: "));
        let bytes: Option<u64> = bytes.and_then(|bytes| bytes.trim().parse().ok());
        bytes.map(|bytes| bytes / BLOCK_BYTES).ok_or_else(|| {
            BenchError::InvalidRequest(format!("the system does not report fio's writes: {counts}"))
        })
    }

    /// Asks it to stop, which it does after verifying its current pass.
    pub(super) fn stop(self) -> Result<FioResult, BenchError> {
        // It may have ended with an error, which its report then has.
        let _ = kill_process(Pid::from_child(&self.process), Signal::INT);
        self.end()
    }

    /// Waits for its end, which is near.
    pub(super) fn end(mut self) -> Result<FioResult, BenchError> {
        let mut status = None;
        wait_until("fio ends", || {
            status = self.process.try_wait().context("look at fio")?;
            Ok(status.is_some())
        })?;
        let text = fs::read_to_string(&self.report).context("read fio's report")?;
        // Warnings may stand before the report.
        let report = text.find('{').map_or("", |at| &text[at..]);
        let report: Value = serde_json::from_str(report).context("read fio's report")?;
        let log = fs::read_to_string(self.directory.join("log_lat.1.log")).context("read fio's log")?;
        let ended = status.and_then(|status| status.code());
        let failed = !matches!(ended, Some(0 | STOPPED_EXIT_CODE)) || report["jobs"][0]["error"] != 0;
        let complaint = || {
            let said = fs::read_to_string(self.directory.join("complaints")).unwrap_or_default();
            let first = said.lines().chain(text.lines()).next();
            first.unwrap_or("it gives no reason").to_owned()
        };
        Ok(FioResult {
            writes: log.lines().filter_map(FioWrite::parse).collect(),
            acked_bytes: report["jobs"][0]["write"]["io_bytes"].as_u64().unwrap_or(0),
            failure: failed.then(complaint),
        })
    }
}

impl Drop for FioLoad {
    fn drop(&mut self) {
        // Both fail only when it has ended and was waited for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl FioWrite {
    /// Fields: milliseconds, nanoseconds, direction (1 for a write), and others that are ignored.
    fn parse(line: &str) -> Option<FioWrite> {
        let mut fields = line.split(',').map(str::trim);
        let at = Duration::from_millis(fields.next()?.parse().ok()?);
        let took_ns: f64 = fields.next()?.parse().ok()?;
        (fields.next()? == "1").then_some(FioWrite {
            at,
            took_us: took_ns / 1e3,
        })
    }
}

impl FioResult {
    /// The writes that returned in a range of time. `None` if there are none.
    pub(super) fn during(&self, span: &TimeRange) -> Option<WriteStats> {
        let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (from, to) = (since(span.start), since(span.end));
        let took: Vec<f64> = self
            .writes
            .iter()
            .filter(|write| from <= write.at && write.at < to)
            .map(|write| write.took_us)
            .collect();
        let longest_us = took.iter().copied().fold(0.0, f64::max);
        (!took.is_empty()).then(|| WriteStats {
            median_us: median(took),
            longest_ms: longest_us / 1e3,
        })
    }

    /// Number of blocks of a sequence that must be there. The last one is in doubt, because a failing file
    /// system may report it as done.
    pub(super) fn acked_blocks(&self) -> u64 {
        (self.acked_bytes / BLOCK_BYTES).saturating_sub(1)
    }
}

/// Lets fio verify the first `blocks` of a sequence; the error names the first wrong block.
pub(super) fn verify(blocks: u64, below: &Path) -> Result<(), BenchError> {
    let mut command = fio(FioPattern::Sequence, below);
    command.args(["--verify_only", "--do_verify=1"]);
    // fio uses the last occurrence of an option.
    command.arg(format!("--size={}", blocks * BLOCK_BYTES));
    finish(&mut command)
        .map(drop)
        .map_err(|error| BenchError::WrongData {
            place: below.to_owned(),
            why: format!("some of {blocks} acknowledged blocks are missing: {error}"),
        })
}

fn fio(kind: FioPattern, below: &Path) -> Command {
    let mut command = Command::new("fio");
    command
        .current_dir(below)
        .args(["--name=fio", "--filename=fio", "--bs=4k", "--ioengine=psync"])
        .args([
            // The system counts a child process's writes only after its end, but a thread's at once.
            "--thread",
            "--direct=1",
            "--sync=dsync",
            "--verify=crc32c",
            "--verify_fatal=1",
        ]);
    match kind {
        FioPattern::Random => command
            .args(["--rw=randwrite", "--verify_backlog=256", "--time_based", RUNTIME])
            .arg(format!("--size={RANDOM_BYTES}")),
        FioPattern::Sequence => command
            .args(["--rw=write", "--do_verify=0"])
            .arg(format!("--size={SEQUENCE_BYTES}")),
    };
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(log: &str) -> FioResult {
        FioResult {
            writes: log.lines().filter_map(FioWrite::parse).collect(),
            acked_bytes: 3 * BLOCK_BYTES,
            failure: None,
        }
    }

    #[test]
    fn a_time_range_has_only_its_own_writes() {
        let done = done(
            "1000, 50000, 1, 4096, 0\n1500, 9, 0, 4096, 0\n2000, 70000, 1, 4096, 0\n3000, 8000000, 1, 4096, 0\n",
        );
        let at = |ms: u64| UNIX_EPOCH + Duration::from_millis(ms);
        let all = done.during(&(at(0)..at(9000))).expect("three writes");
        assert_eq!((all.median_us, all.longest_ms), (70.0, 8.0));
        let early = done.during(&(at(0)..at(2000))).expect("one write");
        assert_eq!((early.median_us, early.longest_ms), (50.0, 0.05));
        assert!(done.during(&(at(4000)..at(9000))).is_none());
    }

    #[test]
    fn the_last_acknowledged_block_is_in_doubt() {
        assert_eq!(done("").acked_blocks(), 2);
    }
}
