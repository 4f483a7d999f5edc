//! Internal to netram: programs use the crate `netram`.
//!
//! The state of a cluster, for whoever watches it: `netram dashboard`, `netram top` and `netram explain`.
//!
//! ```text
//! ViewCollector: lenders, open journals, pages of metrics -> Sighting
//!     -> ClusterWatcher -> ClusterView -> ClusterSummary: a page, a terminal
//! ```
//!
//! Nothing is changed by watching, and whatever is asked is not trusted: answers are bounded, and their text
//! is only shown.
//!
//! | module | purpose |
//! |---|---|
//! | [`view`] | the state as a value: lenders, journals, risks, what needs a person |
//! | [`source`] | asking, within deadlines |
//! | [`site`] | the dashboard's pages |
//! | [`words`] | numbers and times for people |
//! | [`limit`] | all limits |
#![forbid(unsafe_code)]

pub mod limit;
pub mod site;
pub mod source;
pub mod view;
pub mod words;
