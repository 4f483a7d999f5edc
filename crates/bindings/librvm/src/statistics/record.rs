//! The layout of `rvm_statistics_t`, and its text for users.

use std::fmt;
use std::mem::{offset_of, size_of};

use crate::record::{CRecord, Length, OffsetRecord, RecordHead, Timeval, head_of};

/// `rvm_statistics_t`; the header describes its fields.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StatisticsRecord {
    pub(crate) head: RecordHead,
    pub(crate) n_abort: Length,
    pub(crate) n_flush_commit: Length,
    pub(crate) n_no_flush_commit: Length,
    pub(crate) n_uncommit: Length,
    pub(crate) n_no_flush: Length,
    pub(crate) n_truncation_wait: Length,
    pub(crate) no_flush_length: OffsetRecord,
    pub(crate) n_split: Length,
    pub(crate) n_flush: Length,
    pub(crate) n_rvm_flush: Length,
    pub(crate) n_special: Length,
    pub(crate) n_wrap: Length,
    pub(crate) log_dev_cur: Length,
    pub(crate) log_written: OffsetRecord,
    pub(crate) range_overlap: OffsetRecord,
    pub(crate) trans_overlap: OffsetRecord,
    pub(crate) n_range_elim: Length,
    pub(crate) n_trans_elim: Length,
    pub(crate) n_trans_coalesced: Length,
    pub(crate) flush_time: Timeval,
    pub(crate) last_flush_time: i64,
    pub(crate) last_truncation_time: i64,
    pub(crate) last_tree_build_time: i64,
    pub(crate) last_tree_apply_time: i64,
    pub(crate) flush_times: [Length; 10],
    pub(crate) range_lengths: [Length; 13],
    pub(crate) range_elims: [Length; 6],
    pub(crate) trans_elims: [Length; 6],
    pub(crate) range_overlaps: [Length; 13],
    pub(crate) trans_overlaps: [Length; 13],
    pub(crate) tot_abort: Length,
    pub(crate) tot_flush_commit: Length,
    pub(crate) tot_no_flush_commit: Length,
    pub(crate) tot_split: Length,
    pub(crate) tot_flush: Length,
    pub(crate) tot_rvm_flush: Length,
    pub(crate) tot_special: Length,
    pub(crate) tot_wrap: Length,
    pub(crate) log_dev_max: Length,
    pub(crate) tot_log_written: OffsetRecord,
    pub(crate) tot_range_overlap: OffsetRecord,
    pub(crate) tot_trans_overlap: OffsetRecord,
    pub(crate) tot_range_elim: Length,
    pub(crate) tot_trans_elim: Length,
    pub(crate) tot_trans_coalesced: Length,
    pub(crate) tot_rvm_truncate: Length,
    pub(crate) tot_async_truncation: Length,
    pub(crate) tot_sync_truncation: Length,
    pub(crate) tot_truncation_wait: Length,
    pub(crate) tot_recovery: Length,
    pub(crate) tot_flush_time: Timeval,
    pub(crate) tot_truncation_time: Timeval,
    pub(crate) tot_tree_build_times: [Length; 5],
    pub(crate) tot_tree_apply_times: [Length; 5],
    pub(crate) tot_truncation_times: [Length; 5],
    pub(crate) tot_flush_times: [Length; 10],
    pub(crate) tot_range_lengths: [Length; 13],
    pub(crate) tot_range_elims: [Length; 6],
    pub(crate) tot_trans_elims: [Length; 6],
    pub(crate) tot_range_overlaps: [Length; 13],
    pub(crate) tot_trans_overlaps: [Length; 13],
    pub(crate) tot_trans_coalesces: [Length; 6],
}

const _: () = {
    assert!(size_of::<StatisticsRecord>() == 1600);
    assert!(offset_of!(StatisticsRecord, no_flush_length) == 56);
    assert!(offset_of!(StatisticsRecord, log_dev_cur) == 112);
    assert!(offset_of!(StatisticsRecord, trans_overlap) == 152);
    assert!(offset_of!(StatisticsRecord, flush_time) == 192);
    assert!(offset_of!(StatisticsRecord, flush_times) == 240);
    assert!(offset_of!(StatisticsRecord, range_overlaps) == 520);
    assert!(offset_of!(StatisticsRecord, tot_abort) == 728);
    assert!(offset_of!(StatisticsRecord, log_dev_max) == 792);
    assert!(offset_of!(StatisticsRecord, tot_trans_overlap) == 832);
    assert!(offset_of!(StatisticsRecord, tot_recovery) == 904);
    assert!(offset_of!(StatisticsRecord, tot_truncation_time) == 928);
    assert!(offset_of!(StatisticsRecord, tot_flush_times) == 1064);
    assert!(offset_of!(StatisticsRecord, tot_trans_overlaps) == 1448);
    assert!(offset_of!(StatisticsRecord, tot_trans_coalesces) == 1552);
};

impl CRecord for StatisticsRecord {
    const ID: u32 = 43;

    fn fresh(from_heap: bool) -> StatisticsRecord {
        StatisticsRecord {
            head: head_of::<StatisticsRecord>(from_heap),
            ..StatisticsRecord::default()
        }
    }

    fn head(&mut self) -> &mut RecordHead {
        &mut self.head
    }
}

impl fmt::Display for StatisticsRecord {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_pairs(out)?;
        self.fmt_totals(out)
    }
}

impl StatisticsRecord {
    fn fmt_pairs(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: [(&str, u64, u64); 13] = [
            ("transactions aborted", self.n_abort, self.tot_abort),
            ("commits with flush", self.n_flush_commit, self.tot_flush_commit),
            (
                "commits with no_flush",
                self.n_no_flush_commit,
                self.tot_no_flush_commit,
            ),
            (
                "no_flush transactions logged with others",
                self.n_trans_coalesced,
                self.tot_trans_coalesced,
            ),
            ("flushes", self.n_flush, self.tot_flush),
            ("calls of rvm_flush", self.n_rvm_flush, self.tot_rvm_flush),
            ("bytes logged", self.log_written.low, self.tot_log_written.low),
            (
                "bytes saved within transactions",
                self.range_overlap.low,
                self.tot_range_overlap.low,
            ),
            (
                "bytes saved between transactions",
                self.trans_overlap.low,
                self.tot_trans_overlap.low,
            ),
            (
                "ranges merged within transactions",
                self.n_range_elim,
                self.tot_range_elim,
            ),
            (
                "ranges merged between transactions",
                self.n_trans_elim,
                self.tot_trans_elim,
            ),
            (
                "commits that waited for truncation",
                self.n_truncation_wait,
                self.tot_truncation_wait,
            ),
            (
                "log in use, per cent: now, at most",
                self.log_dev_cur,
                self.log_dev_max,
            ),
        ];
        writeln!(out, "{:<42}{:>16}{:>16}", "", "since truncation", "since opening")?;
        for (what, since, total) in lines {
            writeln!(out, "{what:<42}{since:>16}{total:>16}")?;
        }
        Ok(())
    }

    fn fmt_totals(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, count) in [
            ("transactions open", self.n_uncommit),
            ("no_flush transactions not yet logged", self.n_no_flush),
            ("calls of rvm_truncate", self.tot_rvm_truncate),
            ("truncations in the background", self.tot_async_truncation),
            ("truncations for a full log", self.tot_sync_truncation),
            ("recoveries", self.tot_recovery),
        ] {
            writeln!(out, "{what:<42}{count:>32}")?;
        }
        for (what, time) in [
            ("time in flushes", self.tot_flush_time),
            ("time in truncation", self.tot_truncation_time),
        ] {
            let seconds = format!("{}.{:06} s", time.seconds, time.microseconds);
            writeln!(out, "{what:<42}{seconds:>32}")?;
        }
        Ok(())
    }
}
