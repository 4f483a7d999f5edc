//! Shared memory: nodes of one region, each a process, with its server and its lenders.
//!
//! | module | measures |
//! |---|---|
//! | [`visibility`] | time until another node has an update |
//! | [`local`] | kept locks; commits beside recoverable memory without a server |
//! | [`fanout`] | cost for the writer of each following node |
//! | [`oo7`] | traversals of OO7 until another node has their changes |
//! | [`mix`] | several users of OO7, each at its own node |
//! | [`failover`] | failover time of a dead node's lock |
//! | [`testbed`], [`node_process`] | region, server, lenders; a node in its own process |

pub mod failover;
pub mod fanout;
pub mod local;
pub mod mix;
pub mod node_process;
pub mod oo7;
pub mod testbed;
pub mod visibility;
