//! A journal with real lenders: opening, writing, closing, dying.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod closing;
mod common;
mod follow;
mod grow;
mod idle;
mod journal;
mod liar;
mod names;
mod over;
mod reasons;
mod shared;
mod shared_kill;
