//! What whoever watches an experiment is told.

/// What is next, or what is skipped.
#[derive(Debug)]
pub enum Step<'a> {
    /// This is measured next.
    Next(&'a str),
    /// This cannot be measured here, and why.
    Skipped(&'a str),
}
