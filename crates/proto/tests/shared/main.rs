//! Shared memory: any input.

mod stamp;
