//! Asking: lenders, journals of this machine, and pages of metrics.

pub mod collector;
pub mod exposition;
pub mod page;
mod schedule;

pub use collector::{CollectorSettings, ViewCollector};
pub use page::{PageTarget, PageTargetError};
