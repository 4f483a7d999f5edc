//! Internal to netram: programs use the crate `netram`.
//!
//! The library that `netram run` preloads into an unmodified program. The program's large allocations and
//! anonymous mappings are in an arena of far memory.
//!
//! | file | does |
//! |---|---|
//! | `start.rs` | starts the arena, in threads that share no descriptors with the program |
//! | `heap.rs` | hands out the arena's memory |
//! | `page_runs.rs` | decides which pages an allocation gets |
//! | `slabs.rs` | packs small allocations |
//! | `cleanup_process.rs` | frees what the program leaves at lenders |
//! | `report.rs` | reports what was moved, for people and programs |
//! | `abi/startup.rs` | the first and the last step of the process |
//! | `abi/alloc.rs` | `malloc` and the other allocation functions |
//! | `abi/maps.rs` | `mmap` and the other mapping functions |
//! | `abi/remap.rs` | mappings made, removed and moved at the arena's addresses |
//! | `abi/next_allocator.rs` | the allocation functions of the C library, or of another allocator of the program |
//! | `abi/own_allocator.rs` | this library's own memory, which is never in the arena |
//! | `abi/pool.rs` | memory that the C library allocates for the arena's threads |
//! | `abi/fork.rs`, `abi/fork_copy.rs`, `abi/faults.rs` | forks; the child's copy of far memory; the fault that requests it |
//!
//! Only the program's own process has an arena; a child of `fork` gets a copy of its content. The limits of
//! this approach are in docs/design/far.md.
#![deny(unsafe_code)]

mod abi;
mod cleanup_process;
mod heap;
mod page_runs;
mod report;
mod slabs;
mod start;
