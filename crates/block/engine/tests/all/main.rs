//! A volume on a machine that crashes: behaviour, models, threads.
//!
//! One test program, because linking each costs time; a module is one scenario or several of a kind.

mod behaviour;
mod common;
mod model;
mod pair_model;
mod replica;
mod threads;
mod unreadable;
mod unstable;
