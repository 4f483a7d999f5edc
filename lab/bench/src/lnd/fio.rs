//! One measurement by fio, in place of lmdd: one thread writes block after block with `O_SYNC`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;

use super::FILE_BYTES;
use crate::error::{BenchError, ErrorContext};
use crate::histogram::{LatencySummary, median};
use crate::testbed::Testbed;

/// Throughput and latencies of one run's writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FioWrites {
    /// Throughput in units of 1,000 bytes.
    pub kb_per_second: f64,
    /// Number of writes.
    pub writes: u64,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
    /// The longest, in microseconds.
    pub max_us: f64,
}

impl FioWrites {
    /// Figures of writes of `block` bytes that a program other than fio measured.
    pub(super) fn of(taken: &LatencySummary, block: u64) -> FioWrites {
        FioWrites {
            kb_per_second: taken.per_second * block as f64 / 1e3,
            writes: taken.count,
            p50_us: taken.p50_us,
            p99_us: taken.p99_us,
            max_us: taken.max_us,
        }
    }

    /// The median of each field over rounds.
    pub(super) fn median(rounds: &[FioWrites]) -> FioWrites {
        let field = |of: fn(&FioWrites) -> f64| median(rounds.iter().map(of).collect());
        FioWrites {
            kb_per_second: field(|round| round.kb_per_second),
            writes: rounds.iter().map(|round| round.writes).sum(),
            p50_us: field(|round| round.p50_us),
            p99_us: field(|round| round.p99_us),
            max_us: field(|round| round.max_us),
        }
    }
}

/// Writes blocks of `block` bytes to the file or device at `path` for `time`, each with `O_SYNC`.
///
/// # Errors
///
/// Fails if fio fails, or its report cannot be read.
pub fn write(site: &Testbed, path: &Path, block: u64, time: Duration) -> Result<FioWrites, BenchError> {
    let what = format_args!("run fio on {}", path.display());
    let output = Command::new("fio")
        .args([
            "--name=lmdd",
            "--ioengine=psync",
            "--sync=1",
            "--rw=write",
            "--output-format=json",
        ])
        .args([
            "--time_based",
            "--thread",
            "--allow_file_create=0",
            "--randrepeat=1",
        ])
        .arg(format!("--filename={}", path.display()))
        .arg(format!("--bs={block}"))
        .arg(format!("--size={FILE_BYTES}"))
        .arg(format!("--runtime={}ms", time.as_millis()))
        .current_dir(site.directory())
        .stdin(Stdio::null())
        .output()
        .context(what)?;
    let said = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(BenchError::InvalidRequest(format!(
            "cannot {what}: {}",
            said.trim()
        )));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    parse(&text)
        .ok_or_else(|| BenchError::InvalidRequest(format!("cannot {what}: it reported no writes: {said}")))
}

/// The writes in fio's report. Lines of warnings may precede it.
fn parse(text: &str) -> Option<FioWrites> {
    let report: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    let write = report.get("jobs")?.get(0)?.get("write")?;
    let number = |of: &Value| of.as_f64();
    let latency = write.get("clat_ns")?;
    let percentile = |name: &str| Some(number(latency.get("percentile")?.get(name)?)? / 1e3);
    let writes = write.get("total_ios")?.as_u64()?;
    (writes > 0).then_some(())?;
    Some(FioWrites {
        kb_per_second: number(write.get("bw_bytes")?)? / 1e3,
        writes,
        p50_us: percentile("50.000000")?,
        p99_us: percentile("99.000000")?,
        max_us: number(latency.get("max")?)? / 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_and_one_without_writes_is_refused() {
        let report = |writes: u64| {
            format!(
                r#"fio: a warning
                {{"jobs": [{{"write": {{"bw_bytes": 4096000, "total_ios": {writes}, "clat_ns": {{"max": 9000,
                "percentile": {{"50.000000": 1500, "99.000000": 2500}}}}}}}}]}}"#
            )
        };
        let written = parse(&report(1000)).unwrap();
        assert_eq!((written.kb_per_second, written.writes), (4096.0, 1000));
        assert_eq!((written.p50_us, written.p99_us, written.max_us), (1.5, 2.5, 9.0));
        assert_eq!(parse(&report(0)), None);
        assert_eq!(parse("fio: no such engine"), None);
    }
}
