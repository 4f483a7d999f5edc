//! Recoverable memory on a machine that crashes: behaviour, models, threads.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

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
