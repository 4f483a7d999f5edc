//! Promises of the crate.

mod access;
mod collecting;
