//! The end of a run whose rule is broken.

/// A rule that a run broke.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleViolation {
    /// The rule's number; zero stands for liveness.
    pub rule: u8,
    /// Observation that contradicts the rule, for the report.
    pub what: String,
}

/// Ends the run because `rule` is broken.
pub(crate) fn fail(rule: u8, what: String) -> ! {
    // This unwinds without the panic hook; the runner prints the violation.
    std::panic::resume_unwind(Box::new(RuleViolation { rule, what }))
}
