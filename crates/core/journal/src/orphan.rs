//! The journal that an earlier process of a shared region's node left in its directory. It is opened only to
//! offer the server the records that it lacks.
//!
//! Opening it recovers it like every opening: local log and members, with the same proof. The members keep
//! their windows, so that the server can still read them if this machine dies before the server has
//! everything. The order does not matter. A server that fences the node afterwards finds the windows
//! unchanged. If it fenced the node first, its fence has a higher epoch than ours and the opening is refused
//! ([`JournalOpenError::NodeFenced`]).

use std::path::Path;

use netram_proto::id::Lsn;
use netram_proto::journal::Voter;
use netram_proto::port::{LogError, Record};
use netram_proto::wire::ChainPoint as Chain;

use crate::config::JournalConfig;
use crate::error::JournalOpenError;
use crate::open::{JournalFiles, JournalRecovery};
use crate::records;

/// A journal left by an earlier process of the node. Nothing can be appended to it.
pub struct OrphanJournal {
    files: JournalFiles,
    end: Chain,
}

impl OrphanJournal {
    /// Recovers the journal at `root`. Of `config` it uses how members are reached, `seal`, `patience`,
    /// `grace` and `accept_loss`.
    ///
    /// # Errors
    /// Those of [`crate::Journal::open`]; `NodeFenced` if the server fenced the node first.
    pub fn open(
        root: &Path,
        config: &JournalConfig,
    ) -> Result<(OrphanJournal, JournalRecovery), JournalOpenError> {
        let config = JournalConfig {
            voter: Voter::Server,
            ..config.clone()
        };
        let (files, taken, recovered) = JournalFiles::recovered(root, &config, &mut || Ok(()))?;
        let end = taken.end;
        Ok((OrphanJournal { files, end }, recovered))
    }

    /// Start of the oldest record. The server keeps everything below it.
    pub fn head(&self) -> Chain {
        self.files.superblock.head
    }

    /// Where the records end.
    pub fn end(&self) -> Chain {
        self.end
    }

    /// The chain value of the record that begins at `at`, or of the end.
    ///
    /// # Errors
    /// `at` is out of range or not at a record, or the log cannot be read.
    pub fn link_at(&self, at: Lsn) -> Result<Chain, LogError> {
        records::link_at(&self.files.log, self.head(), self.end, at)
    }

    /// Calls `each` for the records from `from` on (the head, or the `next` of a record), until it returns
    /// `false`. Returns where it stopped.
    ///
    /// # Errors
    /// `from` is not at a record, or the log cannot be read.
    pub fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        let start = records::link_at(&self.files.log, self.head(), self.end, from)?;
        records::read(&self.files.log, &self.files.sealer, start, self.end.lsn, each)
    }

    /// Empties the log. The server must keep all records and have recorded that no more will come. The
    /// directory can then be removed, since the server never merges a journal twice.
    ///
    /// # Errors
    /// The superblock cannot be stored.
    pub fn merged(mut self) -> Result<(), JournalOpenError> {
        self.files.store_head(self.end)
    }
}
