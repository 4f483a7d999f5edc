//! What the benchmark needs of a store.
//!
//! The database and the operations are written once, over these two traits. They name objects by references
//! of the store's own kind and ask for what an operation needs at that step: a store in memory answers from
//! the object in place, a store of rows with one statement. Nothing is serialised that the store does not
//! serialise itself, and a change names what changes, so that eight bytes can be eight bytes.
//!
//! Methods that fill a vector add to it.

use std::fmt::Debug;
use std::hash::Hash;

use crate::error::Oo7Error;

/// A database of the benchmark, of which any number of transactions may be open if the store allows it.
pub trait Oo7Store {
    /// An open transaction.
    type Open<'s>: Oo7Transaction
    where
        Self: 's;

    /// Begins a transaction. Stores that have one at a time wait.
    fn begin(&self) -> Result<Self::Open<'_>, Oo7Error>;
}

/// A reference to an object: what the store finds it by.
pub trait ObjectRef: Copy + Eq + Hash + Debug {}

impl<T: Copy + Eq + Hash + Debug> ObjectRef for T {}

/// What every design object has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesignValues {
    /// Counts from 1 within its class.
    pub id: u32,
    /// The number of its type.
    pub kind: u32,
    /// When it was built.
    pub date: u32,
}

/// An assembly's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssemblyValues {
    /// What every design object has. Complex and base assemblies count for themselves.
    pub design: DesignValues,
    /// It has composites below it, no assemblies.
    pub base: bool,
}

/// An atomic part's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartValues {
    /// What every design object has.
    pub design: DesignValues,
    /// Where it lies.
    pub x: u32,
    /// Where it lies.
    pub y: u32,
    /// The id of some document.
    pub document: u32,
}

/// A connection's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionValues {
    /// The number of its type.
    pub kind: u32,
    /// How long it is.
    pub length: u32,
}

/// A connection and the parts at its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLink<P> {
    /// Where it begins.
    pub from: P,
    /// Where it ends.
    pub to: P,
    /// The connection's values.
    pub connection: ConnectionValues,
}

/// How a base assembly uses a composite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CompositeUse {
    /// Out of its own module's composites.
    Private,
    /// Out of all.
    Shared,
}

/// Which way a part's connections are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDirection {
    /// Connections that begin there.
    Out,
    /// Connections that end there.
    In,
}

/// An index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Oo7Index {
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
pub const INDEXES: [Oo7Index; 7] = [
    Oo7Index::Module,
    Oo7Index::Base,
    Oo7Index::Composite,
    Oo7Index::Document,
    Oo7Index::Title,
    Oo7Index::Part,
    Oo7Index::Date,
];

/// An open transaction. Dropping it without a commit takes its changes back, where the store can undo.
///
/// It may keep others from changing what it reads until it ends: whoever has one open waits for no other
/// thread.
pub trait Oo7Transaction {
    /// A module.
    type Module: ObjectRef;
    /// An assembly, complex or base.
    type AssemblyValues: ObjectRef;
    /// A composite part.
    type Composite: ObjectRef;
    /// An atomic part.
    type PartValues: ObjectRef;
    /// A document.
    type Document: ObjectRef;

    // Finding.

    /// The module with this id.
    fn module(&mut self, id: u32) -> Result<Option<Self::Module>, Oo7Error>;
    /// The base assembly with this id.
    fn base_assembly(&mut self, id: u32) -> Result<Option<Self::AssemblyValues>, Oo7Error>;
    /// The composite with this id.
    fn composite(&mut self, id: u32) -> Result<Option<Self::Composite>, Oo7Error>;
    /// The atomic part with this id.
    fn part(&mut self, id: u32) -> Result<Option<Self::PartValues>, Oo7Error>;
    /// The document with this id.
    fn document(&mut self, id: u32) -> Result<Option<Self::Document>, Oo7Error>;
    /// The document with this title.
    fn document_titled(&mut self, title: &[u8]) -> Result<Option<Self::Document>, Oo7Error>;
    /// The atomic parts built from the first to the last date, by the index of dates.
    fn parts_dated(
        &mut self,
        first: u32,
        last: u32,
        into: &mut Vec<Self::PartValues>,
    ) -> Result<(), Oo7Error>;
    /// All atomic parts, in the order of their ids.
    fn all_parts(&mut self, into: &mut Vec<Self::PartValues>) -> Result<(), Oo7Error>;
    /// All base assemblies, in the order of their ids.
    fn all_base_assemblies(&mut self, into: &mut Vec<Self::AssemblyValues>) -> Result<(), Oo7Error>;
    /// All composites, in the order of their ids.
    fn all_composites(&mut self, into: &mut Vec<Self::Composite>) -> Result<(), Oo7Error>;
    /// Entries of an index.
    fn entries(&mut self, index: Oo7Index) -> Result<u64, Oo7Error>;

    // Modules and assemblies.

    /// A module's values.
    fn module_design(&mut self, module: Self::Module) -> Result<DesignValues, Oo7Error>;
    /// The assembly at the top of a module.
    fn top(&mut self, module: Self::Module) -> Result<Self::AssemblyValues, Oo7Error>;
    /// Lends a module's manual.
    fn manual(&mut self, module: Self::Module, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error>;
    /// The manual's first byte and the last one of its text, no more of it being read.
    fn manual_ends(&mut self, module: Self::Module) -> Result<(u8, u8), Oo7Error>;
    /// An assembly's values.
    fn assembly(&mut self, assembly: Self::AssemblyValues) -> Result<AssemblyValues, Oo7Error>;
    /// The assembly above.
    fn parent(&mut self, assembly: Self::AssemblyValues) -> Result<Option<Self::AssemblyValues>, Oo7Error>;
    /// The module that an assembly belongs to.
    fn module_of(&mut self, assembly: Self::AssemblyValues) -> Result<Self::Module, Oo7Error>;
    /// The assemblies below; none below a base assembly.
    fn children(
        &mut self,
        assembly: Self::AssemblyValues,
        into: &mut Vec<Self::AssemblyValues>,
    ) -> Result<(), Oo7Error>;
    /// The composites that a base assembly uses, as often as it uses them.
    fn components(
        &mut self,
        assembly: Self::AssemblyValues,
        how: CompositeUse,
        into: &mut Vec<Self::Composite>,
    ) -> Result<(), Oo7Error>;

    // Composites and documents.

    /// A composite's values.
    fn composite_design(&mut self, composite: Self::Composite) -> Result<DesignValues, Oo7Error>;
    /// The part in which a composite's graph is entered: the first that was made.
    fn root_part(&mut self, composite: Self::Composite) -> Result<Self::PartValues, Oo7Error>;
    /// A composite's parts.
    fn parts(&mut self, composite: Self::Composite, into: &mut Vec<Self::PartValues>)
    -> Result<(), Oo7Error>;
    /// A composite's document.
    fn documentation(&mut self, composite: Self::Composite) -> Result<Self::Document, Oo7Error>;
    /// The base assemblies that use a composite, as often as they use it.
    fn users(
        &mut self,
        composite: Self::Composite,
        how: CompositeUse,
        into: &mut Vec<Self::AssemblyValues>,
    ) -> Result<(), Oo7Error>;
    /// A document's id.
    fn document_id(&mut self, document: Self::Document) -> Result<u32, Oo7Error>;
    /// A document's title, zeros behind it.
    fn title(&mut self, document: Self::Document) -> Result<[u8; 40], Oo7Error>;
    /// The composite that a document describes.
    fn described(&mut self, document: Self::Document) -> Result<Self::Composite, Oo7Error>;
    /// Lends a document's text.
    fn text(&mut self, document: Self::Document, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error>;

    // Atomic parts.

    /// An atomic part's values.
    fn part_values(&mut self, part: Self::PartValues) -> Result<PartValues, Oo7Error>;
    /// The composite that a part belongs to.
    fn composite_of(&mut self, part: Self::PartValues) -> Result<Self::Composite, Oo7Error>;
    /// The parts to which a part's connections lead, with their ids.
    fn targets(
        &mut self,
        part: Self::PartValues,
        into: &mut Vec<(Self::PartValues, u32)>,
    ) -> Result<(), Oo7Error>;
    /// A part's connections.
    fn links(
        &mut self,
        part: Self::PartValues,
        direction: LinkDirection,
        into: &mut Vec<PartLink<Self::PartValues>>,
    ) -> Result<(), Oo7Error>;

    // Changes.

    /// Exchanges a part's x and y.
    fn swap(&mut self, part: Self::PartValues) -> Result<(), Oo7Error>;
    /// Sets a part's build date, in the index too.
    fn set_date(&mut self, part: Self::PartValues, date: u32) -> Result<(), Oo7Error>;
    /// Replaces a document's text.
    fn set_text(&mut self, document: Self::Document, text: &[u8]) -> Result<(), Oo7Error>;

    // Building.

    /// Adds a module without assemblies.
    fn add_module(&mut self, design: DesignValues, manual: &[u8]) -> Result<Self::Module, Oo7Error>;
    /// Adds an assembly below another; the first one of a module is at its top.
    fn add_assembly(
        &mut self,
        module: Self::Module,
        parent: Option<Self::AssemblyValues>,
        assembly: AssemblyValues,
    ) -> Result<Self::AssemblyValues, Oo7Error>;
    /// Adds a composite and its document. The document has the composite's id.
    fn add_composite(
        &mut self,
        design: DesignValues,
        title: [u8; 40],
        text: &[u8],
    ) -> Result<Self::Composite, Oo7Error>;
    /// Adds an atomic part to a composite; the first one is its root.
    fn add_part(
        &mut self,
        composite: Self::Composite,
        part: PartValues,
    ) -> Result<Self::PartValues, Oo7Error>;
    /// Connects two parts.
    fn connect(&mut self, link: PartLink<Self::PartValues>) -> Result<(), Oo7Error>;
    /// Has a base assembly use a composite, once more.
    fn add_use(
        &mut self,
        assembly: Self::AssemblyValues,
        how: CompositeUse,
        composite: Self::Composite,
    ) -> Result<(), Oo7Error>;
    /// Removes a composite with its document, parts, connections and every use.
    fn remove_composite(&mut self, composite: Self::Composite) -> Result<(), Oo7Error>;
    /// The database is whole: from now on it may be opened.
    fn complete(&mut self) -> Result<(), Oo7Error>;

    /// Ends the transaction: its changes are as safe as the store was told to make them.
    fn commit(self) -> Result<(), Oo7Error>;
}
