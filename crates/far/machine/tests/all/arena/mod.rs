//! An arena's pages under every order of moves: a reference sees the last write, no page is dropped before it
//! is stored, and the cap holds.

mod random;
mod stories;
mod study;
mod world;
