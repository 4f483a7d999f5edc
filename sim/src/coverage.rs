//! How often each interesting thing happened, so that a run that tested nothing is seen to have tested
//! nothing.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Counters by name.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    /// Something happened once more.
    pub fn hit(&mut self, name: &'static str) {
        self.add(name, 1);
    }

    /// Something happened `count` times more.
    pub fn add(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    /// How often it happened.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Takes another run's counters in.
    pub fn merge(&mut self, other: &Coverage) {
        for (name, count) in &other.0 {
            self.add(name, *count);
        }
    }

    /// A table of everything counted.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (name, count) in &self.0 {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {count:>12}  {name}");
        }
        text
    }
}
