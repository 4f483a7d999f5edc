//! Layout of the objects in memory.
//!
//! The layout follows the port of OO7 that the OSDI'94 figures were measured with: C++ objects with their
//! fields in a row, and with 64-bit pointers, here offsets. An atomic part is one block of 208 bytes that
//! includes both its bags, as large as the port's three blocks together. Numbers are little endian and need
//! no alignment.

use zerocopy::little_endian::{I32, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Oo7Error;
use crate::store::{ConnectionValues, DesignValues, Oo7Index};
use crate::text::{TITLE_BYTES, TYPE_BYTES, type_name};

/// First bytes of a database.
pub(super) const MAGIC: [u8; 8] = *b"NRAM-OO7";
/// The layout that this code reads and writes.
pub(super) const VERSION: u32 = 2;

macro_rules! stored {
    ($($(#[$doc:meta])* struct $name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
            #[repr(C)]
            pub(super) struct $name { $(pub(super) $field: $type,)* }
        )*
    };
}

stored! {
    /// The database's first row, where a program begins.
    struct DatabaseRow {
        magic: [u8; 8],
        version: U32,
        complete: U32,
        // Whether the date index has only one part for a date, as in 1994.
        date_map: U32,
        // Room for connections in a part.
        connections: U32,
        // Numbers of composites in a module and of modules, which determine each block's heap if each module
        // has its own.
        composites: U32,
        modules: U32,
        indexes: [IndexRow; 7],
    }

    /// An index: its topmost node, and the first of its unused nodes, linked by their left pointers.
    struct IndexRow {
        root: U64,
        spare: U64,
    }

    /// Fields of every design object: 24 bytes, with the four bytes that follow.
    struct DesignRow {
        id: U32,
        date: U32,
        kind: [u8; TYPE_BYTES],
        spare: [u8; 2],
    }

    /// References in any order: `count` of them at `items`, where there is room for `room`.
    struct Bag {
        items: U64,
        count: U32,
        room: U32,
    }

    struct ModuleRow {
        design: DesignRow,
        spare: U32,
        manual: U64,
        top: U64,
        assemblies: Bag,
    }

    /// A document, or a module's manual.
    struct TextRow {
        title: [u8; TITLE_BYTES],
        id: U32,
        length: U32,
        text: U64,
        owner: U64,
    }

    struct AssemblyRow {
        design: DesignRow,
        base: U32,
        module: U64,
        parent: U64,
        // Assemblies, or privately used composites.
        below: Bag,
        shared: Bag,
    }

    struct CompositeRow {
        design: DesignRow,
        spare: U32,
        document: U64,
        root: U64,
        parts: Bag,
        users: Bag,
        shared_users: Bag,
    }

    /// An atomic part. The items of its bags follow it.
    struct PartRow {
        design: DesignRow,
        x: U32,
        y: U32,
        document: U32,
        composite: U64,
        outward: Bag,
        inward: Bag,
    }

    struct ConnectionRow {
        kind: [u8; TYPE_BYTES],
        spare: [u8; 2],
        length: U32,
        from: U64,
        to: U64,
    }

    /// A node of an index.
    struct NodeRow {
        key: U64,
        value: U64,
        left: U64,
        right: U64,
        // Height of the right side less that of the left.
        balance: I32,
        spare: U32,
    }
}

const _: () = assert!(size_of::<PartRow>() == 72, "with 3 and 14 references, 208 bytes");
const _: () = assert!(size_of::<NodeRow>() == 40, "no padding");
const _: () = assert!(size_of::<ConnectionRow>() == 32, "as in 1994");

/// Room for incoming connections of a part: more than four times the expected number, so that hardly any bag
/// has to move.
pub(super) fn inward_room(connections: u32) -> u32 {
    4 * connections + 2
}

/// Size of an atomic part's block in bytes.
pub(super) fn part_bytes(connections: u32) -> usize {
    let items = connections + inward_room(connections);
    size_of::<PartRow>() + 8 * items as usize
}

/// The value at an offset.
pub(super) fn view<'b, T>(bytes: &'b [u8], at: u64, what: &'static str) -> Result<&'b T, Oo7Error>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let damaged = Oo7Error::Damaged { what, at };
    let found = usize::try_from(at).ok().filter(|at| *at != 0);
    let Some(bytes) = found.and_then(|at| bytes.get(at..)?.get(..size_of::<T>())) else {
        return Err(damaged);
    };
    T::ref_from_bytes(bytes).map_err(|_| damaged)
}

/// Consecutive values at an offset.
pub(super) fn views<'b, T>(
    bytes: &'b [u8],
    at: u64,
    count: u32,
    what: &'static str,
) -> Result<&'b [T], Oo7Error>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let damaged = Oo7Error::Damaged { what, at };
    let length = (count as usize).checked_mul(size_of::<T>());
    let (Ok(start), Some(length)) = (usize::try_from(at), length) else {
        return Err(damaged);
    };
    if count == 0 {
        return Ok(&[]);
    }
    let Some(bytes) = bytes.get(start..).and_then(|bytes| bytes.get(..length)) else {
        return Err(damaged);
    };
    <[T]>::ref_from_bytes(bytes).map_err(|_| damaged)
}

impl Bag {
    pub(super) const EMPTY: Bag = Bag {
        items: U64::ZERO,
        count: U32::ZERO,
        room: U32::ZERO,
    };

    pub(super) fn items<'b>(&self, bytes: &'b [u8]) -> Result<&'b [U64], Oo7Error> {
        views(bytes, self.items.get(), self.count.get(), "a bag's items")
    }
}

impl DesignRow {
    pub(super) fn new(design: DesignValues) -> DesignRow {
        DesignRow {
            id: design.id.into(),
            date: design.date.into(),
            kind: type_name(design.kind),
            spare: [0; 2],
        }
    }

    pub(super) fn values(&self) -> Result<DesignValues, Oo7Error> {
        Ok(DesignValues {
            id: self.id.get(),
            kind: kind_of(&self.kind)?,
            date: self.date.get(),
        })
    }
}

impl ConnectionRow {
    pub(super) fn values(&self) -> Result<ConnectionValues, Oo7Error> {
        Ok(ConnectionValues {
            kind: kind_of(&self.kind)?,
            length: self.length.get(),
        })
    }
}

/// The number of a type, from its name.
fn kind_of(name: &[u8; TYPE_BYTES]) -> Result<u32, Oo7Error> {
    let digits = name
        .strip_prefix(b"type")
        .and_then(|rest| rest.strip_suffix(&[0; 3]));
    let parsed = digits.and_then(|digits| str::from_utf8(digits).ok()?.parse().ok());
    parsed.ok_or(Oo7Error::Damaged {
        what: "the name of a type",
        at: 0,
    })
}

/// Offset of an index in a database.
pub(super) fn index_at(database: u64, index: Oo7Index) -> u64 {
    let place = match index {
        Oo7Index::Module => 0,
        Oo7Index::Base => 1,
        Oo7Index::Composite => 2,
        Oo7Index::Document => 3,
        Oo7Index::Title => 4,
        Oo7Index::Part => 5,
        Oo7Index::Date => 6,
    };
    let indexes = database + std::mem::offset_of!(DatabaseRow, indexes) as u64;
    indexes + (size_of::<IndexRow>() as u64) * place
}
