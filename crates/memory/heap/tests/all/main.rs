//! A persistent heap: behaviour, models, damage, threads.
//!
//! One program, because linking each separately is slow; each module tests one topic.

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
