//! OO7, the benchmark of object databases, for any store.
//!
//! A design library of composite parts, each a graph of atomic parts, below a tree of assemblies, with
//! traversals, queries and structural changes. Database and operations are written once, over [`Oo7Store`],
//! so that a measurement compares stores. Layout, golden values and deviations: `docs/results/oo7.md`.
//!
//! ```
//! use netram_oo7::{DatabaseSize, Oo7Parameters, Oo7Store, Oo7Transaction, Operation, PlainStore, build};
//!
//! # fn main() -> Result<(), netram_oo7::Oo7Error> {
//! let parameters = Oo7Parameters::of(DatabaseSize::Tiny, 3);
//! let store = PlainStore::default();
//! build(&store, &parameters)?;
//! let mut open = store.begin()?;
//! let visited = Operation::T1.run(&mut open, &parameters, 1)?;
//! assert_eq!(visited, 2187 * 20);
//! open.commit()?;
//! # Ok(())
//! # }
//! ```
//!
//! | module | does |
//! |---|---|
//! | [`size`] | the databases: tiny, small, medium, large |
//! | [`store`] | the interface of a store |
//! | [`generate`] | builds a database |
//! | [`operation`] | traversals, queries, structural changes, the mix of several users |
//! | [`graph`] | the store in memory with blocks: a persistent heap |
//! | [`plain`] | the store in ordinary structures, for comparison |
//! | [`audit()`] | checks a whole database, each reference in both directions |
//! | [`user`] | a user of the mix at a node of a shared region |
//! | [`counting_log`] | counts what commits log: ranges, bytes, pages |
#![forbid(unsafe_code)]

pub mod audit;
pub mod counting_log;
pub mod error;
pub mod generate;
pub mod graph;
pub mod operation;
pub mod plain;
pub mod random;
pub mod size;
pub mod store;
mod text;
pub mod user;

pub use audit::{AuditError, DatabaseAudit, audit};
pub use counting_log::{CountingLog, LogCounts};
pub use error::Oo7Error;
pub use generate::{SEED, build};
pub use graph::{DateIndex, HeapSpace, ObjectGraph, SharedHeapSpace};
pub use operation::{Operation, mix};
pub use plain::PlainStore;
pub use size::{DatabaseSize, Oo7Parameters};
pub use store::{Oo7Store, Oo7Transaction};
