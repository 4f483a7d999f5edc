//! What the benchmark needs of a store.
//!
//! The database and the operations are written once, over these two traits. They name objects by references of the
//! store's own kind and ask for what an operation needs at that step: a store in memory answers from the object in
//! place, a store of rows with one statement. Nothing is serialised that the store does not serialise itself, and a
//! change names what changes, so that eight bytes can be eight bytes.
//!
//! Methods that fill a vector add to it.

use std::fmt::Debug;
use std::hash::Hash;

use crate::error::StoreError;

/// A database of the benchmark, of which any number of transactions may be open if the store allows it.
pub trait Store {
    /// An open transaction.
    type Open<'s>: Work
    where
        Self: 's;

    /// Begins a transaction. Stores that have one at a time wait.
    fn begin(&self) -> Result<Self::Open<'_>, StoreError>;
}

/// A reference to an object: what the store finds it by.
pub trait Reference: Copy + Eq + Hash + Debug {}

impl<T: Copy + Eq + Hash + Debug> Reference for T {}

/// What every design object has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Design {
    /// Counts from 1 within its class.
    pub id: u32,
    /// The number of its type.
    pub kind: u32,
    /// When it was built.
    pub date: u32,
}

/// An assembly's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assembly {
    /// What every design object has. Complex and base assemblies count for themselves.
    pub design: Design,
    /// It has composites below it, no assemblies.
    pub base: bool,
}

/// An atomic part's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// What every design object has.
    pub design: Design,
    /// Where it lies.
    pub x: u32,
    /// Where it lies.
    pub y: u32,
    /// The id of some document.
    pub document: u32,
}

/// A connection's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The number of its type.
    pub kind: u32,
    /// How long it is.
    pub length: u32,
}

/// A connection and the parts at its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link<P> {
    /// Where it begins.
    pub from: P,
    /// Where it ends.
    pub to: P,
    /// The connection's values.
    pub connection: Connection,
}

/// How a base assembly uses a composite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Use {
    /// Out of its own module's composites.
    Private,
    /// Out of all.
    Shared,
}

/// Which way a part's connections are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Connections that begin there.
    Out,
    /// Connections that end there.
    In,
}

/// An index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Index {
    /// Module by id.
    Module,
    /// Base assembly by id.
    Base,
    /// Composite by id.
    Composite,
    /// Document by id.
    Document,
    /// Document by title.
    Title,
    /// Atomic part by id.
    Part,
    /// Atomic parts by build date.
    Date,
}

/// Every index.
pub const INDEXES: [Index; 7] = [
    Index::Module,
    Index::Base,
    Index::Composite,
    Index::Document,
    Index::Title,
    Index::Part,
    Index::Date,
];

/// An open transaction. Dropping it without a commit takes its changes back, where the store can undo.
///
/// It may keep others from changing what it reads until it ends: whoever has one open waits for no other thread.
pub trait Work {
    /// A module.
    type Module: Reference;
    /// An assembly, complex or base.
    type Assembly: Reference;
    /// A composite part.
    type Composite: Reference;
    /// An atomic part.
    type Part: Reference;
    /// A document.
    type Document: Reference;

    // Finding.

    /// The module with this id.
    fn module(&mut self, id: u32) -> Result<Option<Self::Module>, StoreError>;
    /// The base assembly with this id.
    fn base_assembly(&mut self, id: u32) -> Result<Option<Self::Assembly>, StoreError>;
    /// The composite with this id.
    fn composite(&mut self, id: u32) -> Result<Option<Self::Composite>, StoreError>;
    /// The atomic part with this id.
    fn part(&mut self, id: u32) -> Result<Option<Self::Part>, StoreError>;
    /// The document with this id.
    fn document(&mut self, id: u32) -> Result<Option<Self::Document>, StoreError>;
    /// The document with this title.
    fn document_titled(&mut self, title: &[u8]) -> Result<Option<Self::Document>, StoreError>;
    /// The atomic parts built from the first to the last date, by the index of dates.
    fn parts_dated(&mut self, first: u32, last: u32, into: &mut Vec<Self::Part>) -> Result<(), StoreError>;
    /// All atomic parts, in the order of their ids.
    fn all_parts(&mut self, into: &mut Vec<Self::Part>) -> Result<(), StoreError>;
    /// All base assemblies, in the order of their ids.
    fn all_base_assemblies(&mut self, into: &mut Vec<Self::Assembly>) -> Result<(), StoreError>;
    /// All composites, in the order of their ids.
    fn all_composites(&mut self, into: &mut Vec<Self::Composite>) -> Result<(), StoreError>;
    /// Entries of an index.
    fn entries(&mut self, index: Index) -> Result<u64, StoreError>;

    // Modules and assemblies.

    /// A module's values.
    fn module_design(&mut self, module: Self::Module) -> Result<Design, StoreError>;
    /// The assembly at the top of a module.
    fn top(&mut self, module: Self::Module) -> Result<Self::Assembly, StoreError>;
    /// Lends a module's manual.
    fn manual(&mut self, module: Self::Module, read: &mut dyn FnMut(&[u8])) -> Result<(), StoreError>;
    /// The manual's first byte and the last one of its text, no more of it being read.
    fn manual_ends(&mut self, module: Self::Module) -> Result<(u8, u8), StoreError>;
    /// An assembly's values.
    fn assembly(&mut self, assembly: Self::Assembly) -> Result<Assembly, StoreError>;
    /// The assembly above.
    fn parent(&mut self, assembly: Self::Assembly) -> Result<Option<Self::Assembly>, StoreError>;
    /// The module that an assembly belongs to.
    fn module_of(&mut self, assembly: Self::Assembly) -> Result<Self::Module, StoreError>;
    /// The assemblies below; none below a base assembly.
    fn children(
        &mut self,
        assembly: Self::Assembly,
        into: &mut Vec<Self::Assembly>,
    ) -> Result<(), StoreError>;
    /// The composites that a base assembly uses, as often as it uses them.
    fn components(
        &mut self,
        assembly: Self::Assembly,
        how: Use,
        into: &mut Vec<Self::Composite>,
    ) -> Result<(), StoreError>;

    // Composites and documents.

    /// A composite's values.
    fn composite_design(&mut self, composite: Self::Composite) -> Result<Design, StoreError>;
    /// The part in which a composite's graph is entered: the first that was made.
    fn root_part(&mut self, composite: Self::Composite) -> Result<Self::Part, StoreError>;
    /// A composite's parts.
    fn parts(&mut self, composite: Self::Composite, into: &mut Vec<Self::Part>) -> Result<(), StoreError>;
    /// A composite's document.
    fn documentation(&mut self, composite: Self::Composite) -> Result<Self::Document, StoreError>;
    /// The base assemblies that use a composite, as often as they use it.
    fn users(
        &mut self,
        composite: Self::Composite,
        how: Use,
        into: &mut Vec<Self::Assembly>,
    ) -> Result<(), StoreError>;
    /// A document's id.
    fn document_id(&mut self, document: Self::Document) -> Result<u32, StoreError>;
    /// A document's title, zeros behind it.
    fn title(&mut self, document: Self::Document) -> Result<[u8; 40], StoreError>;
    /// The composite that a document describes.
    fn described(&mut self, document: Self::Document) -> Result<Self::Composite, StoreError>;
    /// Lends a document's text.
    fn text(&mut self, document: Self::Document, read: &mut dyn FnMut(&[u8])) -> Result<(), StoreError>;

    // Atomic parts.

    /// An atomic part's values.
    fn part_values(&mut self, part: Self::Part) -> Result<Part, StoreError>;
    /// The composite that a part belongs to.
    fn composite_of(&mut self, part: Self::Part) -> Result<Self::Composite, StoreError>;
    /// The parts to which a part's connections lead, with their ids.
    fn targets(&mut self, part: Self::Part, into: &mut Vec<(Self::Part, u32)>) -> Result<(), StoreError>;
    /// A part's connections.
    fn links(
        &mut self,
        part: Self::Part,
        direction: Direction,
        into: &mut Vec<Link<Self::Part>>,
    ) -> Result<(), StoreError>;

    // Changes.

    /// Exchanges a part's x and y.
    fn swap(&mut self, part: Self::Part) -> Result<(), StoreError>;
    /// Sets a part's build date, in the index too.
    fn set_date(&mut self, part: Self::Part, date: u32) -> Result<(), StoreError>;
    /// Replaces a document's text.
    fn set_text(&mut self, document: Self::Document, text: &[u8]) -> Result<(), StoreError>;

    // Building.

    /// Adds a module without assemblies.
    fn add_module(&mut self, design: Design, manual: &[u8]) -> Result<Self::Module, StoreError>;
    /// Adds an assembly below another; the first one of a module is at its top.
    fn add_assembly(
        &mut self,
        module: Self::Module,
        parent: Option<Self::Assembly>,
        assembly: Assembly,
    ) -> Result<Self::Assembly, StoreError>;
    /// Adds a composite and its document. The document has the composite's id.
    fn add_composite(
        &mut self,
        design: Design,
        title: [u8; 40],
        text: &[u8],
    ) -> Result<Self::Composite, StoreError>;
    /// Adds an atomic part to a composite; the first one is its root.
    fn add_part(&mut self, composite: Self::Composite, part: Part) -> Result<Self::Part, StoreError>;
    /// Connects two parts.
    fn connect(&mut self, link: Link<Self::Part>) -> Result<(), StoreError>;
    /// Has a base assembly use a composite, once more.
    fn add_use(
        &mut self,
        assembly: Self::Assembly,
        how: Use,
        composite: Self::Composite,
    ) -> Result<(), StoreError>;
    /// Removes a composite with its document, parts, connections and every use.
    fn remove_composite(&mut self, composite: Self::Composite) -> Result<(), StoreError>;
    /// The database is whole: from now on it may be opened.
    fn complete(&mut self) -> Result<(), StoreError>;

    /// Ends the transaction: its changes are as safe as the store was told to make them.
    fn commit(self) -> Result<(), StoreError>;
}
