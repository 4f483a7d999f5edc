//! Statements of TR-190's text and tables, and results of the original RVM rebuilt today, to print beside the
//! measured ones. They are in `tr190.toml`.

use serde::{Deserialize, Serialize};

use crate::error::{BenchError, ErrorContext};

const TR190: &str = include_str!("tr190.toml");

/// Statements of the paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tr190Facts {
    /// The paper's machines.
    pub hardware: String,
    /// Number of transactions of one measurement.
    pub transactions: u64,
    /// Size of the data file in bytes.
    pub data_file_bytes: u64,
    /// Default size of the log in bytes.
    pub log_bytes: u64,
    series: Vec<StatedCurve>,
    range: Vec<StatedRange>,
    factor: Vec<StatedFactor>,
    said: Vec<Tr190Remark>,
    /// The original library on today's machines.
    pub original: OriginalResults,
}

/// Points of one curve that the paper states.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatedCurve {
    figure: u8,
    /// The paper's name of the system, with its qualification.
    pub name: String,
    x: Vec<u64>,
    tps: Vec<f64>,
}

/// A range of throughputs that the paper states for several figures together.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatedRange {
    figures: Vec<u8>,
    /// The paper's name of the system.
    pub name: String,
    /// Minimum and maximum.
    pub tps: [f64; 2],
}

/// How many times faster than before the paper says an operation is, at least.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StatedFactor {
    figure: u8,
    operation: String,
    times: f64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tr190Remark {
    figure: u8,
    text: String,
}

/// Results of the original RVM by block size.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OriginalResults {
    bytes: Vec<u64>,
    sequential_over_sync: Vec<f64>,
    random_over_sync: Vec<f64>,
    worst_sequential_ms: Vec<f64>,
    worst_random_ms: Vec<f64>,
    /// No-flush commits of 128 bytes per second: without optimisation, and with all.
    pub no_flush_sequential_per_second: [f64; 2],
    /// The same in random order.
    pub no_flush_random_per_second: [f64; 2],
}

impl Tr190Facts {
    /// Reads the facts of TR-190.
    ///
    /// # Errors
    ///
    /// Fails if the built-in file cannot be parsed.
    pub fn tr190() -> Result<Tr190Facts, BenchError> {
        toml::from_str(TR190).context("read the paper's figures")
    }

    /// The stated curves of a figure.
    pub fn series(&self, figure: u8) -> impl Iterator<Item = &StatedCurve> {
        self.series.iter().filter(move |series| series.figure == figure)
    }

    /// The stated ranges of a figure.
    pub fn ranges(&self, figure: u8) -> impl Iterator<Item = &StatedRange> {
        self.range
            .iter()
            .filter(move |range| range.figures.contains(&figure))
    }

    /// How many times faster an operation is at least, if the text says so.
    pub fn times(&self, figure: u8, operation: &str) -> Option<f64> {
        let mut stated = { self.factor.iter() }.filter(|stated| stated.figure == figure);
        Some(stated.find(|stated| stated.operation == operation)?.times)
    }

    /// The text's remarks on a whole figure.
    pub fn remarks(&self, figure: u8) -> impl Iterator<Item = &str> {
        let said = self.said.iter().filter(move |said| said.figure == figure);
        said.map(|said| said.text.as_str())
    }
}

impl StatedCurve {
    /// The stated points: x value and transactions per second.
    pub fn points(&self) -> impl Iterator<Item = (u64, f64)> {
        self.x.iter().copied().zip(self.tps.iter().copied())
    }
}

impl OriginalResults {
    /// Throughput of flushing commits of `bytes` over bare `fdatasync`.
    pub fn over_sync(&self, bytes: u64, random: bool) -> Option<f64> {
        self.find(
            bytes,
            if random {
                &self.random_over_sync
            } else {
                &self.sequential_over_sync
            },
        )
    }

    /// The longest commit of `bytes`, in milliseconds.
    pub fn worst_ms(&self, bytes: u64, random: bool) -> Option<f64> {
        self.find(
            bytes,
            if random {
                &self.worst_random_ms
            } else {
                &self.worst_sequential_ms
            },
        )
    }

    fn find(&self, bytes: u64, values: &[f64]) -> Option<f64> {
        let at = self.bytes.iter().position(|&known| known == bytes)?;
        values.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stated_curve_has_a_throughput_at_each_x_value() {
        let facts = Tr190Facts::tr190().unwrap();
        for series in &facts.series {
            assert_eq!(series.x.len(), series.tps.len(), "{}", series.name);
            assert!(series.tps.iter().all(|tps| *tps > 0.0));
        }
        let original = &facts.original;
        for values in [
            &original.sequential_over_sync,
            &original.random_over_sync,
            &original.worst_sequential_ms,
            &original.worst_random_ms,
        ] {
            assert_eq!(values.len(), original.bytes.len());
        }
    }

    #[test]
    fn the_tables_of_tpc_a_are_whole_and_figures_without_numbers_have_none() {
        let facts = Tr190Facts::tr190().unwrap();
        for figure in 9..=11 {
            let rows: Vec<_> = facts.series(figure).collect();
            assert_eq!(rows.len(), 3);
            assert!(rows.iter().all(|row| row.points().count() == 4));
        }
        assert_eq!(facts.series(2).count() + facts.series(3).count(), 0);
        assert_eq!((facts.ranges(7).count(), facts.ranges(1).count()), (3, 0));
        assert_eq!((facts.times(12, "t6"), facts.times(12, "t1")), (Some(3.0), None));
        assert!((1..=12).all(|figure| facts.remarks(figure).count() > 0));
        assert_eq!(facts.original.over_sync(128, false), Some(1.03));
        assert_eq!(facts.original.worst_ms(7, true), None);
    }
}
