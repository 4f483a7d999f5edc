//! Tests of the shared region's machines: any input, any order, and whole histories.

mod bounds;
mod endings;
mod hints;
mod hostile;
mod leases;
mod lock;
mod merge;
mod message;
mod outcomes;
mod owners;
mod random;
mod resuming;
mod retirements;
mod scenarios;
mod stage;
mod stamp;
mod world;
