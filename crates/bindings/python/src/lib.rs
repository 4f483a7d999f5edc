//! Recoverable and shared memory from Python: the extension module `netram._netram`.
//!
//! A thin face: what a call means is `netram-rvm`'s, what a log is `netram-store`'s. Here are the rules that
//! only a face for Python needs: memory that Python objects look into stays mapped while they do, the
//! interpreter is free while a call waits, a forked child is refused, and every error is an exception of
//! `python/netram/errors.py`.
//!
//! | module | idea |
//! |---|---|
//! | `open` | `open` and `create`, their settings |
//! | `store` | an open log, and its closing |
//! | `open_log` | what store, segments, regions and transactions of one log share |
//! | `locks` | taking locks beside the interpreter's |
//! | `slot` | what one thread at a time uses until it ends: transactions, readers |
//! | `key` | what stands between the brackets of `memory[...]` |
//! | `segment` | a segment, to be mapped |
//! | `region` | mapped memory as a buffer; finding the region that an array lies in |
//! | `window` | a region's memory and the views into it |
//! | `transaction` | ranges, commit, abort |
//! | `heap` | the persistent heap of a region |
//! | `nodes` | shared regions |
//! | `far` | arenas of far memory |
//! | `report` | what `query`, `statistics` and `recovered` answer |
//! | `error` | Rust's errors as Python's |
//! | `fork` | telling a child process from the one that opened |
//! | `sys` | the buffer protocol (the crate's only unsafe) |
//!
//! Its promises: `docs/python.md`. Its tests: `python/tests`.

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
