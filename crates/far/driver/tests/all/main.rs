//! Far memory with real lenders: pages, arenas, spill files, pressure.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod arena;
mod common;
mod depot;
mod pressure;
mod spill;
