//! Links between two ends: handshakes, packets, datagrams.
//!
//! All tests are modules of one program, since each program is linked with everything.

mod common;
mod handshake;
mod multicast;
mod names;
mod packets;
mod poll;
