//! The simulator itself: seeds that pass, planted faults that are found.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod planted;
mod seeds;
mod story;
