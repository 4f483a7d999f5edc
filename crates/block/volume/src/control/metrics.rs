//! A volume's status as metrics. Those of its journal are the journal's own.

use std::collections::BTreeMap;

use netram_telemetry::{MetricFamily, MetricSamples};

use super::report::VolumeReport;

netram_telemetry::metric_families! {
    /// The metrics of every open volume.
    VOLUME_FAMILIES:
    SIZE = gauge("netram_volume_size_bytes", "The device's size.");
    FAILING = gauge(
        "netram_volume_failing",
        "1 while writes cannot be applied to the image. Act: its disk is full or fails; netram volume status says why.",
    );
    OPEN = gauge("netram_volume_stage_open_bytes", "Journal bytes of the writes that are collected now.");
    CLOSED = gauge(
        "netram_volume_stages_closed",
        "Collected writes that wait for the image. Worry when it grows: the image's disk is too slow.",
    );
    CLOSED_BYTES = gauge("netram_volume_stages_closed_bytes", "Journal bytes of these.");
    MEMORY = gauge("netram_volume_stage_memory_bytes", "Memory that both use.");
    UNVERIFIED = gauge(
        "netram_volume_recovery_unverified_blocks",
        "Blocks that the last recovery could not check and took as found.",
    );
    CONNECTIONS = gauge("netram_volume_front_connections", "Connections to the volume's server now.");
    IN_SERVICE = gauge(
        "netram_volume_data_lender_in_service",
        "1 while the data lender follows. At 0 the loss of this disk would lose what its copy lacks: start it.",
    );
    LAG = gauge(
        "netram_volume_data_lender_lag_bytes",
        "Journal bytes that are on this disk and not on the data lender's. Worry when it grows.",
    );
    DIRTY = gauge(
        "netram_volume_data_lender_dirty_blocks",
        "Blocks to be sent to the data lender because the journal no longer has them.",
    );
    RESYNC = gauge("netram_volume_resync_left_blocks", "Blocks that a running resync has not examined yet.");
    RESTORING = gauge("netram_volume_restoring_left_bytes", "Bytes that may be only at the data lender, during a restore.");
    READS = counter("netram_volume_reads_total", "Reads.");
    READ_BYTES = counter("netram_volume_read_bytes_total", "Bytes read.");
    WRITES = counter("netram_volume_writes_total", "Writes.");
    WRITTEN_BYTES = counter("netram_volume_written_bytes_total", "Bytes written.");
    ZEROS = counter("netram_volume_zeros_total", "Requests to write zeros or to discard.");
    FLUSHES = counter("netram_volume_flushes_total", "Flushes.");
    STALLS = counter(
        "netram_volume_stalls_total",
        "Requests that waited because too much was not in the image yet. Worry when it grows steadily.",
    );
    STAGES = counter("netram_volume_stages_total", "Collected writes applied to the image.");
    BLOCKS = counter("netram_volume_blocks_total", "Blocks written to the image.");
    HOLES = counter("netram_volume_holes_total", "Blocks turned into holes.");
    BASES = counter("netram_volume_bases_total", "Blocks read from the image because only a part of them was written.");
    FAILURES = counter(
        "netram_volume_failures_total",
        "Steps that failed and are tried again. Worry when it grows: see netram_volume_failing.",
    );
    CORRUPT_READS = counter(
        "netram_volume_corrupt_reads_total",
        "Reads of a block that did not match its checksum. Act when it grows: run netram volume check.",
    );
    CORRUPT_BASES = counter(
        "netram_volume_corrupt_bases_total",
        "Partial writes on a block that did not match its checksum; it stays unreadable. Act as above.",
    );
    MENDED = counter("netram_volume_mended_total", "Damaged blocks that were fetched from the data lender.");
    COPIED = counter("netram_volume_copied_total", "Blocks fetched from the data lender during a restore.");
    LOST = counter(
        "netram_volume_lost_blocks_total",
        "Blocks that are damaged at the data lender and missing here. Act: restore them from a backup.",
    );
    FETCHES = counter(
        "netram_volume_fetch_failures_total",
        "Blocks asked of the data lender that did not arrive. Worry when it grows.",
    );
    GIVEN_UP = counter(
        "netram_volume_given_up_bytes_total",
        "Journal bytes trimmed before the data lender had them; their blocks are sent instead.",
    );
    MARKS = counter(
        "netram_volume_mark_failures_total",
        "Failures to note which blocks the data lender lacks. Then it is sent all of them.",
    );
    UNVERIFIED_BASES = counter(
        "netram_volume_unverified_bases_total",
        "Partial writes on a block that a crash may have torn.",
    );
    FRONT_READS = counter("netram_volume_front_reads_total", "Reads that the volume's server answered.");
    FRONT_READ_BYTES = counter("netram_volume_front_read_bytes_total", "Bytes of these reads.");
    FRONT_WRITES = counter("netram_volume_front_writes_total", "Writes that it took.");
    FRONT_WRITTEN = counter("netram_volume_front_written_bytes_total", "Bytes of these writes.");
    FRONT_ZEROES = counter("netram_volume_front_zeroes_total", "Zero and discard requests that it took.");
    FRONT_FLUSHES = counter("netram_volume_front_flushes_total", "Flushes; those of one batch count once.");
    FRONT_BATCHES = counter("netram_volume_front_batches_total", "Batches of writes that are waited for once.");
    FRONT_ERRORS = counter(
        "netram_volume_front_errors_total",
        "Requests answered with an error. Worry when it grows: programs on the device see these errors.",
    );
    FRONT_SESSIONS = counter("netram_volume_front_sessions_total", "Connections that chose an export.");
    FRONT_REJECTED = counter("netram_volume_front_rejected_total", "Connections that ended before that.");
}

/// Adds the report's numbers.
pub(crate) fn collect(report: &VolumeReport, samples: &mut MetricSamples) {
    let volume = report.volume.display().to_string();
    let of_volume = [("volume", volume.as_str())];
    let stages = &report.stages;
    let levels = [
        (&SIZE, Some(report.bytes)),
        (&FAILING, Some(report.failure.is_some().into())),
        (&OPEN, Some(stages.open_bytes)),
        (&CLOSED, Some(stages.closed)),
        (&CLOSED_BYTES, Some(stages.closed_bytes)),
        (&MEMORY, Some(stages.memory_bytes)),
        (&UNVERIFIED, Some(report.recovered.unverified_blocks)),
        (
            &CONNECTIONS,
            report.front.as_ref().and_then(|front| front.connections),
        ),
        (
            &RESTORING,
            report
                .restoring
                .as_ref()
                .map(|left| left.total.saturating_sub(left.done)),
        ),
    ];
    let copy = report.data_lender.as_ref();
    let resync = copy.and_then(|copy| copy.resync.as_ref());
    let copied = [
        (&IN_SERVICE, copy.map(|copy| copy.in_service.into())),
        (&LAG, copy.map(|copy| copy.lag_bytes)),
        (&DIRTY, copy.map(|copy| copy.dirty_blocks)),
        (
            &RESYNC,
            resync.map(|resync| resync.total_blocks.saturating_sub(resync.done_blocks)),
        ),
    ];
    for (family, value) in levels.into_iter().chain(copied) {
        if let Some(value) = value {
            samples.gauge(family, &of_volume, value as f64);
        }
    }
    collect_counters(&report.counters, "netram_volume", &of_volume, samples);
    if let Some(front) = &report.front {
        let of_front = [("volume", volume.as_str()), ("front", &front.kind)];
        collect_counters(&front.counters, "netram_volume_front", &of_front, samples);
    }
}

fn collect_counters(
    counters: &BTreeMap<String, u64>,
    prefix: &str,
    labels: &[(&'static str, &str)],
    samples: &mut MetricSamples,
) {
    for (name, count) in counters {
        if let Some(family) = family(&format!("{prefix}_{name}_total")) {
            samples.counter(family, labels, *count);
        }
    }
}

/// The metric with this name. A counter without one is in the status only.
fn family(name: &str) -> Option<&'static MetricFamily> {
    VOLUME_FAMILIES.iter().copied().find(|family| family.name == name)
}

#[cfg(test)]
mod tests {
    use netram_block::Statistics;
    use netram_telemetry::MetricsFormat;

    use super::*;
    use crate::control::report::VolumeFrontend;

    #[test]
    fn every_counter_of_the_engine_is_a_metric() {
        for (name, _) in Statistics::default().named() {
            let name = format!("netram_volume_{name}_total");
            assert!(family(&name).is_some(), "{name} has no help text");
        }
    }

    #[test]
    fn the_numbers_have_the_volume_and_its_front_end_as_labels() {
        let report = VolumeReport {
            volume: "/v/a \"b\"".into(),
            bytes: 4096,
            counters: [("reads".to_owned(), 3)].into(),
            front: Some(VolumeFrontend {
                kind: "nbd".into(),
                connections: Some(1),
                counters: [("sessions".to_owned(), 2), ("other".to_owned(), 1)].into(),
            }),
            ..VolumeReport::default()
        };
        let mut samples = MetricSamples::default();
        collect(&report, &mut samples);
        let text = samples.into_text(MetricsFormat::Prometheus);
        for line in [
            r#"netram_volume_size_bytes{volume="/v/a \"b\""} 4096.0"#,
            r#"netram_volume_reads_total{volume="/v/a \"b\""} 3"#,
            r#"netram_volume_front_sessions_total{volume="/v/a \"b\"",front="nbd"} 2"#,
            r#"netram_volume_front_connections{volume="/v/a \"b\""} 1.0"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }
}
