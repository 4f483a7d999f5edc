//! Interface of a store.
//!
//! Database and operations are written once, over these two traits. They refer to objects by the store's own
//! kind of reference, and ask for what an operation needs at that step: a store in memory answers from the
//! object in place, a store of rows with one statement. Only the store itself serialises, and each change
//! names the changed value, so that a change of eight bytes can cost eight bytes.
//!
//! Methods that fill a vector append to it.

use std::fmt::Debug;
use std::hash::Hash;

use crate::error::Oo7Error;

/// A database of the benchmark. Any number of transactions may be open if the store allows it.
pub trait Oo7Store {
    /// An open transaction.
    type Open<'s>: Oo7Transaction
    where
        Self: 's;

    /// Begins a transaction. Stores with one at a time wait.
    ///
    /// # Errors
    ///
    /// Fails if the store does.
    fn begin(&self) -> Result<Self::Open<'_>, Oo7Error>;
}

/// A reference by which the store finds an object.
pub trait ObjectRef: Copy + Eq + Hash + Debug {}

impl<T: Copy + Eq + Hash + Debug> ObjectRef for T {}

/// Values of every design object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DesignValues {
    /// Number within its class, from 1.
    pub id: u32,
    /// Number of its type.
    pub kind: u32,
    /// Build date.
    pub date: u32,
}

/// An assembly's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AssemblyValues {
    /// Values of a design object. Complex and base assemblies are numbered separately.
    pub design: DesignValues,
    /// Whether it is a base assembly, with composites instead of assemblies below it.
    pub base: bool,
}

/// An atomic part's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartValues {
    /// Values of a design object.
    pub design: DesignValues,
    /// X coordinate.
    pub x: u32,
    /// Y coordinate.
    pub y: u32,
    /// Id of a document.
    pub document: u32,
}

/// A connection's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionValues {
    /// Number of its type.
    pub kind: u32,
    /// Length of the connection.
    pub length: u32,
}

/// A connection and the parts at its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartLink<P> {
    /// The part at its beginning.
    pub from: P,
    /// The part at its end.
    pub to: P,
    /// The connection's values.
    pub connection: ConnectionValues,
}

/// Kind of a base assembly's use of a composite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CompositeUse {
    /// A use of one of its own module's composites.
    Private,
    /// A use of one of all composites.
    Shared,
}

/// Direction in which a part's connections are followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkDirection {
    /// Connections that begin at the part.
    Out,
    /// Connections that end at the part.
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

/// An open transaction. Dropping it without a commit undoes its changes, if the store can.
///
/// It may block changes of the data that it reads until its end, so a thread with an open transaction must
/// not wait for another thread.
pub trait Oo7Transaction {
    /// A module.
    type Module: ObjectRef;
    /// An assembly, complex or base.
    type Assembly: ObjectRef;
    /// A composite part.
    type Composite: ObjectRef;
    /// An atomic part.
    type Part: ObjectRef;
    /// A document.
    type Document: ObjectRef;

    // Lookups.

    /// The module with this id.
    fn module(&mut self, id: u32) -> Result<Option<Self::Module>, Oo7Error>;
    /// The base assembly with this id.
    fn base_assembly(&mut self, id: u32) -> Result<Option<Self::Assembly>, Oo7Error>;
    /// The composite with this id.
    fn composite(&mut self, id: u32) -> Result<Option<Self::Composite>, Oo7Error>;
    /// The atomic part with this id.
    fn part(&mut self, id: u32) -> Result<Option<Self::Part>, Oo7Error>;
    /// The document with this id.
    fn document(&mut self, id: u32) -> Result<Option<Self::Document>, Oo7Error>;
    /// The document with this title.
    fn document_titled(&mut self, title: &[u8]) -> Result<Option<Self::Document>, Oo7Error>;
    /// The atomic parts built from the first to the last date, by the date index.
    fn parts_dated(&mut self, first: u32, last: u32, into: &mut Vec<Self::Part>) -> Result<(), Oo7Error>;
    /// All atomic parts, in the order of their ids.
    fn all_parts(&mut self, into: &mut Vec<Self::Part>) -> Result<(), Oo7Error>;
    /// All base assemblies, in the order of their ids.
    fn all_base_assemblies(&mut self, into: &mut Vec<Self::Assembly>) -> Result<(), Oo7Error>;
    /// All composites, in the order of their ids.
    fn all_composites(&mut self, into: &mut Vec<Self::Composite>) -> Result<(), Oo7Error>;
    /// Number of entries of an index.
    fn entries(&mut self, index: Oo7Index) -> Result<u64, Oo7Error>;

    // Modules and assemblies.

    /// A module's values.
    fn module_design(&mut self, module: Self::Module) -> Result<DesignValues, Oo7Error>;
    /// The assembly at the top of a module.
    fn top(&mut self, module: Self::Module) -> Result<Self::Assembly, Oo7Error>;
    /// Passes a module's manual to `read`.
    fn manual(&mut self, module: Self::Module, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error>;
    /// The manual's first byte and the last one of its text, without reading the rest.
    fn manual_ends(&mut self, module: Self::Module) -> Result<(u8, u8), Oo7Error>;
    /// An assembly's values.
    fn assembly(&mut self, assembly: Self::Assembly) -> Result<AssemblyValues, Oo7Error>;
    /// The parent assembly.
    fn parent(&mut self, assembly: Self::Assembly) -> Result<Option<Self::Assembly>, Oo7Error>;
    /// The module that an assembly belongs to.
    fn module_of(&mut self, assembly: Self::Assembly) -> Result<Self::Module, Oo7Error>;
    /// The child assemblies; none for a base assembly.
    fn children(&mut self, assembly: Self::Assembly, into: &mut Vec<Self::Assembly>) -> Result<(), Oo7Error>;
    /// The composites that a base assembly uses, each as often as it is used.
    fn components(
        &mut self,
        assembly: Self::Assembly,
        how: CompositeUse,
        into: &mut Vec<Self::Composite>,
    ) -> Result<(), Oo7Error>;

    // Composites and documents.

    /// A composite's values.
    fn composite_design(&mut self, composite: Self::Composite) -> Result<DesignValues, Oo7Error>;
    /// The part at which a composite's graph is entered: its first one.
    fn root_part(&mut self, composite: Self::Composite) -> Result<Self::Part, Oo7Error>;
    /// A composite's parts.
    fn parts(&mut self, composite: Self::Composite, into: &mut Vec<Self::Part>) -> Result<(), Oo7Error>;
    /// A composite's document.
    fn documentation(&mut self, composite: Self::Composite) -> Result<Self::Document, Oo7Error>;
    /// The base assemblies that use a composite, each as often as it does.
    fn users(
        &mut self,
        composite: Self::Composite,
        how: CompositeUse,
        into: &mut Vec<Self::Assembly>,
    ) -> Result<(), Oo7Error>;
    /// A document's id.
    fn document_id(&mut self, document: Self::Document) -> Result<u32, Oo7Error>;
    /// A document's title, padded with zeros.
    fn title(&mut self, document: Self::Document) -> Result<[u8; 40], Oo7Error>;
    /// The composite that a document describes.
    fn described(&mut self, document: Self::Document) -> Result<Self::Composite, Oo7Error>;
    /// Passes a document's text to `read`.
    fn text(&mut self, document: Self::Document, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error>;

    // Atomic parts.

    /// An atomic part's values.
    fn part_values(&mut self, part: Self::Part) -> Result<PartValues, Oo7Error>;
    /// The composite that a part belongs to.
    fn composite_of(&mut self, part: Self::Part) -> Result<Self::Composite, Oo7Error>;
    /// The parts to which a part's connections lead, with their ids.
    fn targets(&mut self, part: Self::Part, into: &mut Vec<(Self::Part, u32)>) -> Result<(), Oo7Error>;
    /// A part's connections.
    fn links(
        &mut self,
        part: Self::Part,
        direction: LinkDirection,
        into: &mut Vec<PartLink<Self::Part>>,
    ) -> Result<(), Oo7Error>;

    // Changes.

    /// Exchanges a part's x and y.
    fn swap(&mut self, part: Self::Part) -> Result<(), Oo7Error>;
    /// Sets a part's build date, in the index as well.
    fn set_date(&mut self, part: Self::Part, date: u32) -> Result<(), Oo7Error>;
    /// Replaces a document's text.
    fn set_text(&mut self, document: Self::Document, text: &[u8]) -> Result<(), Oo7Error>;

    // Building.

    /// Adds a module without assemblies.
    fn add_module(&mut self, design: DesignValues, manual: &[u8]) -> Result<Self::Module, Oo7Error>;
    /// Adds an assembly below another; the first one of a module is its top.
    fn add_assembly(
        &mut self,
        module: Self::Module,
        parent: Option<Self::Assembly>,
        assembly: AssemblyValues,
    ) -> Result<Self::Assembly, Oo7Error>;
    /// Adds a composite and its document, which has the composite's id.
    fn add_composite(
        &mut self,
        design: DesignValues,
        title: [u8; 40],
        text: &[u8],
    ) -> Result<Self::Composite, Oo7Error>;
    /// Adds an atomic part to a composite; the first one is its root.
    fn add_part(&mut self, composite: Self::Composite, part: PartValues) -> Result<Self::Part, Oo7Error>;
    /// Connects two parts.
    fn connect(&mut self, link: PartLink<Self::Part>) -> Result<(), Oo7Error>;
    /// Adds one more use of a composite by a base assembly.
    fn add_use(
        &mut self,
        assembly: Self::Assembly,
        how: CompositeUse,
        composite: Self::Composite,
    ) -> Result<(), Oo7Error>;
    /// Removes a composite with its document, parts, connections and every use.
    fn remove_composite(&mut self, composite: Self::Composite) -> Result<(), Oo7Error>;
    /// Marks the database as complete, so that it may be opened.
    fn complete(&mut self) -> Result<(), Oo7Error>;

    /// Commits the transaction with the store's durability.
    fn commit(self) -> Result<(), Oo7Error>;
}
