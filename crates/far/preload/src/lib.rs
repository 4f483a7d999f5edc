//! The library that `netram run` has an unmodified program load before all others. Large allocations of the
//! program, and what it maps of anonymous memory, lie in an arena of far memory.
//!
//! | file | does |
//! |---|---|
//! | `runs.rs` | decides which pages an allocation gets |
//! | `slabs.rs` | packs small ones |
//! | `heap.rs` | the arena's memory, handed out |
//! | `start.rs` | the arena, begun in threads that share no descriptors with the program |
//! | `heir.rs` | who gives back what the program leaves at lenders |
//! | `report.rs` | what was moved, for people and programs |
//! | `abi/alloc.rs` | `malloc` and its like, which the program calls here |
//! | `abi/maps.rs` | `mmap` and its like |
//! | `abi/over.rs` | what is mapped, unmapped and moved at the arena's addresses |
//! | `abi/next.rs` | those functions of whoever else has them: the C library, or an allocator of the program's |
//! | `abi/own.rs` | where this library itself has its memory: never in the arena |
//! | `abi/pool.rs` | where the C library has what it takes in the name of the arena's threads |
//! | `abi/fork.rs` | children; `abi/heritage.rs`: what their parent gives them of far memory; `abi/faults.rs`: when |
//! | `abi/begin.rs` | the first and the last step of the process |
//!
//! Only the program's own process has an arena; a child of `fork` has a copy of what is in it. What this
//! cannot do is written in docs/far.md.
#![deny(unsafe_code)]

mod abi;
mod cleanup_process;
mod heap;
mod page_runs;
mod report;
mod slabs;
mod start;
