//! Shared memory: nodes of one region, each a process, with its server and its lenders.
//!
//! | module | measures |
//! |---|---|
//! | [`visibility`] | how long until another node has an update |
//! | [`local`] | locks that are kept; commits beside recoverable memory without a server |
//! | [`fanout`] | what the writer pays for each node that follows |
//! | [`oo7`] | traversals of OO7, until another node has what they changed |
//! | [`mix`] | several users of OO7, each at a node, by their number |
//! | [`failover`] | how long a dead node's lock is missed |
//! | [`testbed`], [`node_process`] | what they stand on: region, server, lenders; a node in a process of its own |

pub mod failover;
pub mod fanout;
pub mod local;
pub mod mix;
pub mod node_process;
pub mod oo7;
pub mod testbed;
pub mod visibility;
