//! What whoever watches an experiment is told.

/// A measurement tells what is next, what is skipped, and what went wrong.
#[derive(Debug)]
pub enum ProgressEvent<'a> {
    /// This is measured next.
    Next(&'a str),
    /// This cannot be measured here, and why.
    Skipped(&'a str),
    /// This was begun and did not come to its end, and what was seen of that.
    Failed(&'a str),
}
