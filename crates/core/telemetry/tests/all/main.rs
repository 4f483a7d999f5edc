//! What the crate promises.

mod readers;
