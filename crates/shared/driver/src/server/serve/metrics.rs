//! Metrics of a region's server. Those of its journal are the journal's own.

use std::path::Path;
use std::sync::Arc;

use netram_telemetry::{MetricSamples, MetricSource, MetricsRegistration, MetricsRegistry};

use super::ask;
use super::mailbox::DriverMailbox;
use super::report::ServerReport;

netram_telemetry::metric_families! {
    /// The metrics of every served region.
    REGION_FAMILIES:
    UP = gauge(
        "netram_region_up",
        "1 if the serving thread answered within two seconds. At 0 the server is overloaded or has ended: see its log.",
    );
    SIZE = gauge("netram_region_size_bytes", "The region's size.");
    POSITION = counter("netram_region_records_total", "Records that the server has ordered since the region was made.");
    UNDURABLE = gauge(
        "netram_region_records_not_durable",
        "Records that the server's disk does not have yet. Their nodes' lenders hold them. Worry when it grows: the disk does \
         not follow.",
    );
    NODES = gauge(
        "netram_region_nodes",
        "Nodes by state. live is usual. absent and behind have lost their link or fallen back; stuck: a dead node's journal \
         cannot be read to its end. Act on stuck: netram shared status names the lenders that must answer.",
    );
    BEHIND = gauge(
        "netram_region_behind_records",
        "Records that the node which is furthest behind still has to be sent. Worry when it grows: that node or its link is \
         slow.",
    );
    WAITED = gauge(
        "netram_region_locks_waited_for",
        "Locks that nodes wait for now. Worry when it stays: netram shared status names the holders.",
    );
    MISSING = gauge(
        "netram_region_records_held_back",
        "Records that wait for others that have not come, at most 16. Worry when it stays above 0.",
    );
    GONE = counter("netram_region_nodes_gone_total", "Nodes that have left or died, since the region was made.");
    LOSSES = gauge(
        "netram_region_losses_accepted",
        "Gone nodes whose acknowledged records may be missing, by an operator's order.",
    );
}

/// States of nodes that are counted even when no node is in them, so that alerts see zero and not nothing.
const STATES: [&str; 4] = ["live", "absent", "behind", "stuck"];

/// A served region, while its server runs.
pub(super) struct RegionMetrics {
    region: String,
    mailbox: Arc<DriverMailbox>,
}

impl RegionMetrics {
    /// The metrics of the region in `root`, for as long as the result lives.
    pub(super) fn register(root: &Path, mailbox: &Arc<DriverMailbox>) -> MetricsRegistration<RegionMetrics> {
        let metrics = Arc::new(RegionMetrics {
            region: root.display().to_string(),
            mailbox: Arc::clone(mailbox),
        });
        MetricsRegistry::of_process().add(&metrics)
    }
}

impl MetricSource for RegionMetrics {
    fn collect(&self, samples: &mut MetricSamples) {
        let report = match self.mailbox.is_stopping() {
            true => None,
            false => ask(&self.mailbox),
        };
        let of_region = [("region", self.region.as_str())];
        samples.gauge(&UP, &of_region, f64::from(u8::from(report.is_some())));
        if let Some(report) = report {
            collect(&report, &self.region, samples);
        }
    }
}

fn collect(report: &ServerReport, region: &str, samples: &mut MetricSamples) {
    let of_region = [("region", region)];
    samples.counter(&POSITION, &of_region, report.position);
    let behind = report.nodes.iter().filter_map(|node| node.behind).max();
    for (family, value) in [
        (&UNDURABLE, report.position.saturating_sub(report.kept)),
        (&BEHIND, behind.unwrap_or(0)),
        (&WAITED, report.waited_for_count as u64),
        (&MISSING, report.missing.len() as u64),
    ] {
        samples.gauge(family, &of_region, value as f64);
    }
    let found = report.nodes.iter().map(|node| node.standing.as_str());
    for state in STATES.into_iter().chain(found) {
        let count = report.nodes.iter().filter(|node| node.standing == state).count();
        samples.gauge(&NODES, &[("region", region), ("state", state)], count as f64);
    }
    if let Some(facts) = &report.region {
        samples.gauge(&SIZE, &of_region, facts.bytes as f64);
        samples.counter(&GONE, &of_region, facts.nodes_gone);
        samples.gauge(&LOSSES, &of_region, facts.losses_accepted.len() as f64);
    }
}

#[cfg(test)]
mod tests {
    use netram_telemetry::MetricsFormat;

    use super::super::report::NodeReport;
    use super::*;

    #[test]
    fn nodes_are_counted_by_state_and_the_furthest_behind_is_told() {
        let node = |standing: &str, behind| NodeReport {
            standing: standing.to_owned(),
            behind,
            ..NodeReport::default()
        };
        let report = ServerReport {
            position: 12,
            kept: 10,
            nodes: vec![
                node("live", Some(1)),
                node("live", Some(7)),
                node("fencing", None),
            ],
            ..ServerReport::default()
        };
        let mut samples = MetricSamples::default();
        collect(&report, "plan", &mut samples);
        let text = samples.into_text(MetricsFormat::OpenMetrics);
        for line in [
            "netram_region_nodes{region=\"plan\",state=\"live\"} 2.0\n",
            "netram_region_nodes{region=\"plan\",state=\"fencing\"} 1.0\n",
            "netram_region_nodes{region=\"plan\",state=\"stuck\"} 0.0\n",
            "netram_region_behind_records{region=\"plan\"} 7.0\n",
            "netram_region_records_not_durable{region=\"plan\"} 2.0\n",
            "netram_region_records_total{region=\"plan\"} 12\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}
