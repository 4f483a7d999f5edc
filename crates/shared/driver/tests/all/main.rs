//! Tests of a shared region: server, nodes, killed processes.
//!
//! They are one program, because each would be linked to everything. A module has one or more tests of one
//! kind.

mod asleep;
mod channel;
mod clients;
mod common;
mod direct;
mod ends;
mod goodbye;
mod heap;
mod heap_kill;
mod inquiry;
mod joining;
mod kill;
mod loss;
mod node;
mod node_bounds;
mod node_capture;
mod node_kill;
mod node_losses;
mod offline;
mod owned_nodes;
mod recall;
mod rescue;
mod restart;
mod retired;
mod served;
mod serving;
mod silent;
mod store;
mod strangers;
mod window;
