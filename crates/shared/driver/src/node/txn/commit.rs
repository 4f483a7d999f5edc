//! Committing a transaction.
//!
//! ```text
//! stamp --> append --> machine knows it --> members have it --> machine sends it --> locks free --> success
//! ```
//!
//! Up to the append there is no message or system call. The whole commit allocates nothing.

use netram_proto::port::{AppendError, CommitTicket, CommitVotes, Durability, RecordLog, WaitError};
use netram_proto::time::Time;
use netram_rvm::{RvmCommitError as Uncommitted, Transaction};
use netram_shared_machine::RecordNumber;
use netram_shared_machine::node::NodePhase;

use super::{Txn, TxnScratch};
use crate::node::core::NodeCore;
use crate::node::error::{NodeGone, TxnCommit, TxnCommitError};
use crate::node::node_log::{AppendedRecord, NodeLog};

impl Txn<'_> {
    /// Commits: waits until the members or the server's disk hold the declared bytes as they are now, and
    /// then frees the locks.
    ///
    /// [`Durability::Lazy`] counts as [`Durability::Remote`]: no other node may see a record that is not
    /// safe. A transaction that wrote nothing sends no message and does not wait.
    ///
    /// # Errors
    ///
    /// [`TxnCommitError`]: with `Unknown` the transaction may be committed or not; with every other variant
    /// it is aborted.
    pub fn commit(mut self, durability: Durability) -> Result<TxnCommit, TxnCommitError> {
        self.gather()?;
        if !self.scratch.locked_spans.any_written() {
            return self.commit_reading();
        }
        self.stamp()?;
        let logged = self.log();
        let told = self.shared.with(|core, now| {
            tell_appended(self.shared.rvm.log(), core, now);
            core.end_commit();
            let ticket = logged.as_ref().ok().copied().flatten()?;
            Some((ticket, core.ends.number(ticket.end)?))
        });
        if let Err(error) = logged {
            return Err(self.refused(error));
        }
        match told {
            Some((ticket, number)) => self.wait(ticket, number, durability),
            // Only empty ranges were declared.
            None => self.commit_reading(),
        }
    }

    /// Makes the record's stamp. From here on the machine does not leave before it knows the record.
    fn stamp(&mut self) -> Result<(), TxnCommitError> {
        let mut core = self.shared.core();
        core.alive()?;
        if core.machine.state() != NodePhase::Whole {
            return Err(TxnCommitError::Lost);
        }
        for lock in self.scratch.locked_spans.written() {
            core.machine
                .on_written(self.id, lock)
                .ok_or(TxnCommitError::Lost)?;
        }
        core.begin_commit();
        core.machine.stamp_into(self.id, &mut self.scratch.stamp);
        Ok(())
    }

    /// Appends the record. Returns `None` if there was nothing to append.
    fn log(&mut self) -> Result<Option<CommitTicket>, Uncommitted> {
        let TxnScratch { stamp, preamble, .. } = &mut self.scratch;
        preamble.clear();
        stamp.encode(preamble);
        let inner = self.inner.as_mut().ok_or(Uncommitted::Ended)?;
        let given = inner.set_preamble(preamble);
        given.expect("a stamp fits a preamble (rvm's limit.rs), and the transaction is open");
        Ok(self.commit_inner()?.ticket)
    }

    fn wait(
        mut self,
        ticket: CommitTicket,
        number: RecordNumber,
        durability: Durability,
    ) -> Result<TxnCommit, TxnCommitError> {
        let durability = match durability {
            Durability::Lazy => Durability::Remote,
            durability => durability,
        };
        let node = self.shared.id;
        self.inner = None;
        match self.shared.rvm.log().wait(ticket, durability) {
            Ok(votes) => {
                let scratch = std::mem::take(&mut self.scratch);
                self.shared.with(|core, now| {
                    core.machine.on_acked(now, number);
                    core.ends.on_acked(number);
                    core.machine.end(now, self.id, Some(number));
                    core.give_scratch(scratch);
                });
                self.ended = true;
                let record = Some((node, number));
                Ok(TxnCommit { record, votes })
            }
            Err(cause) => {
                self.shared.fail(NodeGone::Journal(cause));
                Err(TxnCommitError::Unknown { node, number, cause })
            }
        }
    }

    fn commit_reading(mut self) -> Result<TxnCommit, TxnCommitError> {
        if self.inner.as_ref().is_some_and(Transaction::is_open) {
            self.commit_inner()?;
        }
        self.inner = None;
        let scratch = std::mem::take(&mut self.scratch);
        let read = !scratch.locked_spans.is_empty();
        let leased = self.shared.with(|core, now| {
            core.alive()?;
            let leased = core.machine.tokens().leased(now);
            core.machine.end(now, self.id, None);
            core.give_scratch(scratch);
            Ok::<bool, NodeGone>(leased)
        })?;
        self.ended = true;
        let votes = CommitVotes::default();
        let record = None;
        // Without a lease other nodes may have overwritten data that this transaction read under its tokens.
        match leased || !read {
            true => Ok(TxnCommit { record, votes }),
            false => Err(TxnCommitError::Lost),
        }
    }

    /// Turns a refusal of the log into an error. If the journal takes no more records, the node ends.
    fn refused(self, error: Uncommitted) -> TxnCommitError {
        let gone = match error {
            Uncommitted::Refused(AppendError::Fenced { held, seen }) => {
                Some(WaitError::Fenced { held, seen })
            }
            Uncommitted::Refused(AppendError::DiskFailed(error)) => Some(WaitError::DiskFailed(error)),
            Uncommitted::Refused(AppendError::Closed) => Some(WaitError::Closed),
            _ => None,
        };
        if let Some(cause) = gone {
            self.shared.fail(NodeGone::Journal(cause));
        }
        TxnCommitError::Refused(error)
    }
}

/// Reports all appended records to the machine, in the journal's order.
fn tell_appended(tails: &NodeLog, core: &mut NodeCore, now: Time) {
    while let Some(AppendedRecord { end, payload }) = tails.next_appended() {
        let number = core.machine.on_appended(now, end, payload);
        core.ends.on_appended(number, end);
    }
}
