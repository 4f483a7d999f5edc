//! A shared region: server, nodes, processes that are killed.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod asleep;
mod channel;
mod common;
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
mod recall;
mod rescue;
mod restart;
mod retired;
mod served;
mod serving;
mod silent;
mod store;
mod straight;
mod strangers;
mod window;
