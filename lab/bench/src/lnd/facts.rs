//! Statements of the paper's text and table, to print beside the measured ones. They are in `lnd.toml`.

use serde::Deserialize;

use crate::error::{BenchError, ErrorContext};

const LND: &str = include_str!("lnd.toml");

/// Statements of the paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LndFacts {
    /// The paper's machines.
    pub hardware: String,
    /// The stage threshold that it chose, in KB.
    pub stage_threshold_kb: u64,
    /// Sentences of its text about figures.
    pub said: Vec<LndRemark>,
    /// Table 2.
    pub table: Vec<LndTableRow>,
}

/// A sentence about a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LndRemark {
    /// The figure's number.
    pub figure: u8,
    /// The sentence.
    pub text: String,
}

/// A device's row of table 2, in operations per second.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LndTableRow {
    /// Name of the device.
    pub name: String,
    /// Columns: insert, create, drop, create and drop.
    pub per_second: [f64; 4],
}

impl LndFacts {
    /// Reads the facts of LND.
    ///
    /// # Errors
    ///
    /// Fails if the built-in file cannot be parsed.
    pub fn lnd() -> Result<LndFacts, BenchError> {
        toml::from_str(LND).context("read the paper's figures")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_can_be_read_and_every_figure_has_remarks() {
        let facts = LndFacts::lnd().unwrap();
        assert_eq!(facts.table.len(), 3);
        for figure in super::super::FIGURES {
            assert!(facts.said.iter().any(|said| said.figure == figure), "{figure}");
        }
    }
}
