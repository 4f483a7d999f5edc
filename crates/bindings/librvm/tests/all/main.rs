//! The C library as it is installed: programs compiled against it, faults, installations.
//!
//! One program, because linking each separately is slow; each module tests one topic.

mod common;
mod far;
mod faults;
mod install;
mod programs;
mod shared;
mod shared_more;
