//! Metrics of a database. Those of its journals are the journals' own.

use std::path::Path;
use std::sync::Arc;

use netram_sqlite_machine::{FileRole, SyncMedium};
use netram_telemetry::{
    LatencyHistogram, MetricCounter, MetricGauge, MetricSamples, MetricSource, MetricsRegistration,
    MetricsRegistry,
};

const ROLES: [&str; 3] = ["main", "wal", "journal"];
const MEDIA: [&str; 2] = ["netram", "disk"];

/// Times of a database that this process has open. Recording them neither locks nor allocates.
#[derive(Debug)]
pub(crate) struct DatabaseMetrics {
    database: String,
    /// Times of syncs, by the file's role, and by where the data is safe.
    syncs: [[LatencyHistogram; 2]; 3],
    pub(crate) syncs_failed: MetricCounter,
    pub(crate) checkpoint: LatencyHistogram,
    /// 1 while checkpoints fail.
    pub(crate) checkpoints_fail: MetricGauge,
    /// 1 while the process has a journal.
    pub(crate) has_journal: MetricGauge,
}

netram_telemetry::metric_families! {
    /// The metrics of every open database.
    SQLITE_FAMILIES:
    SYNC = histogram(
        "netram_sqlite_sync_duration_seconds",
        "Time of SQLite's syncs, by file (main, wal, or its rollback journal) and by where the data is safe: netram's journal, \
         or the disk. Worry when most are by the disk: the process has no journal, or no lenders.",
    );
    SYNCS_FAILED = counter(
        "netram_sqlite_syncs_failed_total",
        "Syncs that failed: SQLite reports a disk I/O error to the program. Act when it grows: see the log.",
    );
    CHECKPOINT = histogram(
        "netram_sqlite_checkpoint_duration_seconds",
        "Time to bring the journal's records to the database's files. It runs in the background.",
    );
    CHECKPOINTS_FAIL = gauge(
        "netram_sqlite_checkpoints_failing",
        "1 while that fails. The journals keep everything, and fill. Act: see the log for the disk's error.",
    );
    HAS_JOURNAL = gauge(
        "netram_sqlite_journal_open",
        "1 once this process has one of the database's journals, which it takes at its first commit. Worry when it stays 0 \
         although the process commits: commits wait for the disk.",
    );
}

impl DatabaseMetrics {
    /// The metrics of the database at `path`, for as long as the result lives.
    pub(crate) fn register(path: &Path) -> MetricsRegistration<DatabaseMetrics> {
        let metrics = Arc::new(DatabaseMetrics {
            database: path.display().to_string(),
            syncs: Default::default(),
            syncs_failed: MetricCounter::new(),
            checkpoint: LatencyHistogram::new(),
            checkpoints_fail: MetricGauge::default(),
            has_journal: MetricGauge::default(),
        });
        MetricsRegistry::of_process().add(&metrics)
    }

    /// Times of syncs of a file whose data is then on `medium`.
    #[inline]
    pub(crate) fn syncs(&self, role: FileRole, medium: SyncMedium) -> &LatencyHistogram {
        let role = match role {
            FileRole::Main => 0,
            FileRole::Wal => 1,
            FileRole::Journal => 2,
        };
        let medium = match medium {
            SyncMedium::Journal => 0,
            SyncMedium::Disk => 1,
        };
        &self.syncs[role][medium]
    }
}

impl MetricSource for DatabaseMetrics {
    fn collect(&self, samples: &mut MetricSamples) {
        let of_database = [("database", self.database.as_str())];
        for (file, media) in ROLES.iter().zip(&self.syncs) {
            for (by, times) in MEDIA.iter().zip(media) {
                if times.snapshot().count() > 0 {
                    let labels = [("database", self.database.as_str()), ("file", file), ("by", by)];
                    samples.histogram(&SYNC, &labels, times);
                }
            }
        }
        samples.counted(&SYNCS_FAILED, &of_database, &self.syncs_failed);
        samples.histogram(&CHECKPOINT, &of_database, &self.checkpoint);
        samples.level(&CHECKPOINTS_FAIL, &of_database, &self.checkpoints_fail);
        samples.level(&HAS_JOURNAL, &of_database, &self.has_journal);
    }
}
