//! A report in the text format of Prometheus.

use std::fmt::{self, Write};

use super::report::VolumeReport;

/// The report's numbers, one a line, each with its meaning.
pub fn text(report: &VolumeReport) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write_all(&mut text, report);
    text
}

fn write_all(out: &mut String, report: &VolumeReport) -> fmt::Result {
    let volume = escaped(&report.volume.display().to_string());
    let mut put = |name: &str, kind: &str, means: &str, value: u64| {
        writeln!(
            out,
            "# HELP netram_volume_{name} {means}\n# TYPE netram_volume_{name} {kind}\n\
             netram_volume_{name}{{volume=\"{volume}\"}} {value}"
        )
    };
    for (name, means, value) in volume_gauges(report).into_iter().chain(journal_gauges(report)) {
        put(name, "gauge", means, value)?;
    }
    let journal = &report.journal;
    for (name, means, value) in [
        ("records", "Records appended to the journal.", journal.records),
        ("syncs", "Syncs of the log file.", journal.syncs),
        (
            "stalls",
            "Appends that waited because the window was full.",
            journal.window_stalls,
        ),
    ] {
        put(&format!("journal_{name}_total"), "counter", means, value)?;
    }
    for (name, count) in &report.counters {
        let means = format!("Same as `{name}` in the status.");
        put(&format!("{name}_total"), "counter", &means, *count)?;
    }
    if let Some(front) = &report.front {
        if let Some(connections) = front.connections {
            let name = format!("{}_connections", front.kind);
            put(&name, "gauge", "Connections now.", connections)?;
        }
        for (name, count) in &front.counters {
            let means = format!("Same as `{name}` in the status of `{}`.", front.kind);
            put(&format!("{}_{name}_total", front.kind), "counter", &means, *count)?;
        }
    }
    for (name, means, value) in data_lender_gauges(report) {
        put(name, "gauge", means, value)?;
    }
    write_lenders(out, report, &volume)
}

/// Gauges of the lender that keeps a copy; none without one.
fn data_lender_gauges(report: &VolumeReport) -> Vec<Gauge> {
    let mut gauges = Vec::new();
    if let Some(status) = &report.data_lender {
        gauges.extend([
            (
                "data_lender_in_service",
                "1 while the data lender is in service.",
                status.in_service.into(),
            ),
            (
                "data_lender_lag_bytes",
                "Journal bytes that are on this disk but not on the data lender's.",
                status.lag_bytes,
            ),
            (
                "data_lender_dirty_blocks",
                "Blocks that the data lender must be sent because the journal no longer has their records.",
                status.dirty_blocks,
            ),
        ]);
        if let Some(resync) = &status.resync {
            let left = resync.total_blocks.saturating_sub(resync.done_blocks);
            gauges.push((
                "resync_left_blocks",
                "Blocks that the resync has not examined yet.",
                left,
            ));
        }
    }
    if let Some(restoring) = &report.restoring {
        let left = restoring.total.saturating_sub(restoring.done);
        gauges.push((
            "restoring_left_bytes",
            "Bytes that may be only at the data lender.",
            left,
        ));
    }
    gauges
}

/// Name, meaning and value.
type Gauge = (&'static str, &'static str, u64);

fn volume_gauges(report: &VolumeReport) -> [Gauge; 10] {
    let (stages, journal) = (&report.stages, &report.journal);
    let (failing, degraded) = (report.failure.is_some(), journal.blocked.is_some());
    [
        ("size_bytes", "The device's size.", report.bytes),
        (
            "uptime_seconds",
            "Time since the volume was opened.",
            report.uptime_s,
        ),
        (
            "failing",
            "1 while writes cannot be applied to the image.",
            failing.into(),
        ),
        (
            "degraded",
            "1 while writes wait for the local disk because lenders are missing.",
            degraded.into(),
        ),
        (
            "stage_open_bytes",
            "Journal bytes of the open stage.",
            stages.open_bytes,
        ),
        (
            "stages_closed",
            "Closed stages that wait for the image.",
            stages.closed,
        ),
        (
            "stages_closed_bytes",
            "Journal bytes of the closed stages.",
            stages.closed_bytes,
        ),
        (
            "stage_memory_bytes",
            "Memory that stages use.",
            stages.memory_bytes,
        ),
        (
            "stage_memory_max_bytes",
            "Maximum of `stage_memory_bytes` so far.",
            stages.memory_bytes_max,
        ),
        (
            "recovery_unverified_blocks",
            "Blocks that the last recovery could not check.",
            report.recovered.unverified_blocks,
        ),
    ]
}

fn journal_gauges(report: &VolumeReport) -> [Gauge; 6] {
    let journal = &report.journal;
    let failed = journal.disk_error.is_some();
    [
        (
            "journal_failed",
            "1 once the journal's disk has failed.",
            failed.into(),
        ),
        (
            "journal_head_bytes",
            "The image has every record below this position.",
            journal.head,
        ),
        (
            "journal_stable_bytes",
            "The local disk has every record below this position.",
            journal.stable,
        ),
        (
            "journal_acked_bytes",
            "Every record below this position meets the commit rule.",
            journal.acked,
        ),
        ("journal_tail_bytes", "Position of the next record.", journal.tail),
        (
            "journal_capacity_bytes",
            "Capacity of the log file.",
            journal.capacity,
        ),
    ]
}

fn write_lenders(out: &mut String, report: &VolumeReport, volume: &str) -> fmt::Result {
    type Value = fn(&super::report::LenderReport) -> u64;
    let families: [(&str, &str, Value); 3] = [
        ("lender_up", "1 while the lender is connected.", |lender| {
            u64::from(lender.link == "ready")
        }),
        ("lender_member", "1 while the lender is a member.", |lender| {
            u64::from(lender.member)
        }),
        (
            "lender_held_bytes",
            "The lender's memory has every record below this position.",
            |lender| lender.held,
        ),
    ];
    for (name, means, value) in families.iter().filter(|_| !report.lenders.is_empty()) {
        writeln!(
            out,
            "# HELP netram_volume_{name} {means}\n# TYPE netram_volume_{name} gauge"
        )?;
        for lender in &report.lenders {
            let (address, value) = (escaped(&lender.address), value(lender));
            writeln!(
                out,
                "netram_volume_{name}{{volume=\"{volume}\",lender=\"{address}\"}} {value}"
            )?;
        }
    }
    Ok(())
}

fn escaped(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::report::{LenderReport, VolumeFrontend};

    #[test]
    fn every_number_is_explained_once_and_labels_are_escaped() {
        let lender = |address: &str| LenderReport {
            address: address.into(),
            link: "ready".into(),
            held: 7,
            ..LenderReport::default()
        };
        let report = VolumeReport {
            volume: "/v/a \"b\"".into(),
            bytes: 4096,
            counters: [("reads".to_owned(), 3)].into(),
            lenders: vec![lender("tcp://a:1"), lender("tcp://b:1")],
            front: Some(VolumeFrontend {
                kind: "nbd".into(),
                connections: Some(1),
                counters: [("sessions".to_owned(), 2)].into(),
            }),
            ..VolumeReport::default()
        };
        let text = text(&report);
        for line in [
            r#"netram_volume_size_bytes{volume="/v/a \"b\""} 4096"#,
            r#"netram_volume_reads_total{volume="/v/a \"b\""} 3"#,
            r#"netram_volume_nbd_sessions_total{volume="/v/a \"b\""} 2"#,
            r#"netram_volume_lender_up{volume="/v/a \"b\"",lender="tcp://b:1"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let helps: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next())
            .collect();
        let mut once = helps.clone();
        once.sort_unstable();
        once.dedup();
        assert_eq!(once.len(), helps.len(), "a family appears twice");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let family = line.split('{').next().unwrap();
            assert!(helps.contains(&family), "{line}");
        }
    }
}
