//! Times of a volume's requests.

use netram_telemetry::{CallTimes, MetricSamples, TimedCall};

/// Kinds of requests to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceCall {
    /// Reading blocks.
    Read,
    /// Taking a write into the journal, without the wait for lenders.
    Write,
    /// Waiting until a write is durable.
    Wait,
    /// Writing zeros, or discarding.
    Zero,
    /// A flush.
    Flush,
}

const NAMES: [&str; 5] = ["read", "write", "wait", "zero", "flush"];

/// Times of a volume's requests, and of the stages that are applied to the image.
#[derive(Debug, Default)]
pub(crate) struct DeviceTimes {
    calls: CallTimes<{ NAMES.len() }>,
    pub(crate) apply: netram_telemetry::LatencyHistogram,
}

netram_telemetry::metric_families! {
    /// The times of every open volume.
    VOLUME_TIME_FAMILIES:
    REQUEST = histogram(
        "netram_volume_request_duration_seconds",
        "Time of a request to the volume, by kind: write takes it into the journal, wait is until it is durable. Worry when \
         wait takes much longer than netram_commit_duration_seconds, or read much longer than the disk.",
    );
    IN_PROGRESS = gauge("netram_volume_requests_in_progress", "Requests that the volume serves now.");
    APPLY = histogram(
        "netram_volume_apply_duration_seconds",
        "Time of each step that applies collected writes to the image and syncs it. Worry when it is above a second: the \
         image's disk is slow.",
    );
}

impl DeviceTimes {
    #[inline]
    pub(crate) fn begin(&self, call: DeviceCall) -> TimedCall<'_> {
        self.calls.begin(call as usize)
    }

    /// Adds the times of the volume at `volume`.
    pub(crate) fn collect(&self, volume: &str, samples: &mut MetricSamples) {
        let of_volume = [("volume", volume)];
        self.calls
            .collect(&REQUEST, &of_volume, "request", &NAMES, samples);
        samples.gauge(&IN_PROGRESS, &of_volume, self.calls.in_progress() as f64);
        samples.histogram(&APPLY, &of_volume, &self.apply);
    }
}
