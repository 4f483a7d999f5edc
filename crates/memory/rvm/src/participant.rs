//! Participants: objects with volatile state about transactions that must learn how each one ended.
//!
//! A heap is a participant: a block freed in a transaction can be reused only when that transaction is in the
//! log, and a block allocated in an aborted one becomes free again.

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// The record is in the log before the record of every later commit. Or it is spooled, and will be logged
    /// before every such record or together with it. Commits with an unknown outcome count as committed:
    /// later records can survive only together with them.
    Committed,
    /// The transaction was not logged and never will be. In [`crate::RestoreMode::Restore`] memory is as
    /// before.
    Aborted,
}

/// An object that is notified how transactions end.
pub trait Participant: Send + Sync {
    /// Called when the transaction has ended: after it was logged and before it waits to be safe, or after an
    /// abort restored memory. Called once for each [`crate::Transaction::enlist`], on the transaction's
    /// thread, with no region locked. It may begin transactions. The regions count the transaction as open
    /// until every participant was called.
    fn ended(&self, note: u64, outcome: TransactionOutcome);
}
