//! What the paper states in text and in its table: facts to print beside ours. They stand in `lnd.toml`.

use serde::Deserialize;

use crate::error::{BenchError, ErrorContext};

const LND: &str = include_str!("lnd.toml");

/// The stated figures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LndFacts {
    /// The paper's machines.
    pub hardware: String,
    /// The threshold it chose, in KB.
    pub stage_threshold_kb: u64,
    /// What its text says of figures.
    pub said: Vec<LndRemark>,
    /// Table 2.
    pub table: Vec<LndTableRow>,
}

/// A sentence about a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LndRemark {
    /// The figure.
    pub figure: u8,
    /// What is said.
    pub text: String,
}

/// A device's row of table 2, operations a second.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LndTableRow {
    /// The device.
    pub name: String,
    /// Insert, create, drop, create and drop.
    pub per_second: [f64; 4],
}

impl LndFacts {
    /// The facts of LND.
    pub fn lnd() -> Result<LndFacts, BenchError> {
        toml::from_str(LND).context("read the paper's figures")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_can_be_read_and_every_figure_is_spoken_of() {
        let facts = LndFacts::lnd().unwrap();
        assert_eq!(facts.table.len(), 3);
        for figure in super::super::FIGURES {
            assert!(facts.said.iter().any(|said| said.figure == figure), "{figure}");
        }
    }
}
