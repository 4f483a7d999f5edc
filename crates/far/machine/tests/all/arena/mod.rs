//! An arena's pages under every order of moves: a reference sees what was written last, no page is dropped
//! before the depot has it, and no more frames are taken than there are.

mod random;
mod stories;
mod study;
mod world;
