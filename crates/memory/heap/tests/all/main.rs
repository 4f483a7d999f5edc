//! A persistent heap: behaviour, models, damage, threads.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod behaviour;
mod common;
mod damage;
mod lazy;
mod load;
mod model;
mod preparing;
mod real;
mod shared;
mod threads;
