//! What the processes that have a database open know of each other: a page of words that all of them map.
//!
//! Each process has a slot. In it stands, for every file of the database, how far the process has got with
//! writing it, and how far what it wrote is *safe*: recorded in a journal and held, or on the disk. So
//! whoever syncs a file knows whether there are writes of others that no record covers yet, be the other
//! alive, or killed in the middle of a write.
//!
//! The page lives as long as the machine's memory does, as what was written to the files and not synced does.
//! After the machine has crashed its mark is of another boot, and nothing in it counts.
//!
//! ```text
//! word 0        mark of the boot, 0: none
//! word 1        number of the next record, of whichever process
//! word 2        not 0: a sync of the disk has failed
//! word 8 + 6n   slot n: writes begun and ended (odd: one is going on) of each of the three files, then what of them is safe
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use crate::change::FileRole;

/// Processes that may have one database open.
pub const PROCESS_SLOTS: usize = 64;
/// Words that a ledger takes.
pub const INDEX_WORDS: usize = FIRST_SLOT + PROCESS_SLOTS * SLOT_WORDS;

const BOOT: usize = 0;
const NEXT: usize = 1;
const FAILED: usize = 2;
const FIRST_SLOT: usize = 8;
const SLOT_WORDS: usize = 2 * FileRole::ALL.len();

/// Memory that several processes have.
pub trait SharedWords: Send + Sync {
    /// At least [`INDEX_WORDS`] of them.
    fn words(&self) -> &[AtomicU64];
}

impl SharedWords for std::sync::Arc<[AtomicU64]> {
    fn words(&self) -> &[AtomicU64] {
        self
    }
}

/// The page.
pub struct SharedIndex {
    words: Box<dyn SharedWords>,
}

impl SharedIndex {
    /// The one in this memory.
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

    /// Whether it was begun under this boot's mark: what was written to the files is in the machine's memory,
    /// if not on the disk.
    pub fn is_of_boot(&self, boot: u64) -> bool {
        self.word(BOOT).load(Ordering::SeqCst) == boot && !self.has_failed()
    }

    /// A sync of the disk failed. The system takes what it could not write for written, so that nobody's
    /// later sync tells: the memory is not to be believed any more, by no process, until the journals were
    /// brought into the files anew.
    pub fn fail(&self) {
        self.word(FAILED).store(1, Ordering::SeqCst);
    }

    /// Whether one did.
    pub fn has_failed(&self) -> bool {
        self.word(FAILED).load(Ordering::SeqCst) != 0
    }

    /// The files are about to be changed by a recovery: whoever cuts it off leaves a page that is of no boot.
    pub fn invalidate(&self) {
        self.word(BOOT).store(0, Ordering::SeqCst);
    }

    /// Begins it anew: everything is on the disk, and the next record has this number. Nobody else has the
    /// database open.
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

    /// The next record's number.
    pub fn next(&self) -> u64 {
        self.word(NEXT).load(Ordering::SeqCst)
    }

    /// A number for a record. What the record says must be read from the file after this: so of two records
    /// of the same bytes the one with the higher number has what was there later.
    pub fn take_number(&self) -> u64 {
        self.word(NEXT).fetch_add(1, Ordering::SeqCst)
    }

    /// How far a process has got with writing a file.
    pub fn written(&self, slot: usize, role: FileRole) -> u64 {
        self.written_word(slot, role).load(Ordering::SeqCst)
    }

    /// A write begins. One at a time for each slot and file.
    pub fn begin_write(&self, slot: usize, role: FileRole) {
        self.written_word(slot, role).fetch_add(1, Ordering::SeqCst);
    }

    /// It has ended, however it has.
    pub fn end_write(&self, slot: usize, role: FileRole) {
        self.written_word(slot, role).fetch_add(1, Ordering::SeqCst);
    }

    /// Ends the write of a process that was killed in the middle of it. Returns how far it had got.
    pub fn end_dead_write(&self, slot: usize, role: FileRole) -> u64 {
        let word = self.written_word(slot, role);
        let written = word.load(Ordering::SeqCst);
        let ended = written + written % 2;
        word.store(ended, Ordering::SeqCst);
        ended
    }

    /// All that was written to a file up to there is safe.
    pub fn mark_durable(&self, slot: usize, role: FileRole, written: u64) {
        debug_assert!(written.is_multiple_of(2));
        self.durable_word(slot, role).fetch_max(written, Ordering::SeqCst);
    }

    /// Whether a process wrote to a file what is not safe.
    pub fn is_dirty(&self, slot: usize, role: FileRole) -> bool {
        // What is safe first: it does not pass what was written by then.
        let safe = self.durable_word(slot, role).load(Ordering::SeqCst);
        self.written(slot, role) != safe
    }

    /// Whether any process but this one did. Two loads for each slot.
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
    fn what_is_written_is_dirty_until_it_is_safe_and_while_it_is_being_written() {
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
        // What somebody else says later, of earlier, changes nothing.
        ledger.mark_durable(3, FileRole::Wal, written);
        assert!(!ledger.is_dirty(3, FileRole::Wal));
    }

    #[test]
    fn after_a_sync_that_failed_the_memory_is_not_believed_until_it_is_begun_anew() {
        let ledger = ledger();
        ledger.fail();
        assert!(ledger.has_failed() && !ledger.is_of_boot(9));
        ledger.reset(9, 100);
        assert!(!ledger.has_failed() && ledger.is_of_boot(9));
    }

    #[test]
    fn numbers_are_given_once() {
        let ledger = ledger();
        assert_eq!(
            (ledger.take_number(), ledger.take_number(), ledger.next()),
            (100, 101, 102)
        );
    }
}
