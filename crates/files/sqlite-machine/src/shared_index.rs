//! The shared index: a page of counters that all processes with a database open have mapped.
//!
//! Each process has a slot. For every file of the database it counts the process's writes, and how many of
//! them are *durable*: recorded and held, or on the disk. A process that syncs a file sees whether other
//! processes have writes without a record. That includes a process killed in the middle of a write.
//!
//! The page lives as long as the machine's memory, as do unsynced writes to the files. After a crash of the
//! machine its boot mark differs, and its content does not count.
//!
//! ```text
//! word 0        mark of the boot, 0: none
//! word 1        number of the next record of any process
//! word 2        not 0: a sync of the disk has failed
//! word 8 + 6n   slot n: for each of the three files, writes begun and ended (odd: one is in progress); then, for each, the durable part
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use crate::change::FileRole;

/// Maximum number of processes that have one database open.
pub const PROCESS_SLOTS: usize = 64;
/// Length of the index in words.
pub const INDEX_WORDS: usize = FIRST_SLOT + PROCESS_SLOTS * SLOT_WORDS;

const BOOT: usize = 0;
const NEXT: usize = 1;
const FAILED: usize = 2;
const FIRST_SLOT: usize = 8;
const SLOT_WORDS: usize = 2 * FileRole::ALL.len();

/// Memory shared by several processes.
pub trait SharedWords: Send + Sync {
    /// The words; at least [`INDEX_WORDS`].
    fn words(&self) -> &[AtomicU64];
}

impl SharedWords for std::sync::Arc<[AtomicU64]> {
    fn words(&self) -> &[AtomicU64] {
        self
    }
}

/// The shared index.
pub struct SharedIndex {
    words: Box<dyn SharedWords>,
}

impl SharedIndex {
    /// Wraps an index in this memory.
    pub fn new(words: Box<dyn SharedWords>) -> SharedIndex {
        assert!(words.words().len() >= INDEX_WORDS);
        SharedIndex { words }
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words.words()[index]
    }

    fn written_word(&self, slot: usize, role: FileRole) -> &AtomicU64 {
        self.word(FIRST_SLOT + slot * SLOT_WORDS + role as usize)
    }

    fn durable_word(&self, slot: usize, role: FileRole) -> &AtomicU64 {
        self.word(FIRST_SLOT + slot * SLOT_WORDS + FileRole::ALL.len() + role as usize)
    }

    /// Whether the index was reset in this boot and no sync has failed since. Then unsynced writes are still
    /// in the machine's memory.
    pub fn is_of_boot(&self, boot: u64) -> bool {
        self.word(BOOT).load(Ordering::SeqCst) == boot && !self.has_failed()
    }

    /// Records that a sync of the disk failed. The system then counts the lost pages as clean, so that no
    /// later sync reports them. No process may trust the cached files until recovery has replayed the
    /// journals.
    pub fn fail(&self) {
        self.word(FAILED).store(1, Ordering::SeqCst);
    }

    /// Whether a sync of the disk has failed.
    pub fn has_failed(&self) -> bool {
        self.word(FAILED).load(Ordering::SeqCst) != 0
    }

    /// Clears the boot mark before recovery changes the files, so that an interrupted recovery is repeated.
    pub fn invalidate(&self) {
        self.word(BOOT).store(0, Ordering::SeqCst);
    }

    /// Resets the index: everything is on the disk, and the next record gets the number `next`. No other
    /// process may have the database open.
    pub fn reset(&self, boot: u64, next: u64) {
        self.invalidate();
        self.words
            .words()
            .iter()
            .skip(FIRST_SLOT)
            .for_each(|word| word.store(0, Ordering::SeqCst));
        self.word(NEXT).store(next, Ordering::SeqCst);
        self.word(FAILED).store(0, Ordering::SeqCst);
        self.word(BOOT).store(boot, Ordering::SeqCst);
    }

    /// Number of the next record.
    pub fn next(&self) -> u64 {
        self.word(NEXT).load(Ordering::SeqCst)
    }

    /// Takes a number for a record. Read the record's bytes from the file after this call. Of two records of
    /// the same bytes, the one with the higher number then has the later content.
    pub fn take_number(&self) -> u64 {
        self.word(NEXT).fetch_add(1, Ordering::SeqCst)
    }

    /// Write counter of a process and file.
    pub fn written(&self, slot: usize, role: FileRole) -> u64 {
        self.written_word(slot, role).load(Ordering::SeqCst)
    }

    /// Counts the begin of a write. A slot has at most one write in progress per file.
    pub fn begin_write(&self, slot: usize, role: FileRole) {
        self.written_word(slot, role).fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the end of a write, successful or not.
    pub fn end_write(&self, slot: usize, role: FileRole) {
        self.written_word(slot, role).fetch_add(1, Ordering::SeqCst);
    }

    /// Ends a write during which its process was killed. Returns the write counter.
    pub fn end_dead_write(&self, slot: usize, role: FileRole) -> u64 {
        let word = self.written_word(slot, role);
        let written = word.load(Ordering::SeqCst);
        let ended = written + written % 2;
        word.store(ended, Ordering::SeqCst);
        ended
    }

    /// Marks all writes up to the counter `written` as durable.
    pub fn mark_durable(&self, slot: usize, role: FileRole, written: u64) {
        debug_assert!(written.is_multiple_of(2));
        self.durable_word(slot, role).fetch_max(written, Ordering::SeqCst);
    }

    /// Whether a process has writes to a file that are not durable.
    pub fn is_dirty(&self, slot: usize, role: FileRole) -> bool {
        // Read the durable counter first: it never passes the write counter of that moment.
        let safe = self.durable_word(slot, role).load(Ordering::SeqCst);
        self.written(slot, role) != safe
    }

    /// Whether any other process has such writes. Costs two loads per slot.
    pub fn is_dirty_elsewhere(&self, slot: usize, role: FileRole) -> bool {
        (0..PROCESS_SLOTS).any(|other| other != slot && self.is_dirty(other, role))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn ledger() -> SharedIndex {
        let words: Arc<[AtomicU64]> = (0..INDEX_WORDS).map(|_| AtomicU64::new(7)).collect();
        let ledger = SharedIndex::new(Box::new(words));
        ledger.reset(9, 100);
        ledger
    }

    #[test]
    fn a_write_is_dirty_from_its_begin_until_it_is_durable() {
        let ledger = ledger();
        assert!(ledger.is_of_boot(9) && !ledger.is_of_boot(8));
        assert!(
            FileRole::ALL
                .iter()
                .all(|role| !ledger.is_dirty_elsewhere(0, *role))
        );
        ledger.begin_write(3, FileRole::Wal);
        assert!(ledger.is_dirty_elsewhere(0, FileRole::Wal) && !ledger.is_dirty_elsewhere(3, FileRole::Wal));
        assert!(!ledger.is_dirty_elsewhere(0, FileRole::Main));
        ledger.end_write(3, FileRole::Wal);
        let written = ledger.written(3, FileRole::Wal);
        ledger.begin_write(3, FileRole::Wal);
        ledger.mark_durable(3, FileRole::Wal, written);
        assert!(ledger.is_dirty(3, FileRole::Wal), "it goes on");
        let ended = ledger.end_dead_write(3, FileRole::Wal);
        assert_eq!((ended, ledger.written(3, FileRole::Wal)), (4, 4));
        ledger.mark_durable(3, FileRole::Wal, ended);
        // A later report about an earlier write changes nothing.
        ledger.mark_durable(3, FileRole::Wal, written);
        assert!(!ledger.is_dirty(3, FileRole::Wal));
    }

    #[test]
    fn a_failed_sync_invalidates_the_index_until_its_reset() {
        let ledger = ledger();
        ledger.fail();
        assert!(ledger.has_failed() && !ledger.is_of_boot(9));
        ledger.reset(9, 100);
        assert!(!ledger.has_failed() && ledger.is_of_boot(9));
    }

    #[test]
    fn numbers_are_unique() {
        let ledger = ledger();
        assert_eq!(
            (ledger.take_number(), ledger.take_number(), ledger.next()),
            (100, 101, 102)
        );
    }
}
