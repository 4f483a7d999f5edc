//! A journal in memory that loses as much as a crash may. The disk is `netram_files::model`.

pub(crate) mod log;
