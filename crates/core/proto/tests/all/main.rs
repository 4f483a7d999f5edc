//! The machines of the protocol, message by message.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod cast;
mod claims;
mod grow;
mod inquiry;
mod node;
mod page_cache;
mod proof;
mod recovery;
