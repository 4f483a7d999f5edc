//! Shared memory: any input.

mod merge;
mod message;
mod stamp;
