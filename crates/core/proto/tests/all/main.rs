//! Tests of the protocol's machines, message by message.
//!
//! One program, because each test program links everything; each module covers one area.

mod claims;
mod grow;
mod multicast;
mod node;
mod page_cache;
mod probe;
mod proof;
mod recovery;
mod window;
