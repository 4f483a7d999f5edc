//! Counts of interesting events. A count of zero shows a case that a run never tested.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Counters by name.
#[derive(Clone, Debug, Default)]
pub struct Coverage(BTreeMap<&'static str, u64>);

impl Coverage {
    /// Counts one more event.
    pub fn hit(&mut self, name: &'static str) {
        self.add(name, 1);
    }

    /// Counts `count` more events.
    pub fn add(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    /// Number of events counted under `name`.
    pub fn get(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Adds another run's counters.
    pub fn merge(&mut self, other: &Coverage) {
        for (name, count) in &other.0 {
            self.add(name, *count);
        }
    }

    /// All counters as a table.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for (name, count) in &self.0 {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {count:>12}  {name}");
        }
        text
    }
}
