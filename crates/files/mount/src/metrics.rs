//! Metrics of a mount. Those of its journal are the journal's own.

use std::path::Path;
use std::sync::Arc;

use netram_telemetry::{
    CallTimes, LatencyHistogram, MetricGauge, MetricSamples, MetricSource, MetricsRegistration,
    MetricsRegistry, TimedCall,
};

/// Kinds of requests of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FuseCall {
    /// Reading bytes.
    Read,
    /// Writing bytes, with the sync of a file that is opened for synchronous writes.
    Write,
    /// `fsync`, `fdatasync`, and of a directory.
    Sync,
    /// Changing names: creating, renaming, linking, removing.
    Name,
    /// Looking up names and attributes, and listing.
    Look,
    /// Opening and closing.
    Open,
    /// Setting attributes and sizes, and allocating.
    Set,
}

const NAMES: [&str; 7] = ["read", "write", "sync", "name", "look", "open", "set"];

/// Times and state of a mount. Recording them neither locks nor allocates.
#[derive(Debug)]
pub(crate) struct MountMetrics {
    mount: String,
    threads: usize,
    restarts: u32,
    calls: CallTimes<{ NAMES.len() }>,
    pub(crate) checkpoint: LatencyHistogram,
    /// 1 while checkpoints fail.
    pub(crate) checkpoints_fail: MetricGauge,
}

netram_telemetry::metric_families! {
    /// The metrics of every mount.
    MOUNT_FAMILIES:
    REQUEST = histogram(
        "netram_mount_request_duration_seconds",
        "Time to answer a request of the kernel, by kind: sync is what a database waits for; read and write are of \
         bytes that the kernel does not cache; name creates, renames or removes. Worry when sync takes much longer than \
         netram_commit_duration_seconds: the threads are too few, or the processor is busy.",
    );
    IN_PROGRESS = gauge(
        "netram_mount_requests_in_progress",
        "Requests that are being answered now. Worry when it stays at netram_mount_threads: further ones wait.",
    );
    RESTARTS = counter(
        "netram_mount_restarts_total",
        "Servers of this mount that died or hung and were replaced, while programs only waited. Act when it grows: see \
         the log for the reason.",
    );
    THREADS = gauge("netram_mount_threads", "Threads that answer the kernel.");
    CHECKPOINT = histogram(
        "netram_mount_checkpoint_duration_seconds",
        "Time of each checkpoint, which syncs changed files and frees the log. Worry when it is above the interval of \
         checkpoints: the disk does not keep up.",
    );
    CHECKPOINTS_FAIL = gauge(
        "netram_mount_checkpoints_failing",
        "1 while checkpoints fail. The journal keeps everything, and fills. Act: see the log for the disk's error.",
    );
}

impl MountMetrics {
    /// The metrics of the directory `dir`, for as long as the result lives.
    pub(crate) fn register(dir: &Path, threads: usize, restarts: u32) -> MetricsRegistration<MountMetrics> {
        let metrics = Arc::new(MountMetrics {
            mount: dir.display().to_string(),
            threads,
            restarts,
            calls: CallTimes::new(),
            checkpoint: LatencyHistogram::new(),
            checkpoints_fail: MetricGauge::default(),
        });
        MetricsRegistry::of_process().add(&metrics)
    }

    /// Begins to time a request.
    #[inline]
    pub(crate) fn begin(&self, call: FuseCall) -> TimedCall<'_> {
        self.calls.begin(call as usize)
    }
}

impl MetricSource for MountMetrics {
    fn collect(&self, samples: &mut MetricSamples) {
        let of_mount = [("mount", self.mount.as_str())];
        self.calls
            .collect(&REQUEST, &of_mount, "request", &NAMES, samples);
        samples.gauge(&IN_PROGRESS, &of_mount, self.calls.in_progress() as f64);
        samples.counter(&RESTARTS, &of_mount, self.restarts.into());
        samples.gauge(&THREADS, &of_mount, self.threads as f64);
        samples.histogram(&CHECKPOINT, &of_mount, &self.checkpoint);
        samples.level(&CHECKPOINTS_FAIL, &of_mount, &self.checkpoints_fail);
    }
}
