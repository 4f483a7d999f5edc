//! Links between two ends: handshakes, packets, datagrams.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod common;
mod handshake;
mod multicast;
mod names;
mod packets;
mod poll;
