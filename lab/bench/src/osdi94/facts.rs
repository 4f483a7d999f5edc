//! What the paper states in text and in its tables: facts to print beside ours. They stand in `osdi94.toml`.

use serde::Deserialize;

use crate::error::{BenchError, ErrorContext};

const OSDI94: &str = include_str!("osdi94.toml");

/// The stated figures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OsdiFacts {
    /// The paper's machines.
    pub hardware: String,
    /// Table 2.
    pub cost: Vec<StatedCost>,
    /// Table 3.
    pub traversal: Vec<StatedTraversal>,
    /// What its text says of figures.
    pub said: Vec<OsdiRemark>,
}

/// A row of table 2, for a page of 8 KiB.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatedCost {
    /// Which of ours it is beside.
    pub id: String,
    /// Microseconds.
    pub us: f64,
}

/// A row of table 3.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatedTraversal {
    /// The traversal.
    pub name: String,
    /// Updates; bytes updated; bytes of the message; pages of 8 KiB.
    pub figures: [u64; 4],
}

/// A sentence about a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OsdiRemark {
    /// The figure.
    pub figure: u8,
    /// What is said.
    pub text: String,
}

impl OsdiFacts {
    /// The facts of the paper.
    pub fn osdi94() -> Result<OsdiFacts, BenchError> {
        toml::from_str(OSDI94).context("read the paper's figures")
    }

    /// The paper's row of table 3.
    pub fn traversal(&self, name: &str) -> Option<[u64; 4]> {
        let stated = self.traversal.iter().find(|stated| stated.name == name)?;
        Some(stated.figures)
    }

    /// What the paper has for one of our costs.
    pub fn cost(&self, id: &str) -> Option<f64> {
        let stated = self.cost.iter().find(|stated| stated.id == id)?;
        Some(stated.us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_can_be_read_and_every_figure_is_spoken_of() {
        let facts = OsdiFacts::osdi94().unwrap();
        assert_eq!(facts.cost("copy-cold"), Some(171.9));
        assert_eq!(facts.traversal("t2b"), Some([43_740, 80_000, 120_000, 618]));
        for figure in super::super::FIGURES {
            assert!(facts.said.iter().any(|said| said.figure == figure), "{figure}");
        }
    }
}
