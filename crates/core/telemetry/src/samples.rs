//! The values of one reading, and their text.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use crate::counter::{MetricCounter, MetricGauge};
use crate::family::{MetricFamily, MetricKind};
use crate::histogram::{BUCKETS, LatencyHistogram, LatencySnapshot, bound_s};

/// Values that sources add while a registry is read. Allocates, unlike recording.
#[derive(Debug, Default)]
pub struct MetricSamples(BTreeMap<&'static str, FamilySamples>);

/// A format of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus's older text format, which `promtool` and the node exporter read.
    Prometheus,
}

#[derive(Debug)]
struct FamilySamples {
    family: &'static MetricFamily,
    /// A value a set of labels: Prometheus refuses a page on which one occurs twice.
    values: BTreeMap<Labels, Value>,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Labels(Vec<(&'static str, String)>);

#[derive(Debug)]
enum Value {
    Count(u64),
    Level(f64),
    Latency(Box<LatencySnapshot>),
}

impl MetricsFormat {
    /// The value of the header `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            MetricsFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            MetricsFormat::Prometheus => prometheus_text::CONTENT_TYPE,
        }
    }
}

impl MetricSamples {
    /// Adds the value of a counter. Of two values with the same labels the last one stays.
    pub fn counter(&mut self, family: &'static MetricFamily, labels: &[(&'static str, &str)], value: u64) {
        self.add(family, MetricKind::Counter, labels, Value::Count(value));
    }

    /// Adds the value of a gauge.
    pub fn gauge(&mut self, family: &'static MetricFamily, labels: &[(&'static str, &str)], value: f64) {
        self.add(family, MetricKind::Gauge, labels, Value::Level(value));
    }

    /// Adds a histogram.
    pub fn histogram(
        &mut self,
        family: &'static MetricFamily,
        labels: &[(&'static str, &str)],
        histogram: &LatencyHistogram,
    ) {
        let snapshot = Box::new(histogram.snapshot());
        self.add(family, MetricKind::Histogram, labels, Value::Latency(snapshot));
    }

    /// Adds what `counter` has counted.
    pub fn counted(
        &mut self,
        family: &'static MetricFamily,
        labels: &[(&'static str, &str)],
        counter: &MetricCounter,
    ) {
        self.counter(family, labels, counter.get());
    }

    /// Adds the level of `gauge`.
    pub fn level(
        &mut self,
        family: &'static MetricFamily,
        labels: &[(&'static str, &str)],
        gauge: &MetricGauge,
    ) {
        self.gauge(family, labels, gauge.get() as f64);
    }

    fn add(
        &mut self,
        family: &'static MetricFamily,
        kind: MetricKind,
        labels: &[(&'static str, &str)],
        value: Value,
    ) {
        assert_eq!(family.kind, kind, "{} is of another kind", family.name);
        let owned = |&(name, value): &(&'static str, &str)| (name, value.to_owned());
        let labels = Labels(labels.iter().map(owned).collect());
        let samples = match self.0.entry(family.name) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(FamilySamples {
                family,
                values: BTreeMap::new(),
            }),
        };
        assert_eq!(
            samples.family, family,
            "two metrics have one name, and different meanings"
        );
        samples.values.insert(labels, value);
    }

    /// The values as text.
    pub fn into_text(self, format: MetricsFormat) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        let written = match format {
            MetricsFormat::OpenMetrics => text::encode(&mut text, &registry),
            MetricsFormat::Prometheus => prometheus_text::encode(&mut text, &registry),
        };
        written.expect("writing to a string does not fail");
        text
    }
}

impl Collector for MetricSamples {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for samples in self.0.values() {
            samples.encode(&mut encoder)?;
        }
        Ok(())
    }
}

impl FamilySamples {
    fn encode(&self, encoder: &mut DescriptorEncoder) -> Result<(), fmt::Error> {
        let MetricFamily { name, kind, help } = *self.family;
        // The encoder adds both endings.
        let name = match kind {
            MetricKind::Counter => name.strip_suffix("_total").unwrap_or(name),
            _ => name,
        };
        let units = [("_seconds", Unit::Seconds), ("_bytes", Unit::Bytes)];
        let measured = units
            .iter()
            .find_map(|(ending, unit)| Some((name.strip_suffix(ending)?, unit)));
        let (name, unit) = measured.map_or((name, None), |(name, unit)| (name, Some(unit)));
        let kind = match kind {
            MetricKind::Counter => MetricType::Counter,
            MetricKind::Gauge => MetricType::Gauge,
            MetricKind::Histogram => MetricType::Histogram,
        };
        let mut family = encoder.encode_descriptor(name, help, unit, kind)?;
        for (labels, value) in &self.values {
            match labels.0.is_empty() {
                true => value.encode(&mut family)?,
                false => value.encode(&mut family.encode_family(labels)?)?,
            }
        }
        Ok(())
    }
}

impl Value {
    fn encode(&self, encoder: &mut MetricEncoder) -> Result<(), fmt::Error> {
        match self {
            Value::Count(count) => encoder.encode_counter::<NoLabelSet, _, f64>(count, None),
            Value::Level(level) => encoder.encode_gauge(level),
            Value::Latency(snapshot) => {
                let buckets: [(f64, u64); BUCKETS] =
                    std::array::from_fn(|index| (bound_s(index), snapshot.counts[index]));
                let sum = snapshot.sum_ns as f64 / 1e9;
                encoder.encode_histogram::<NoLabelSet>(sum, snapshot.count(), &buckets, None)
            }
        }
    }
}

impl EncodeLabelSet for Labels {
    fn encode(&self, encoder: &mut LabelSetEncoder) -> Result<(), fmt::Error> {
        let Labels(labels) = self;
        labels.as_slice().encode(encoder)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    static COUNT: MetricFamily = MetricFamily::counter("netram_records_total", "Records");
    static BYTES: MetricFamily = MetricFamily::gauge("netram_held_bytes", "Bytes");
    static WAIT: MetricFamily = MetricFamily::histogram("netram_wait_seconds", "Waits");

    fn samples() -> MetricSamples {
        let mut samples = MetricSamples::default();
        samples.counter(&COUNT, &[("journal", "a \"b\"\n")], 3);
        samples.gauge(&BYTES, &[], 7.0);
        let histogram = LatencyHistogram::new();
        histogram.record(Duration::from_micros(5));
        samples.histogram(&WAIT, &[("by", "members")], &histogram);
        samples
    }

    #[test]
    fn both_formats_have_each_value_with_its_name_and_labels() {
        let page = |format| samples().into_text(format);
        let shared = [
            "# TYPE netram_held_bytes gauge",
            "# HELP netram_wait_seconds Waits",
            r#"netram_records_total{journal="a \"b\"\n"} 3"#,
            r#"netram_wait_seconds_count{by="members"} 1"#,
            "netram_held_bytes 7.0",
        ];
        let open = [
            "# TYPE netram_records counter",
            "# UNIT netram_held_bytes bytes",
            r#"netram_wait_seconds_bucket{le="0.000006",by="members"} 1"#,
            r#"netram_wait_seconds_bucket{le="+Inf",by="members"} 1"#,
            "# EOF",
        ];
        let older = [
            "# TYPE netram_records_total counter",
            r#"netram_wait_seconds_bucket{by="members",le="6e-06"} 1"#,
        ];
        for (format, own) in [
            (MetricsFormat::OpenMetrics, &open[..]),
            (MetricsFormat::Prometheus, &older[..]),
        ] {
            let text = page(format);
            for line in shared.iter().chain(own) {
                assert!(text.lines().any(|found| found == *line), "{line}\n{text}");
            }
        }
    }

    #[test]
    fn a_family_has_one_heading_and_one_value_a_set_of_labels() {
        let mut samples = samples();
        for value in [1, 2] {
            samples.counter(&COUNT, &[("journal", "b")], value);
        }
        let text = samples.into_text(MetricsFormat::Prometheus);
        assert_eq!(text.matches("# HELP netram_records_total").count(), 1);
        let of_b: Vec<&str> = text.lines().filter(|line| line.contains("\"b\"}")).collect();
        assert_eq!(of_b, [r#"netram_records_total{journal="b"} 2"#]);
    }
}
