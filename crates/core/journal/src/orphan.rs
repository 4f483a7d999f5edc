//! What an earlier process of a node of a shared region left in its directory: opened to offer the server
//! what it lacks, and for nothing else.
//!
//! Opening it recovers it, as every opening does: local log and members, with the same proof. The members
//! keep what they have: should this machine die too before the server has everything, it can still read them.
//! So it does not matter who comes first. A server that fences the node afterwards finds the windows as they
//! were; if it has begun before, its seal comes after any of ours, and the opening is refused
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

/// A journal with what a node left. Nothing can be appended.
pub struct OrphanJournal {
    files: JournalFiles,
    end: Chain,
}

impl OrphanJournal {
    /// Recovers the journal at `root`. Of `config` how members are reached counts, and `seal`, `patience`,
    /// `grace`, `accept_loss`.
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

    /// The oldest record. All below it the server keeps.
    pub fn head(&self) -> Chain {
        self.files.superblock.head
    }

    /// Where the records end.
    pub fn end(&self) -> Chain {
        self.end
    }

    /// Where the record at `at` begins (or the records end), with the CRC of the one before.
    pub fn link_at(&self, at: Lsn) -> Result<Chain, LogError> {
        records::link_at(&self.files.log, self.head(), self.end, at)
    }

    /// Calls `each` for every record from `from` (the head, or the `next` of a record) on, until it returns
    /// `false`.
    pub fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        let start = records::link_at(&self.files.log, self.head(), self.end, from)?;
        records::read(&self.files.log, &self.files.sealer, start, self.end.lsn, each)
    }

    /// The server keeps everything, and has written down that nothing more will come: the log is emptied, and
    /// the directory can go: the server takes no journal twice.
    pub fn merged(mut self) -> Result<(), JournalOpenError> {
        self.files.store_head(self.end)
    }
}
