//! Metrics that every process has.

use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::samples::MetricSamples;

crate::metric_families! {
    /// The metrics that every process has.
    PROCESS_FAMILIES:
    BUILD = gauge("netram_build_info", "1, with the release of the program as a label.");
    START = gauge(
        "netram_start_time_seconds",
        "Unix time at which this process opened what it serves. When it jumps, the process was restarted: \
         its log says why.",
    );
}

/// Unix time at which the process had something to measure.
pub(crate) fn started() -> Duration {
    static STARTED: OnceLock<Duration> = OnceLock::new();
    *STARTED.get_or_init(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Adds what every process says of itself.
pub(crate) fn collect(samples: &mut MetricSamples) {
    samples.gauge(&BUILD, &[("version", env!("CARGO_PKG_VERSION"))], 1.0);
    samples.gauge(&START, &[], started().as_secs_f64());
}
