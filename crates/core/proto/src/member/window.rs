//! The memory a member keeps its bytes in. The lender backs it with chunks of shared memory, the simulator
//! with a vector.

use crate::id::Lsn;
use crate::wire::RefusalReason;

/// A ring of bytes addressed by LSN: byte `n` lies at `n` modulo the capacity.
pub trait Window {
    /// Makes the window hold `bytes`, giving up what it held before. On refusal the numbers are what was
    /// asked and what could be had.
    fn reserve(&mut self, bytes: u64) -> Result<(), ReserveError>;
    /// Gives all memory back; the capacity becomes zero.
    fn release(&mut self);
    /// Bytes the window can hold.
    fn capacity(&self) -> u64;
    /// Stores `bytes` at `at`. The caller keeps within the capacity.
    fn write(&mut self, at: Lsn, bytes: &[u8]);
    /// The longest piece from `at` that lies in one slice, at most `max` bytes and at least one if `max` is.
    fn piece(&self, at: Lsn, max: usize) -> &[u8];
}

/// Why a window could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReserveError {
    /// `NoRoom` or `OverQuota`.
    pub refusal: RefusalReason,
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes that could be had.
    pub limit: u64,
}

/// The pieces of `length` bytes of `window` from `at`.
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

/// Copies `into.len()` bytes of `window` from `at`.
pub fn copy_out<W: Window>(window: &W, at: Lsn, into: &mut [u8]) {
    let mut done = 0;
    let length = into.len();
    for piece in pieces(window, at, length) {
        into[done..done + piece.len()].copy_from_slice(piece);
        done += piece.len();
    }
}
