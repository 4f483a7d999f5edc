//! The name, kind and meaning of a metric.

/// A metric: all values with one name.
#[derive(Debug, PartialEq, Eq)]
pub struct MetricFamily {
    /// The name as Prometheus shows it, with its unit; that of a counter ends in `_total`.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: MetricKind,
    /// Meaning of the number, and when to worry.
    pub help: &'static str,
}

/// A kind of metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows while the process runs.
    Counter,
    /// A number that may fall.
    Gauge,
    /// Durations, counted by size.
    Histogram,
}

impl MetricFamily {
    /// A counter.
    pub const fn counter(name: &'static str, help: &'static str) -> MetricFamily {
        MetricFamily {
            name,
            kind: MetricKind::Counter,
            help,
        }
    }

    /// A gauge.
    pub const fn gauge(name: &'static str, help: &'static str) -> MetricFamily {
        MetricFamily {
            name,
            kind: MetricKind::Gauge,
            help,
        }
    }

    /// A histogram of durations.
    pub const fn histogram(name: &'static str, help: &'static str) -> MetricFamily {
        MetricFamily {
            name,
            kind: MetricKind::Histogram,
            help,
        }
    }
}

/// Declares metrics, each as a static, and the list of all.
#[macro_export]
macro_rules! metric_families {
    ($(#[$meta:meta])* $all:ident: $($family:ident = $kind:ident($name:literal, $help:literal $(,)?);)*) => {
        $(static $family: $crate::MetricFamily = $crate::MetricFamily::$kind($name, $help);)*

        $(#[$meta])*
        pub static $all: &[&$crate::MetricFamily] = &[$(&$family),*];
    };
}
