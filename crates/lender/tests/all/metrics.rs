//! A lender's metrics.

use netram_telemetry::{MetricsFormat, MetricsRegistry};

use crate::common::*;
