//! Pointers that stay valid wherever the segment is mapped: typed offsets.

use std::fmt;
use std::marker::PhantomData;

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A block of the heap that holds a `T`, as an offset in the heap's region. It has eight bytes; zero is null.
///
/// It may be stored in recoverable memory, for example in other blocks. It can outlive its block or be
/// forged. Using such a pointer returns `BlockError`, unless a new block begins at the same offset.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(transparent)]
pub struct Ptr<T> {
    at: U64,
    of: PhantomData<T>,
}

impl<T> Ptr<T> {
    /// The null pointer.
    pub const NULL: Ptr<T> = Ptr {
        at: U64::ZERO,
        of: PhantomData,
    };

    /// A pointer to the block at this offset of the heap's region.
    pub const fn from_offset(at: u64) -> Ptr<T> {
        Ptr {
            at: U64::new(at),
            of: PhantomData,
        }
    }

    /// Offset of the block in the heap's region.
    pub const fn offset(self) -> u64 {
        self.at.get()
    }

    /// Whether the pointer is null.
    pub const fn is_null(self) -> bool {
        self.at.get() == 0
    }

    /// The same block as another type.
    pub const fn cast<U>(self) -> Ptr<U> {
        Ptr::from_offset(self.offset())
    }
}

/// A block of the heap that holds `len` values of `T`. It has sixteen bytes; all zeros is empty and null.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Slice<T> {
    at: U64,
    len: U64,
    of: PhantomData<T>,
}

impl<T> Slice<T> {
    /// The empty slice.
    pub const NULL: Slice<T> = Slice {
        at: U64::ZERO,
        len: U64::ZERO,
        of: PhantomData,
    };

    /// A slice of `len` values in `block`.
    pub const fn new(block: Ptr<T>, len: u64) -> Slice<T> {
        Slice {
            at: block.at,
            len: U64::new(len),
            of: PhantomData,
        }
    }

    /// The block.
    pub const fn block(self) -> Ptr<T> {
        Ptr::from_offset(self.at.get())
    }

    /// Number of values.
    pub const fn len(self) -> u64 {
        self.len.get()
    }

    /// Whether the slice has no values.
    pub const fn is_empty(self) -> bool {
        self.len.get() == 0
    }
}

// Derived implementations would require bounds on `T` that only the numbers need to meet.
impl<T> Clone for Ptr<T> {
    fn clone(&self) -> Ptr<T> {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> Default for Ptr<T> {
    fn default() -> Ptr<T> {
        Ptr::NULL
    }
}

impl<T> PartialEq for Ptr<T> {
    fn eq(&self, other: &Ptr<T>) -> bool {
        self.at == other.at
    }
}

impl<T> Eq for Ptr<T> {}

impl<T> fmt::Debug for Ptr<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Ptr({:#x})", self.offset())
    }
}

impl<T> Clone for Slice<T> {
    fn clone(&self) -> Slice<T> {
        *self
    }
}

impl<T> Copy for Slice<T> {}

impl<T> Default for Slice<T> {
    fn default() -> Slice<T> {
        Slice::NULL
    }
}

impl<T> PartialEq for Slice<T> {
    fn eq(&self, other: &Slice<T>) -> bool {
        (self.at, self.len) == (other.at, other.len)
    }
}

impl<T> Eq for Slice<T> {}

impl<T> fmt::Debug for Slice<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Slice({:#x}; {})", self.at.get(), self.len.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Not `FromBytes`, but a pointer to it is.
    struct Opaque(#[expect(dead_code, reason = "makes the type what it is")] String);

    #[test]
    fn pointers_are_plain_bytes_whatever_their_type() {
        let pointer = Ptr::<u64>::from_offset(0x1234);
        assert_eq!(pointer.as_bytes(), [0x34, 0x12, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Ptr::<u64>::read_from_bytes(&[0; 8]).unwrap(), Ptr::NULL);
        assert_eq!(pointer.cast::<u8>().offset(), 0x1234);
        let slice = Slice::new(pointer, 3);
        assert_eq!(Slice::<u64>::read_from_bytes(slice.as_bytes()).unwrap(), slice);
        assert_eq!((slice.len(), slice.block()), (3, pointer));
        assert!(Slice::<Opaque>::default().is_empty());
        assert!(Ptr::<Opaque>::NULL.is_null());
    }
}
