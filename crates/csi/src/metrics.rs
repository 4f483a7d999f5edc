//! Metrics of the driver: its requests. The volumes' servers are other processes, which serve their own.

use std::sync::Arc;

use netram_telemetry::{
    CallTimes, MetricCounter, MetricSamples, MetricSource, MetricsRegistration, MetricsRegistry,
};

/// Requests of Kubernetes, and of Docker. Others count as the last one.
const REQUESTS: [&str; 20] = [
    "CreateVolume",
    "DeleteVolume",
    "ValidateVolumeCapabilities",
    "ListVolumes",
    "GetCapacity",
    "NodeStageVolume",
    "NodeUnstageVolume",
    "NodePublishVolume",
    "NodeUnpublishVolume",
    "NodeGetVolumeStats",
    "NodeExpandVolume",
    "Probe",
    "/VolumeDriver.Create",
    "/VolumeDriver.Remove",
    "/VolumeDriver.Mount",
    "/VolumeDriver.Unmount",
    "/VolumeDriver.Path",
    "/VolumeDriver.Get",
    "/VolumeDriver.List",
    "other",
];

netram_telemetry::metric_families! {
    /// The metrics of the driver.
    DRIVER_FAMILIES:
    REQUEST = histogram(
        "netram_csi_request_duration_seconds",
        "Time of a request of Kubernetes, Docker or Podman, by name. A NodeStageVolume attaches the volume and checks its file \
         system: seconds are usual. Worry when it takes a minute: pods wait for it.",
    );
    REFUSED = counter(
        "netram_csi_requests_refused_total",
        "Requests that were refused or failed; whoever asked repeats them. Worry when it grows steadily: the log says why.",
    );
    IN_PROGRESS = gauge("netram_csi_requests_in_progress", "Requests that are being carried out.");
}

/// Times of requests.
#[derive(Debug, Default)]
pub(crate) struct DriverMetrics {
    calls: CallTimes<{ REQUESTS.len() }>,
    refused: MetricCounter,
}

impl DriverMetrics {
    /// The metrics of a driver, for as long as the result lives.
    pub(crate) fn register() -> MetricsRegistration<DriverMetrics> {
        let metrics = Arc::<DriverMetrics>::default();
        MetricsRegistry::of_process().add(&metrics)
    }

    /// Carries out a request, and times it.
    pub(crate) fn carry_out<T, E>(&self, request: &str, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let known = REQUESTS.iter().position(|name| *name == request);
        let _timed = self.calls.begin(known.unwrap_or(REQUESTS.len() - 1));
        work().inspect_err(|_| self.refused.add(1))
    }
}

impl MetricSource for DriverMetrics {
    fn collect(&self, samples: &mut MetricSamples) {
        self.calls.collect(&REQUEST, &[], "request", &REQUESTS, samples);
        samples.counted(&REFUSED, &[], &self.refused);
        samples.gauge(&IN_PROGRESS, &[], self.calls.in_progress() as f64);
    }
}

#[cfg(test)]
mod tests {
    use netram_telemetry::MetricsFormat;

    use super::*;

    #[test]
    fn a_request_counts_by_its_name_and_an_unknown_one_as_other() {
        let metrics = DriverMetrics::default();
        metrics.carry_out("Probe", || Ok::<_, ()>(1)).unwrap();
        metrics.carry_out("/made/up", || Err::<(), _>(2)).unwrap_err();
        let mut samples = MetricSamples::default();
        metrics.collect(&mut samples);
        let text = samples.into_text(MetricsFormat::OpenMetrics);
        for line in [
            "netram_csi_request_duration_seconds_count{request=\"Probe\"} 1\n",
            "netram_csi_request_duration_seconds_count{request=\"other\"} 1\n",
            "netram_csi_requests_refused_total 1\n",
            "netram_csi_requests_in_progress 0.0\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        for family in DRIVER_FAMILIES {
            assert!(
                family.help.ends_with('.') && family.help.len() < 320,
                "{}",
                family.name
            );
        }
    }
}
