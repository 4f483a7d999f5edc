//! The program as its users meet it: several real processes, real sockets, real disks.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod command_line;
mod common;
mod data_lender;
mod databases;
mod databases_compared;
mod demo;
mod disk;
mod environment;
mod far_compared;
mod faults;
mod guest;
mod lending;
mod lifecycle;
mod log_lines;
mod mount;
mod mount_volume;
mod moving;
mod pagesim;
mod paper;
mod paper_lnd;
mod paper_osdi94;
mod proof;
mod replica;
mod run;
mod rvm_bash;
mod rvm_damage;
mod rvm_tools;
mod shared;
mod shared_figures;
mod shared_served;
mod sqlite;
mod standard_error;
mod users;
mod volume_figures;
