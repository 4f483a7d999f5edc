//! The machines of the protocol, message by message.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod arena;
mod cast;
mod claims;
mod deposit;
mod far;
mod grow;
mod inquiry;
mod lock;
mod node;
mod page_cache;
mod proof;
mod recovery;
mod replica;
mod shared;
