//! Bounds that figures must keep.

use serde::Serialize;

/// A bound on a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum RatioBound {
    /// The ratio is at most this.
    #[serde(rename = "<=")]
    AtMost(f64),
    /// The ratio is at least this.
    #[serde(rename = ">=")]
    AtLeast(f64),
}

impl RatioBound {
    /// Whether `ratio` is within the bound.
    pub fn met(self, ratio: f64) -> bool {
        match self {
            RatioBound::AtMost(most) => ratio <= most,
            RatioBound::AtLeast(least) => ratio >= least,
        }
    }
}

impl std::fmt::Display for RatioBound {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RatioBound::AtMost(most) => write!(out, "<= {most}"),
            RatioBound::AtLeast(least) => write!(out, ">= {least}"),
        }
    }
}
