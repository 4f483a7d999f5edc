//! A journal and a disk in memory that can crash, each at its worst.
#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod disk;
pub(crate) mod log;
