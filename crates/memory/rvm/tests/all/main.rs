//! Recoverable memory on a machine that crashes: behaviour, models, threads.
//!
//! One program, because linking each separately is slow; each module tests one topic.

mod adaptive;
mod behaviour;
mod capture;
mod common;
mod copies;
mod crash;
mod elsewhere;
mod foreign;
mod forms;
mod lazy_opening;
mod mixed;
mod model;
mod pains;
mod participant;
mod placement;
mod real;
mod regions;
mod spool;
mod stalls;
mod threads;
