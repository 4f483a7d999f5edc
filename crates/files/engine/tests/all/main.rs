//! A directory's files on a disk that crashes.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod behaviour;
mod common;
mod crash;
mod take_over;
