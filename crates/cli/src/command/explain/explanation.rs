//! The parts of an explanation.

/// An explanation of a journal's state, in sentences.
#[derive(Debug, Default)]
pub(super) struct Explanation {
    /// The state.
    pub(super) state: Vec<String>,
    /// Machines that lose their memory, and the data that would be lost with it.
    pub(super) risks: Vec<(String, String)>,
    /// The last events, the newest last.
    pub(super) lately: Vec<String>,
    /// Advice for a person, with commands; empty: nothing is to be done.
    pub(super) todo: Vec<String>,
}
