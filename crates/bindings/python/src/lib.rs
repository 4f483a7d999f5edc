//! Recoverable and shared memory from Python: the extension module `netram._netram`.
//!
//! A thin binding: `netram-rvm` defines the calls and `netram-store` the log. This crate adds the rules that
//! Python needs. Memory that Python objects view stays mapped; the interpreter is released while a call
//! waits; a forked child is refused; every error is an exception in `python/netram/errors.py`.
//!
//! | module | has |
//! |---|---|
//! | `open` | `open` and `create`, their settings |
//! | `store` | an open log, and its closing |
//! | `open_log` | state shared by the store, segments, regions and transactions of one log |
//! | `locks` | taking locks beside the interpreter's |
//! | `slot` | objects that one thread at a time uses until they end: transactions, readers |
//! | `key` | the key in `memory[...]` |
//! | `segment` | a segment, to be mapped |
//! | `region` | mapped memory as a buffer; finding the region of an array |
//! | `window` | a region's memory and the views of it |
//! | `transaction` | ranges, commit, abort |
//! | `heap` | the persistent heap of a region |
//! | `nodes` | shared regions |
//! | `far` | arenas of far memory |
//! | `report` | results of `query`, `statistics`, `recovered` and `commit` |
//! | `error` | Rust's errors as Python's exceptions |
//! | `fork` | distinguishing a child process from the one that opened an object |
//! | `sys` | the buffer protocol (the crate's only unsafe) |
//!
//! Guarantees: `docs/guide/python.md`. Tests: `python/tests`.

mod error;
mod far;
mod fork;
mod heap;
mod key;
mod locks;
mod nodes;
mod open;
mod open_log;
mod region;
mod report;
mod segment;
mod size;
mod slot;
mod store;
#[allow(unsafe_code, reason = "the crate's one unsafe module")]
mod sys;
mod transaction;
mod window;

/// The extension module.
#[pyo3::pymodule]
mod _netram {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::far::{Arena, ArenaStatus, FarMemory, open_arena};
    #[pymodule_export]
    use crate::fork::inherited;
    #[pymodule_export]
    use crate::heap::{Heap, HeapStatistics};
    #[pymodule_export]
    use crate::nodes::{
        Node, NodeCommit, NodeHeap, NodeMemory, NodeProgress, NodeStraight, NodeTransaction, Reader, join,
    };
    #[pymodule_export]
    use crate::open::{create, open};
    #[pymodule_export]
    use crate::open_log::close_all;
    #[pymodule_export]
    use crate::region::Region;
    #[pymodule_export]
    use crate::report::{Commit, Lender, Query, Recovered, RegionInfo, Statistics};
    #[pymodule_export]
    use crate::segment::Segment;
    #[pymodule_export]
    use crate::store::PyStore;
    #[pymodule_export]
    use crate::sys::PyMemory;
    #[pymodule_export]
    use crate::transaction::Transaction;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
