//! The OO7 database in fixed memory. Only additional nodes of the date index are allocated, and nothing is
//! committed here.

use std::cell::{Cell, RefCell, RefMut};

use netram_oo7::Oo7Error;
use netram_oo7::graph::{BlockOwner, BlockSpace, BlockTransaction};
use netram_rvm::{EditGuard, RealStorage};

use super::super::testbed::LastRecordLog;

/// The allocator starts above one part in this many of the bytes; the database has the first half.
const ROOM: u64 = 4;
const ALIGN: u64 = 16;

/// Bytes that can be changed in place.
pub(super) trait ByteAccess {
    /// All bytes, for reading.
    fn bytes(&self) -> &[u8];
    /// A range of the bytes, for changing.
    fn change(&mut self, at: usize, length: usize) -> Result<&mut [u8], Oo7Error>;
}

/// Bytes with undeclared stores.
pub(super) struct PlainBytes<'b>(pub(super) &'b mut [u8]);

impl ByteAccess for PlainBytes<'_> {
    fn bytes(&self) -> &[u8] {
        self.0
    }

    #[inline]
    fn change(&mut self, at: usize, length: usize) -> Result<&mut [u8], Oo7Error> {
        let range = at..at.saturating_add(length);
        let found = self.0.get_mut(range);
        found.ok_or(Oo7Error::Damaged {
            what: "bytes to write",
            at: at as u64,
        })
    }
}

/// Bytes whose changes are declared to a transaction.
pub(super) struct DeclaredBytes<'e>(pub(super) EditGuard<'e, LastRecordLog, RealStorage>);

impl ByteAccess for DeclaredBytes<'_> {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    #[inline]
    fn change(&mut self, at: usize, length: usize) -> Result<&mut [u8], Oo7Error> {
        self.0.range_mut(at, length).map_err(Oo7Error::backend)
    }
}

/// A database in such bytes.
pub(super) struct FlatSpace<'s, A> {
    access: RefCell<A>,
    root: u64,
    spare: &'s Cell<u64>,
}

impl<'s, A: ByteAccess> FlatSpace<'s, A> {
    /// `spare` holds the end of the next allocation.
    pub(super) fn new(access: A, root: u64, spare: &'s Cell<u64>) -> FlatSpace<'s, A> {
        FlatSpace {
            access: RefCell::new(access),
            root,
            spare,
        }
    }
}

impl<A: ByteAccess> BlockSpace for FlatSpace<'_, A> {
    type Open<'o>
        = FlatTransaction<'o, A>
    where
        Self: 'o;

    fn begin(&self) -> Result<FlatTransaction<'_, A>, Oo7Error> {
        Ok(FlatTransaction {
            access: self.access.borrow_mut(),
            root: self.root,
            spare: self.spare,
        })
    }
}

/// The only transaction, one at a time.
pub(super) struct FlatTransaction<'o, A> {
    access: RefMut<'o, A>,
    root: u64,
    spare: &'o Cell<u64>,
}

impl<A: ByteAccess> BlockTransaction for FlatTransaction<'_, A> {
    #[inline]
    fn bytes(&mut self) -> &[u8] {
        self.access.bytes()
    }

    #[inline]
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), Oo7Error> {
        self.access
            .change(at as usize, bytes.len())?
            .copy_from_slice(bytes);
        Ok(())
    }

    fn allocate(&mut self, _: BlockOwner, bytes: usize) -> Result<u64, Oo7Error> {
        let size = (bytes as u64).next_multiple_of(ALIGN);
        let all = self.access.bytes().len() as u64;
        let at = self
            .spare
            .get()
            .checked_sub(size)
            .filter(|at| *at > all - all / ROOM);
        let at = at.ok_or(Oo7Error::Full {
            asked: size,
            largest: 0,
        })?;
        self.spare.set(at);
        Ok(at)
    }

    fn free(&mut self, _: u64) -> Result<(), Oo7Error> {
        Ok(())
    }

    fn root(&mut self) -> Result<u64, Oo7Error> {
        Ok(self.root)
    }

    fn set_root(&mut self, at: u64) -> Result<(), Oo7Error> {
        Err(Oo7Error::Damaged {
            what: "a root that stands still",
            at,
        })
    }

    fn commit(self) -> Result<(), Oo7Error> {
        Ok(())
    }
}
