//! Progress messages of an experiment.

/// Progress of a measurement: its next step, a skipped step, or a failure.
#[derive(Debug)]
pub enum ProgressEvent<'a> {
    /// The next measurement.
    Next(&'a str),
    /// A measurement that is impossible here, with the reason.
    Skipped(&'a str),
    /// A measurement that failed, with the error.
    Failed(&'a str),
}
