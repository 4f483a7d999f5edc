//! A journal in memory that can crash at its worst. The disk is `netram_files::model`.
#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod log;
