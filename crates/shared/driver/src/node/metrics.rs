//! Metrics of a node. Those of its journal, with the latency of its commits, are the journal's own.

use netram_telemetry::{LatencyHistogram, MetricCounter, MetricSamples, MetricSource};

use super::inner::NodeInner;

/// Times of a node. Recording them neither locks nor allocates.
#[derive(Debug, Default)]
pub(super) struct NodeTimes {
    /// Waits for locks that other transactions had.
    pub(super) lock_wait: LatencyHistogram,
    pub(super) locks_failed: MetricCounter,
}

netram_telemetry::metric_families! {
    /// The metrics of every node of a region.
    NODE_FAMILIES:
    LOCK_WAIT = histogram(
        "netram_node_lock_wait_duration_seconds",
        "Time that transactions waited for locks that they did not get at once. Worry when it is above the lease: a holder is \
         slow or dead.",
    );
    LOCKS_FAILED = counter(
        "netram_node_locks_failed_total",
        "Locks that were not granted: the wait was too long, the lease was lost, or transactions waited for each other.",
    );
    UNAPPLIED = gauge(
        "netram_node_unapplied_records",
        "Records of other nodes that wait to be applied here. Worry when it stays: the program reads the region under a \
         guard for too long.",
    );
    UNAPPLIED_BYTES = gauge("netram_node_unapplied_bytes", "Bytes of these records. The node ends when they are too many.");
    LIVE = gauge("netram_node_live", "1 while the node belongs to the region. At 0 the program must join again.");
    DURABLE_LAG = gauge(
        "netram_node_records_not_durable",
        "This node's records that the server's disk does not have yet. Its lenders hold them. Worry when it grows.",
    );
    ORPHANS = gauge(
        "netram_node_orphan_journals",
        "Journals of earlier processes that the server has not taken yet. Worry when it stays above 0: see the log.",
    );
}

impl MetricSource for NodeInner {
    fn collect(&self, samples: &mut MetricSamples) {
        let node = self.id.0.to_string();
        let labels = [("node", node.as_str()), ("name", self.join_info.name.as_str())];
        samples.histogram(&LOCK_WAIT, &labels, &self.times.lock_wait);
        samples.counted(&LOCKS_FAILED, &labels, &self.times.locks_failed);
        let backlog = self.applier.backlog();
        let (live, lag) = {
            let core = self.core();
            let progress = core.ends.progress();
            let lag = progress.appended.0.saturating_sub(progress.durable.0);
            (core.gone.is_none(), lag)
        };
        for (family, value) in [
            (&UNAPPLIED, backlog.records),
            (&UNAPPLIED_BYTES, backlog.bytes),
            (&LIVE, live.into()),
            (&DURABLE_LAG, lag),
            (&ORPHANS, self.orphans().len() as u64),
        ] {
            samples.gauge(family, &labels, value as f64);
        }
    }
}
