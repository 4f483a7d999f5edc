//! Shared memory: any input, any order, and whole histories.

mod fates;
mod hints;
mod hostile;
mod leases;
mod merge;
mod message;
mod random;
mod scenarios;
mod stamp;
mod world;
