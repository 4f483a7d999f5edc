//! Far memory with real lenders: pages, arenas, spill files, memory pressure.
//!
//! All tests are one program, because each would link everything; a module has the tests of one subject.

mod arena;
mod common;
mod depot;
mod pressure;
mod spill;
