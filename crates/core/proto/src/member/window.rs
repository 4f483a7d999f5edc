//! The memory that holds a member's bytes. The lender backs it with chunks of shared memory, the simulator
//! with a vector.

use crate::id::Lsn;
use crate::wire::RefusalReason;

/// A ring of bytes addressed by LSN: byte `n` lies at `n` modulo the capacity.
pub trait Window {
    /// Resizes the window to `bytes`, discarding its contents.
    ///
    /// # Errors
    ///
    /// The lender has too little memory, or the window exceeds its quota. The window is then empty.
    fn reserve(&mut self, bytes: u64) -> Result<(), ReserveError>;
    /// Frees all memory; the capacity becomes zero.
    fn release(&mut self);
    /// The window's size in bytes.
    fn capacity(&self) -> u64;
    /// Stores `bytes` at `at`. The caller stays within the capacity.
    fn write(&mut self, at: Lsn, bytes: &[u8]);
    /// The longest piece from `at` that is contiguous in memory, at most `max` bytes; not empty unless `max`
    /// is zero.
    fn piece(&self, at: Lsn, max: usize) -> &[u8];
}

/// The lender cannot provide a window of the requested size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveError {
    /// `NoRoom`, `OverQuota`, or `OverClientLimit`.
    pub refusal: RefusalReason,
    /// Bytes requested.
    pub asked: u64,
    /// Bytes available.
    pub limit: u64,
}

/// Iterates over the contiguous pieces of `length` bytes of `window` from `at`.
pub(super) fn pieces<W: Window>(window: &W, at: Lsn, length: usize) -> impl Iterator<Item = &[u8]> {
    let mut done = 0;
    core::iter::from_fn(move || {
        if done == length {
            return None;
        }
        let piece = window.piece(at.plus(done as u64), length - done);
        assert!(!piece.is_empty());
        done += piece.len();
        Some(piece)
    })
}

/// Copies `into.len()` bytes of `window` from `at` into `into`.
pub fn copy_out<W: Window>(window: &W, at: Lsn, into: &mut [u8]) {
    let mut done = 0;
    let length = into.len();
    for piece in pieces(window, at, length) {
        into[done..done + piece.len()].copy_from_slice(piece);
        done += piece.len();
    }
}
