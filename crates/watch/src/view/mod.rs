//! The state of a cluster as a value: what is asked of it, and what is shown.

pub mod advice;
pub mod alerts;
mod latency;
mod rows;
pub mod summary;
mod watcher;

pub use latency::{HourLatency, LatencyHistory};
pub use rows::{
    ClusterEvent, ClusterView, JournalRow, LenderRow, MemberRow, Moment, ProcessRow, RiskRow, ServiceRow,
    state_of,
};
pub use watcher::{ClusterWatcher, PageSighting, Sighting};
