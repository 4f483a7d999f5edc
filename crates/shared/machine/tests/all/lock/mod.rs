//! The lock service and the nodes' caches: every interleaving of small worlds, random ways through larger
//! ones, and stories.

mod check;
mod explore;
mod random;
mod script;
mod stories;
mod world;
