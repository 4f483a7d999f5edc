//! Statements of the paper's text and tables, to print beside the measured ones. They are in `osdi94.toml`.

use serde::Deserialize;

use crate::error::{BenchError, ErrorContext};

const OSDI94: &str = include_str!("osdi94.toml");

/// Statements of the paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OsdiFacts {
    /// The paper's machines.
    pub hardware: String,
    /// Table 2.
    pub cost: Vec<StatedCost>,
    /// Table 3.
    pub traversal: Vec<StatedTraversal>,
    /// Sentences of its text about figures.
    pub said: Vec<OsdiRemark>,
}

/// A row of table 2, for a page of 8 KiB.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatedCost {
    /// Id of the corresponding cost here.
    pub id: String,
    /// Microseconds of the operation.
    pub us: f64,
}

/// A row of table 3.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatedTraversal {
    /// Name of the traversal.
    pub name: String,
    /// Numbers of updates, of updated bytes, of message bytes, and of pages of 8 KiB.
    pub figures: [u64; 4],
}

/// A sentence about a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OsdiRemark {
    /// The figure's number.
    pub figure: u8,
    /// The sentence.
    pub text: String,
}

impl OsdiFacts {
    /// Reads the facts of OSDI 1994.
    ///
    /// # Errors
    ///
    /// Fails if the built-in file cannot be parsed.
    pub fn osdi94() -> Result<OsdiFacts, BenchError> {
        toml::from_str(OSDI94).context("read the paper's figures")
    }

    /// The paper's row of table 3.
    pub fn traversal(&self, name: &str) -> Option<[u64; 4]> {
        let stated = self.traversal.iter().find(|stated| stated.name == name)?;
        Some(stated.figures)
    }

    /// The paper's value of one of the costs here, in microseconds.
    pub fn cost(&self, id: &str) -> Option<f64> {
        let stated = self.cost.iter().find(|stated| stated.id == id)?;
        Some(stated.us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_can_be_read_and_every_figure_has_remarks() {
        let facts = OsdiFacts::osdi94().unwrap();
        assert_eq!(facts.cost("copy-cold"), Some(171.9));
        assert_eq!(facts.traversal("t2b"), Some([43_740, 80_000, 120_000, 618]));
        for figure in super::super::FIGURES {
            assert!(facts.said.iter().any(|said| said.figure == figure), "{figure}");
        }
    }
}
