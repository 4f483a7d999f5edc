//! A volume on a machine that crashes: behaviour, models, threads.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod behaviour;
mod common;
mod model;
mod pair_model;
mod replica;
mod threads;
mod unreadable;
mod unstable;
