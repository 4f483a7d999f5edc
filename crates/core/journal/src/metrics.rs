//! Counters and latencies of a journal, and its metrics.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use netram_proto::journal::{JournalLenderStatus, LenderRole, LinkPhase};
use netram_proto::port::CommitVotes;
use netram_proto::time::Nanos;
use netram_telemetry::histogram::BUCKETS;
use netram_telemetry::{
    LatencyHistogram, MetricCounter, MetricSamples, MetricSource, MetricsAddress, MetricsServer,
};

use crate::core::JournalState;
use crate::open::JournalRecovery;

/// Counters and latencies of an open journal. Recording them neither locks nor allocates.
#[derive(Debug, Default)]
pub(crate) struct JournalCounters {
    pub(crate) records: MetricCounter,
    pub(crate) syncs: MetricCounter,
    pub(crate) window_stalls: MetricCounter,
    pub(crate) links_lost: MetricCounter,
    pub(crate) views: MetricCounter,
    /// Commits by who completed them: members, the disk, both.
    commits: [LatencyHistogram; 3],
    pub(crate) sync: LatencyHistogram,
    recovered: OnceLock<(Duration, u64)>,
}

const COMPLETED_BY: [&str; 3] = ["members", "disk", "both"];

impl JournalCounters {
    /// Counts a commit that its caller has waited for. Two additions: about 10 ns.
    #[inline]
    pub(crate) fn committed(&self, votes: &CommitVotes, waited: Nanos) {
        let by = match (votes.rule, votes.disk) {
            (true, false) => 0,
            (false, true) => 1,
            _ => 2,
        };
        self.commits[by].record_ns(waited.0);
    }

    /// Number of commits in each bucket of their latency, whoever completed them.
    pub(crate) fn commits_by_wait(&self) -> Vec<u64> {
        let snapshots = self.commits.each_ref().map(LatencyHistogram::snapshot);
        let in_bucket = |bucket| snapshots.iter().map(|snapshot| snapshot.counts[bucket]).sum();
        (0..BUCKETS).map(in_bucket).collect()
    }

    /// Notes the recovery that opened the journal.
    pub(crate) fn recovered(&self, recovery: &JournalRecovery) {
        let recovered = (recovery.took, recovery.records_from_members);
        // A journal is opened once.
        let _ = self.recovered.set(recovered);
    }
}

netram_telemetry::metric_families! {
    /// The metrics of every open journal.
    JOURNAL_FAMILIES:
    COMMIT = histogram(
        "netram_commit_duration_seconds",
        "Time that commits waited, by who completed them: members (lenders), disk, or both. Worry when commits are \
         completed by the disk although lenders are configured: see netram_journal_members.",
    );
    SYNC = histogram(
        "netram_disk_sync_duration_seconds",
        "Time of each sync of the log file. Commits that need the disk are no faster than this. Worry above 0.1 s.",
    );
    RECORDS = counter(
        "netram_journal_records_total",
        "Records appended since the journal was opened.",
    );
    STALLS = counter(
        "netram_journal_window_stalls_total",
        "Appends that waited because the window was full: the disk is slower than the writers. Worry when it grows \
         steadily.",
    );
    LINKS_LOST = counter(
        "netram_journal_links_lost_total",
        "Connections to lenders that broke. Worry when it grows: see the log for the lender and the cause.",
    );
    VIEWS = counter(
        "netram_journal_views_total",
        "Member lists stored. It grows when members change, and twice per idle period.",
    );
    MEMBERS = gauge(
        "netram_journal_members",
        "Lenders that hold the window now. Worry when it stays below netram_journal_members_wanted.",
    );
    MEMBERS_WANTED = gauge(
        "netram_journal_members_wanted",
        "Lenders that should hold the window, by the settings.",
    );
    DEGRADED = gauge(
        "netram_journal_degraded",
        "1 while commits wait for the disk because too few lenders count. Nothing is lost, but commits are slow: \
         look at netram_journal_lender_up.",
    );
    FAILED = gauge(
        "netram_journal_failed",
        "1 once the local disk has failed: the journal is read-only. Act at once: see the log.",
    );
    REFUSED = gauge(
        "netram_journal_disk_refused",
        "1 while the system refuses to write a file of the journal, mostly because the disk is full. Free space: \
         the write is retried.",
    );
    FENCED = gauge(
        "netram_journal_fenced",
        "1 once another writer has taken the journal over. This process acknowledges nothing more: stop it.",
    );
    USED = gauge("netram_journal_log_used_bytes", "Bytes of the log file in use.");
    CAPACITY = gauge(
        "netram_journal_log_capacity_bytes",
        "Bytes of the log file. Appends are refused when all are in use: worry when nine tenths are.",
    );
    UNSYNCED = gauge(
        "netram_journal_unsynced_bytes",
        "Bytes appended that the local disk does not have yet. Usually those of a few milliseconds.",
    );
    AT_RISK = gauge(
        "netram_at_risk_bytes",
        "Acknowledged bytes that would be gone if this memory were lost now: that of this machine, of a power domain, of \
         this machine and a domain, or all. Disks stay. For this machine, and for each domain where it is not, it is 0. \
         Others may be above 0 for milliseconds. Worry when one stays.",
    );
    AT_RISK_AGE = gauge(
        "netram_at_risk_age_seconds",
        "Time since the oldest of these bytes was acknowledged. Worry above a few seconds: the disk does not follow.",
    );
    LENDER_UP = gauge(
        "netram_journal_lender_up",
        "1 while the lender is connected and ready. Worry when it is 0 for a minute: is its process running?",
    );
    RECOVERY = gauge(
        "netram_recovery_duration_seconds",
        "Time that the recovery took which opened the journal.",
    );
    RECOVERED = gauge(
        "netram_recovery_member_records",
        "Records that this recovery took from lenders: the local disk did not have them.",
    );
}

/// Serves the metrics of this process at `address`, on the page of another journal of it if there is one. A
/// refusal is logged.
pub(crate) fn serve(address: &MetricsAddress) -> Option<Arc<MetricsServer>> {
    match MetricsServer::shared(address) {
        Ok(page) => Some(page),
        Err(error) => {
            tracing::warn!(%error, "the journal is open, and its metrics are not served");
            None
        }
    }
}

impl MetricSource for JournalState {
    fn collect(&self, samples: &mut MetricSamples) {
        let journal = self.paths.root().display().to_string();
        let of_journal = [("journal", journal.as_str())];
        self.collect_counters(samples, &journal);
        let core = self.core();
        if core.closed {
            return;
        }
        let (status, tail) = (core.writer.status(), core.end.lsn);
        let (stable, at_risk) = (core.writer.stable_for_good(), core.writer.at_risk(self.now()));
        let (failed, fenced) = (core.disk_error.is_some(), core.writer.fenced().is_some());
        drop(core);
        let head = self.head.load(Ordering::Acquire);
        let present = |lender: &&JournalLenderStatus| {
            lender.role == LenderRole::Member && lender.link == LinkPhase::Ready
        };
        let members: Vec<_> = status.lenders.iter().filter(present).collect();
        let degraded = status.blocked.is_some() && !status.lenders.is_empty();
        for (family, value) in [
            (&MEMBERS, members.len() as f64),
            (&MEMBERS_WANTED, status.copies.wanted as f64),
            (&DEGRADED, f64::from(u8::from(degraded))),
            (&FAILED, f64::from(u8::from(failed))),
            (
                &REFUSED,
                f64::from(u8::from(!failed && self.refusals.any().is_some())),
            ),
            (&FENCED, f64::from(u8::from(fenced))),
            (&USED, tail.0.saturating_sub(head) as f64),
            (&CAPACITY, self.log.capacity() as f64),
            (&UNSYNCED, tail.0.saturating_sub(stable.0) as f64),
        ] {
            samples.gauge(family, &of_journal, value);
        }
        for risk in at_risk {
            let lost = risk.lost.to_string();
            let labels = [("journal", journal.as_str()), ("lost", &lost)];
            samples.gauge(&AT_RISK, &labels, risk.bytes as f64);
            samples.gauge(&AT_RISK_AGE, &labels, risk.age.0 as f64 / 1e9);
        }
        for lender in status.lenders.iter().filter(|lender| lender.alias_of.is_none()) {
            let ready = f64::from(u8::from(lender.link == LinkPhase::Ready));
            let labels = [
                ("journal", journal.as_str()),
                ("lender", &lender.address),
                ("domain", &lender.domain),
            ];
            samples.gauge(&LENDER_UP, &labels, ready);
        }
    }
}

impl JournalState {
    fn collect_counters(&self, samples: &mut MetricSamples, journal: &str) {
        let counters = &self.counters;
        let of_journal = [("journal", journal)];
        for (by, commits) in COMPLETED_BY.iter().zip(&counters.commits) {
            samples.histogram(&COMMIT, &[("journal", journal), ("by", by)], commits);
        }
        samples.histogram(&SYNC, &of_journal, &counters.sync);
        for (family, counter) in [
            (&RECORDS, &counters.records),
            (&STALLS, &counters.window_stalls),
            (&LINKS_LOST, &counters.links_lost),
            (&VIEWS, &counters.views),
        ] {
            samples.counted(family, &of_journal, counter);
        }
        if let Some((took, from_members)) = counters.recovered.get() {
            samples.gauge(&RECOVERY, &of_journal, took.as_secs_f64());
            samples.gauge(&RECOVERED, &of_journal, *from_members as f64);
        }
    }
}
