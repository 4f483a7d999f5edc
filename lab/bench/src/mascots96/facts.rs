//! Statements of the paper about its figures, to print beside the results. They are in `mascots96.toml`.

use serde::Deserialize;

use crate::error::{BenchError, ErrorContext};

const MASCOTS96: &str = include_str!("mascots96.toml");

/// Statements of the paper.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MascotsFacts {
    /// The paper's machine.
    pub hardware: String,
    /// Sentences of its text about figures.
    pub said: Vec<MascotsRemark>,
    value: Vec<MascotsValue>,
}

/// A value of a figure that the text states.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MascotsValue {
    figure: u8,
    program: String,
    policy: String,
    cycles: f64,
}

/// Sentences about a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MascotsRemark {
    /// The figure's number.
    pub figure: u8,
    /// The sentences.
    pub text: String,
}

impl MascotsFacts {
    /// Reads the facts of the paper.
    ///
    /// # Errors
    ///
    /// Fails if the built-in file cannot be parsed.
    pub fn mascots96() -> Result<MascotsFacts, BenchError> {
        toml::from_str(MASCOTS96).context("read what the paper says")
    }

    /// The sentences about a figure.
    pub fn of(&self, figure: u8) -> &str {
        let said = self.said.iter().find(|said| said.figure == figure);
        said.map_or("", |said| said.text.as_str())
    }

    /// The stated values of a figure.
    pub fn values(&self, figure: u8) -> impl Iterator<Item = &MascotsValue> {
        self.value.iter().filter(move |value| value.figure == figure)
    }

    /// Cycles that the text states for a program under a policy.
    pub fn cycles(&self, figure: u8, program: &str, policy: &str) -> Option<f64> {
        let mut values = self.values(figure);
        let stated = values.find(|value| value.program == program && value.policy == policy)?;
        Some(stated.cycles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_remarks() {
        let facts = MascotsFacts::mascots96().unwrap();
        for figure in super::super::FIGURES {
            assert!(!facts.of(figure).is_empty(), "{figure}");
        }
    }
}
