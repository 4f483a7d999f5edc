//! The database in bytes that stand still: nothing is allocated but what an index of dates lacks, nothing is committed here.

use std::cell::{Cell, RefCell, RefMut};

use netram_oo7::StoreError;
use netram_oo7::graph::{Ground, Near, Space};
use netram_rvm::{EditGuard, RealStorage};

use super::super::world::Tail;

/// The part of the bytes below which nothing is allocated: the database has the first half.
const ROOM: u64 = 4;
const ALIGN: u64 = 16;

/// Bytes that can be changed in place.
pub(super) trait Access {
    /// All of them.
    fn bytes(&self) -> &[u8];
    /// Some, to be changed.
    fn change(&mut self, at: usize, length: usize) -> Result<&mut [u8], StoreError>;
}

/// Stores that nobody is told of.
pub(super) struct Plain<'b>(pub(super) &'b mut [u8]);

impl Access for Plain<'_> {
    fn bytes(&self) -> &[u8] {
        self.0
    }

    #[inline]
    fn change(&mut self, at: usize, length: usize) -> Result<&mut [u8], StoreError> {
        let range = at..at.saturating_add(length);
        let found = self.0.get_mut(range);
        found.ok_or(StoreError::Damaged {
            what: "bytes to write",
            at: at as u64,
        })
    }
}

/// Stores that are declared to a transaction.
pub(super) struct Declaring<'e>(pub(super) EditGuard<'e, Tail, RealStorage>);

impl Access for Declaring<'_> {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[inline]
    fn change(&mut self, at: usize, length: usize) -> Result<&mut [u8], StoreError> {
        self.0.range_mut(at, length).map_err(StoreError::below)
    }
}

/// A database in such bytes.
pub(super) struct Still<'s, A> {
    access: RefCell<A>,
    root: u64,
    spare: &'s Cell<u64>,
}

impl<'s, A: Access> Still<'s, A> {
    /// `spare`: where the next block would end.
    pub(super) fn new(access: A, root: u64, spare: &'s Cell<u64>) -> Still<'s, A> {
        Still {
            access: RefCell::new(access),
            root,
            spare,
        }
    }
}

impl<A: Access> Space for Still<'_, A> {
    type Open<'o>
        = StillOpen<'o, A>
    where
        Self: 'o;

    fn begin(&self) -> Result<StillOpen<'_, A>, StoreError> {
        Ok(StillOpen {
            access: self.access.borrow_mut(),
            root: self.root,
            spare: self.spare,
        })
    }
}

/// Its one transaction at a time.
pub(super) struct StillOpen<'o, A> {
    access: RefMut<'o, A>,
    root: u64,
    spare: &'o Cell<u64>,
}

impl<A: Access> Ground for StillOpen<'_, A> {
    #[inline]
    fn bytes(&mut self) -> &[u8] {
        self.access.bytes()
    }

    #[inline]
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.access
            .change(at as usize, bytes.len())?
            .copy_from_slice(bytes);
        Ok(())
    }

    fn allocate(&mut self, _: Near, bytes: usize) -> Result<u64, StoreError> {
        let size = (bytes as u64).next_multiple_of(ALIGN);
        let all = self.access.bytes().len() as u64;
        let at = self
            .spare
            .get()
            .checked_sub(size)
            .filter(|at| *at > all - all / ROOM);
        let at = at.ok_or(StoreError::NoRoom {
            asked: size,
            largest: 0,
        })?;
        self.spare.set(at);
        Ok(at)
    }

    fn free(&mut self, _: u64) -> Result<(), StoreError> {
        Ok(())
    }

    fn root(&mut self) -> Result<u64, StoreError> {
        Ok(self.root)
    }

    fn set_root(&mut self, at: u64) -> Result<(), StoreError> {
        Err(StoreError::Damaged {
            what: "a root that stands still",
            at,
        })
    }

    fn commit(self) -> Result<(), StoreError> {
        Ok(())
    }
}
