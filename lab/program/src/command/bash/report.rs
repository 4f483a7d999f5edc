//! Counts of a stress run, in numbers and in one sentence.

use serde::Serialize;

use netram_cli::output;

/// Counts of a stress run so far.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct StressReport {
    pub(super) acknowledged: u64,
    pub(super) lazy: u64,
    pub(super) aborted: u64,
    pub(super) killed: u64,
    pub(super) crashed: u64,
    pub(super) closed: u64,
    pub(super) recoveries_killed: u64,
    pub(super) openings: u64,
    pub(super) compared: u64,
    /// Number of times the log was replaced by a larger file.
    pub(super) grown: u64,
    pub(super) lenders_killed: u64,
    pub(super) lenders_emptied: u64,
}

impl StressReport {
    /// Number of transactions that returned.
    pub(super) fn transactions(&self) -> u64 {
        self.acknowledged + self.lazy
    }

    pub(super) fn sentence(&self) -> String {
        let lenders = match self.lenders_killed {
            0 => String::new(),
            killed => format!(
                "; {killed} lenders killed, {} with their memory",
                self.lenders_emptied
            ),
        };
        format!(
            "{}, {} aborted; {} killed, {} crashed, {} closed; {} recoveries, {} of them killed, {} compared; log grown {} times{lenders}",
            output::count(self.transactions(), "transaction"),
            output::thousands(self.aborted as i64),
            self.killed,
            self.crashed,
            self.closed,
            self.openings,
            self.recoveries_killed,
            self.compared,
            self.grown
        )
    }
}
