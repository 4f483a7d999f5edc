//! Metrics that every process has.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::family::MetricFamily;
use crate::samples::MetricSamples;

/// The metrics that every process has.
pub static PROCESS_FAMILIES: [MetricFamily; 2] = [
    MetricFamily::gauge(
        "netram_build_info",
        "1, with the release of the program as a label.",
    ),
    MetricFamily::gauge(
        "netram_start_time_seconds",
        "Unix time at which the metrics of this process were first served. When it jumps, the process was restarted: \
         see why in its log.",
    ),
];

/// Adds what every process says of itself.
pub(crate) fn collect(samples: &mut MetricSamples) {
    static STARTED: OnceLock<Duration> = OnceLock::new();
    let started = STARTED.get_or_init(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
    let [build, start] = &PROCESS_FAMILIES;
    samples.gauge(build, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    samples.gauge(start, &[], started.as_secs_f64());
}
