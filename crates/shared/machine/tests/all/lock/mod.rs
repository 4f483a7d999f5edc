//! The lock service and the nodes' caches: every interleaving of small worlds, random schedules of larger
//! ones, and single stories.

mod check;
mod explore;
mod random;
mod script;
mod stories;
mod world;
