//! Shared memory: any input, any order, and whole histories.

mod bounds;
mod burials;
mod endings;
mod fates;
mod hints;
mod hostile;
mod leases;
mod lock;
mod merge;
mod message;
mod random;
mod resuming;
mod scenarios;
mod stage;
mod stamp;
mod world;
