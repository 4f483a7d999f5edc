//! The C library as it is installed: programs compiled against it, faults, installations.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod common;
mod far;
mod faults;
mod install;
mod programs;
mod shared;
mod shared_more;
