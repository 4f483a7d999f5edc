//! What the paper says of its figures, to print beside ours. It stands in `mascots96.toml`.

use serde::Deserialize;

use crate::error::{BenchError, ErrorContext};

const MASCOTS96: &str = include_str!("mascots96.toml");

/// What is said.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MascotsFacts {
    /// The paper's machine.
    pub hardware: String,
    /// What its text says of figures.
    pub said: Vec<MascotsRemark>,
}

/// Sentences about a figure.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MascotsRemark {
    /// The figure.
    pub figure: u8,
    /// What is said.
    pub text: String,
}

impl MascotsFacts {
    /// The facts of the paper.
    pub fn mascots96() -> Result<MascotsFacts, BenchError> {
        toml::from_str(MASCOTS96).context("read what the paper says")
    }

    /// What is said of a figure.
    pub fn of(&self, figure: u8) -> &str {
        let said = self.said.iter().find(|said| said.figure == figure);
        said.map_or("", |said| said.text.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_spoken_of() {
        let facts = MascotsFacts::mascots96().unwrap();
        for figure in super::super::FIGURES {
            assert!(!facts.of(figure).is_empty(), "{figure}");
        }
    }
}
