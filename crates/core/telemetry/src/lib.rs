//! Internal to netram: programs use the crate `netram`.
//!
//! Telemetry: what a process counts and times, and the page on which Prometheus reads it.
//!
//! Recording is a relaxed addition to an atomic: no lock, no allocation, no log. Everything else happens when
//! somebody reads: the process's [`MetricsRegistry`] asks each [`MetricSource`] for its [`MetricSamples`],
//! and `prometheus-client` encodes them.
//!
//! | module | purpose |
//! |---|---|
//! | [`counter`] | counters and gauges |
//! | [`histogram`] | latencies |
//! | [`calls`] | latencies by kind of call |
//! | [`family`] | the name, kind and meaning of a metric |
//! | [`samples`] | values of one reading, and their text |
//! | [`registry`] | the sources of a process |
//! | [`address`], [`server`] | a server of pages |
//! | [`pages`] | the page of metrics |
//! | [`request`] | requests and responses, as values |

pub mod address;
pub mod calls;
pub mod counter;
pub mod family;
pub mod histogram;
pub mod limit;
pub mod pages;
mod process;
pub mod registry;
pub mod request;
pub mod samples;
pub mod server;
mod socket;

pub use address::{MetricsAddress, MetricsAddressError};
pub use calls::{CallTimes, TimedCall};
pub use counter::{MetricCounter, MetricGauge, SingleWriterCounter};
pub use family::{MetricFamily, MetricKind};
pub use histogram::{LatencyHistogram, LatencySnapshot};
pub use pages::MetricsPages;
pub use process::PROCESS_FAMILIES;
pub use registry::{MetricSource, MetricsRegistration, MetricsRegistry};
pub use request::{PageRequest, PageResponse};
pub use samples::{MetricSamples, MetricsFormat};
pub use server::{MetricsServer, MetricsServerError, PageHandler};
