//! The store in memory that has blocks: objects in place, references as offsets, indexes as trees beside them.
//!
//! It knows its memory as a [`Space`]: [`OnHeap`] is a persistent heap in recoverable memory, whatever log that is
//! on; [`OnSharedHeap`] is one in a region of several machines. Objects are read where they stand; each change declares the bytes that change and no others. Layout:
//! `docs/oo7.md`.

mod bag;
mod ground;
mod heap;
mod layout;
mod objects;
mod shared;
mod tree;
mod work;

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use ground::{Ground, Near, Space};
pub use heap::{Commits, HeapOpen, OnHeap};
pub use shared::{OnSharedHeap, SharedOpen};

use crate::error::StoreError;
use crate::size::{Parameters, module_of};
use crate::store::{Index, Store};
use layout::{DatabaseRow, IndexRow, MAGIC, VERSION, view};
use tree::{Key, Met};

/// How atomic parts are found by their build date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DateIndex {
    /// All parts of a date: what the benchmark asks for.
    All,
    /// One part a date, the first that was entered, as in the port of 1994: whoever changes its date takes the entry of
    /// the old one with it. For comparing the number of updates with the published ones; queries by date find too
    /// little.
    One,
}

/// An OO7 database in memory that has blocks.
#[derive(Debug)]
pub struct Graph<S> {
    space: S,
    database: u64,
    facts: Facts,
}

/// What is said of a database where it begins.
#[derive(Clone, Copy, Debug)]
struct Facts {
    dates: DateIndex,
    connections: u32,
    /// Of a module.
    composites: u32,
    modules: u32,
}

impl<S: Space> Graph<S> {
    /// Makes an empty database, for [`crate::build`]. What was in the space before is left alone and lost.
    pub fn create(space: S, parameters: &Parameters, dates: DateIndex) -> Result<Graph<S>, StoreError> {
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
        let database = open.allocate(Near::Common, size_of::<DatabaseRow>())?;
        open.write(database, row.as_bytes())?;
        open.set_root(database)?;
        open.commit()?;
        Ok(Graph {
            space,
            database,
            facts: Facts {
                dates,
                connections: parameters.connections,
                composites: parameters.composites,
                modules: parameters.modules,
            },
        })
    }

    /// Opens a database that was built to its end.
    pub fn open(space: S) -> Result<Graph<S>, StoreError> {
        let mut open = space.begin()?;
        let database = open.root()?;
        if database == 0 {
            return Err(StoreError::Missing {
                why: "the heap has no root",
            });
        }
        let row: &DatabaseRow = view(open.bytes(), database, "a database")?;
        if row.magic != MAGIC || row.version.get() != VERSION {
            return Err(StoreError::Missing {
                why: "the heap's root is something else",
            });
        }
        if row.complete.get() != 1 {
            return Err(StoreError::Missing {
                why: "its building was cut off",
            });
        }
        let facts = Facts {
            dates: match row.date_map.get() {
                0 => DateIndex::All,
                _ => DateIndex::One,
            },
            connections: row.connections.get(),
            composites: row.composites.get(),
            modules: row.modules.get(),
        };
        if facts.composites == 0 || facts.modules == 0 {
            return Err(StoreError::Damaged {
                what: "numbers of composites and modules",
                at: database,
            });
        }
        drop(open);
        Ok(Graph {
            space,
            database,
            facts,
        })
    }

    /// What the database is in.
    pub fn space(&self) -> &S {
        &self.space
    }

    /// The database in a transaction that its space has begun.
    pub fn within<'s>(&'s self, ground: S::Open<'s>) -> GraphOpen<S::Open<'s>> {
        GraphOpen {
            ground,
            database: self.database,
            facts: self.facts,
            met: Met::default(),
        }
    }
}

impl<S: Space> Store for Graph<S> {
    type Open<'s>
        = GraphOpen<S::Open<'s>>
    where
        Self: 's;

    fn begin(&self) -> Result<Self::Open<'_>, StoreError> {
        Ok(self.within(self.space.begin()?))
    }
}

/// A transaction of a [`Graph`].
#[derive(Debug)]
pub struct GraphOpen<G> {
    ground: G,
    database: u64,
    facts: Facts,
    met: Met,
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

impl<G: Ground> GraphOpen<G> {
    fn row<T>(&mut self, at: u64, what: &'static str) -> Result<&T, StoreError>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        view(self.ground.bytes(), at, what)
    }

    /// What the transaction stands on.
    pub fn ground_mut(&mut self) -> &mut G {
        &mut self.ground
    }

    /// Where a composite and all that it owns belongs.
    fn home_of(&self, composite: u32) -> Near {
        let Facts {
            composites, modules, ..
        } = self.facts;
        Near::Module(module_of(composite, composites, modules))
    }

    /// Stores a row in a block of its own.
    fn add<T: IntoBytes + Immutable>(&mut self, near: Near, row: &T) -> Result<u64, StoreError> {
        let at = self.ground.allocate(near, size_of::<T>())?;
        self.ground.write(at, row.as_bytes())?;
        Ok(at)
    }

    fn find(&mut self, index: Index, key: Key<'_>) -> Result<Option<u64>, StoreError> {
        let index = layout::index_at(self.database, index);
        tree::find(self.ground.bytes(), index, key)
    }

    fn find_id(&mut self, index: Index, id: u32) -> Result<Option<u64>, StoreError> {
        self.find(index, Key::Number(id.into()))
    }

    fn enter(&mut self, index: Index, key: Key<'_>, value: u64) -> Result<(), StoreError> {
        let index = layout::index_at(self.database, index);
        tree::insert(&mut self.ground, &mut self.met, index, (key, value))?;
        Ok(())
    }

    fn enter_id(&mut self, index: Index, id: u32, value: u64) -> Result<(), StoreError> {
        self.enter(index, Key::Number(id.into()), value)
    }

    fn leave(&mut self, index: Index, key: Key<'_>) -> Result<(), StoreError> {
        let index = layout::index_at(self.database, index);
        tree::remove(&mut self.ground, &mut self.met, index, key)?;
        Ok(())
    }

    /// The values of an index from one key to another.
    fn range(&mut self, index: Index, keys: (u64, u64), each: &mut dyn FnMut(u64)) -> Result<(), StoreError> {
        let index = layout::index_at(self.database, index);
        tree::range(self.ground.bytes(), index, keys, each)
    }

    /// A part's key in the index of dates.
    fn date_key(&self, date: u32, id: u32) -> u64 {
        match self.facts.dates {
            DateIndex::All => u64::from(date) << 32 | u64::from(id),
            DateIndex::One => u64::from(date) << 32,
        }
    }
}
