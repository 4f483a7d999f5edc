//! A journal in memory that can crash at its worst. The disk is `netram_files::model`.

pub(crate) mod log;
