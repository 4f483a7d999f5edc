//! OO7 on every store, compared and killed.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod common;
mod crash;
mod golden;
mod region;
mod shared;
mod stores;
mod table3;
mod users;
