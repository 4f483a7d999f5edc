//! The store in memory with blocks: objects in place, references as offsets, and trees as indexes.
//!
//! Its memory is a [`BlockSpace`]: [`HeapSpace`] is a persistent heap in recoverable memory over any log;
//! [`SharedHeapSpace`] is one in a region of several machines. Objects are read in place, and each change
//! declares only the bytes that change. Layout: `docs/results/oo7.md`.

mod bag;
mod heap;
mod layout;
mod objects;
mod shared;
mod space;
mod tree;
mod work;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use heap::{CommitTransaction, HeapSpace, HeapSpaceTransaction};
pub use shared::{SharedHeapSpace, SharedHeapTransaction};
pub use space::{BlockOwner, BlockSpace, BlockTransaction};

use crate::error::Oo7Error;
use crate::size::{Oo7Parameters, module_of};
use crate::store::{Oo7Index, Oo7Store};
use layout::{DatabaseRow, IndexRow, MAGIC, VERSION, view};
use tree::{IndexKey, VisitedNodes};

/// Contents of the index of atomic parts by build date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DateIndex {
    /// All parts of each date, as the benchmark requires.
    All,
    /// One part for each date, the first that was entered, as in the port of 1994. A part whose date changes
    /// takes the old date's entry with it. This serves to compare the number of updates with the published
    /// ones; queries by date find too few parts.
    One,
}

/// An OO7 database in memory with blocks.
#[derive(Debug)]
pub struct ObjectGraph<S> {
    space: S,
    database: u64,
    header: DatabaseHeader,
}

/// Parameters stored at the beginning of a database.
#[derive(Clone, Copy, Debug)]
struct DatabaseHeader {
    dates: DateIndex,
    connections: u32,
    /// Number of composites in a module.
    composites: u32,
    modules: u32,
}

impl<S: BlockSpace> ObjectGraph<S> {
    /// Creates an empty database for [`crate::build`]. Earlier contents of the space are neither freed nor
    /// reachable.
    ///
    /// # Errors
    ///
    /// Fails if the space has no room.
    pub fn create(
        space: S,
        parameters: &Oo7Parameters,
        dates: DateIndex,
    ) -> Result<ObjectGraph<S>, Oo7Error> {
        let row = DatabaseRow {
            magic: MAGIC,
            version: U32::new(VERSION),
            complete: U32::ZERO,
            date_map: U32::new(u32::from(dates == DateIndex::One)),
            connections: U32::new(parameters.connections),
            composites: U32::new(parameters.composites),
            modules: U32::new(parameters.modules),
            indexes: [IndexRow::new_zeroed(); 7],
        };
        let mut open = space.begin()?;
        let database = open.allocate(BlockOwner::Common, size_of::<DatabaseRow>())?;
        open.write(database, row.as_bytes())?;
        open.set_root(database)?;
        open.commit()?;
        Ok(ObjectGraph {
            space,
            database,
            header: DatabaseHeader {
                dates,
                connections: parameters.connections,
                composites: parameters.composites,
                modules: parameters.modules,
            },
        })
    }

    /// Opens a completely built database.
    ///
    /// # Errors
    ///
    /// Fails if the space has none, or one that was never completed.
    pub fn open(space: S) -> Result<ObjectGraph<S>, Oo7Error> {
        let mut open = space.begin()?;
        let database = open.root()?;
        if database == 0 {
            return Err(Oo7Error::Missing {
                why: "the heap has no root",
            });
        }
        let row: &DatabaseRow = view(open.bytes(), database, "a database")?;
        if row.magic != MAGIC || row.version.get() != VERSION {
            return Err(Oo7Error::Missing {
                why: "the heap's root is something else",
            });
        }
        if row.complete.get() != 1 {
            return Err(Oo7Error::Missing {
                why: "its building was cut off",
            });
        }
        let facts = DatabaseHeader {
            dates: match row.date_map.get() {
                0 => DateIndex::All,
                _ => DateIndex::One,
            },
            connections: row.connections.get(),
            composites: row.composites.get(),
            modules: row.modules.get(),
        };
        if facts.composites == 0 || facts.modules == 0 {
            return Err(Oo7Error::Damaged {
                what: "numbers of composites and modules",
                at: database,
            });
        }
        drop(open);
        Ok(ObjectGraph {
            space,
            database,
            header: facts,
        })
    }

    /// The space that holds the database.
    pub fn space(&self) -> &S {
        &self.space
    }

    /// The database in a transaction that its space has begun.
    pub fn with_transaction<'s>(&'s self, ground: S::Open<'s>) -> GraphTransaction<S::Open<'s>> {
        GraphTransaction {
            transaction: ground,
            database: self.database,
            header: self.header,
            visited: VisitedNodes::default(),
        }
    }
}

impl<S: BlockSpace> Oo7Store for ObjectGraph<S> {
    type Open<'s>
        = GraphTransaction<S::Open<'s>>
    where
        Self: 's;

    fn begin(&self) -> Result<Self::Open<'_>, Oo7Error> {
        Ok(self.with_transaction(self.space.begin()?))
    }
}

/// A transaction of an [`ObjectGraph`].
#[derive(Debug)]
pub struct GraphTransaction<G> {
    transaction: G,
    database: u64,
    header: DatabaseHeader,
    visited: VisitedNodes,
}

macro_rules! references {
    ($($(#[$doc:meta])* $name:ident)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
            pub struct $name(pub(in crate::graph) u64);
        )*
    };
}

references! {
    /// A module, by its offset.
    ModuleAt
    /// An assembly, by its offset.
    AssemblyAt
    /// A composite, by its offset.
    CompositeAt
    /// An atomic part, by its offset.
    PartAt
    /// A document, by its offset.
    DocumentAt
}

impl<G: BlockTransaction> GraphTransaction<G> {
    fn row<T>(&mut self, at: u64, what: &'static str) -> Result<&T, Oo7Error>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        view(self.transaction.bytes(), at, what)
    }

    /// The underlying transaction.
    pub fn transaction_mut(&mut self) -> &mut G {
        &mut self.transaction
    }

    /// Owner of a composite's blocks.
    fn owner_of(&self, composite: u32) -> BlockOwner {
        let DatabaseHeader {
            composites, modules, ..
        } = self.header;
        BlockOwner::Module(module_of(composite, composites, modules))
    }

    /// Stores a row in a new block.
    fn add<T: IntoBytes + Immutable>(&mut self, near: BlockOwner, row: &T) -> Result<u64, Oo7Error> {
        let at = self.transaction.allocate(near, size_of::<T>())?;
        self.transaction.write(at, row.as_bytes())?;
        Ok(at)
    }

    fn find(&mut self, index: Oo7Index, key: IndexKey<'_>) -> Result<Option<u64>, Oo7Error> {
        let index = layout::index_at(self.database, index);
        tree::find(self.transaction.bytes(), index, key)
    }

    fn find_id(&mut self, index: Oo7Index, id: u32) -> Result<Option<u64>, Oo7Error> {
        self.find(index, IndexKey::Number(id.into()))
    }

    fn insert_entry(&mut self, index: Oo7Index, key: IndexKey<'_>, value: u64) -> Result<(), Oo7Error> {
        let index = layout::index_at(self.database, index);
        tree::insert(&mut self.transaction, &mut self.visited, index, (key, value))?;
        Ok(())
    }

    fn insert_id(&mut self, index: Oo7Index, id: u32, value: u64) -> Result<(), Oo7Error> {
        self.insert_entry(index, IndexKey::Number(id.into()), value)
    }

    fn remove_entry(&mut self, index: Oo7Index, key: IndexKey<'_>) -> Result<(), Oo7Error> {
        let index = layout::index_at(self.database, index);
        tree::remove(&mut self.transaction, &mut self.visited, index, key)?;
        Ok(())
    }

    /// The values of an index from one key to another.
    fn range(
        &mut self,
        index: Oo7Index,
        keys: (u64, u64),
        each: &mut dyn FnMut(u64),
    ) -> Result<(), Oo7Error> {
        let index = layout::index_at(self.database, index);
        tree::range(self.transaction.bytes(), index, keys, each)
    }

    /// A part's key in the index of dates.
    fn date_key(&self, date: u32, id: u32) -> u64 {
        match self.header.dates {
            DateIndex::All => u64::from(date) << 32 | u64::from(id),
            DateIndex::One => u64::from(date) << 32,
        }
    }
}
