//! The machines of the protocol, message by message.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod claims;
mod grow;
mod multicast;
mod node;
mod page_cache;
mod probe;
mod proof;
mod recovery;
