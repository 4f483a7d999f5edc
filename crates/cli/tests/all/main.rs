//! The program as users run it: several real processes, real sockets, real disks.
//!
//! One test binary, because each is linked to everything; a module is one or several tests of a kind.

use netram_testkit as common;

mod clients;
mod command_line;
mod dashboard;
mod data_lender;
mod databases;
mod discovery;
mod environment;
mod explain;
mod faults;
mod guest;
mod image;
mod init;
mod key_hygiene;
mod lender;
mod lifecycle;
mod log_lines;
mod mount;
mod mount_volume;
mod moving;
mod neighbour;
mod notify;
mod old_snapshot;
mod orders;
mod packages;
mod play;
mod proof;
mod replica;
mod root;
mod run;
mod rvm_damage;
mod rvm_tools;
mod shared;
mod shared_served;
mod sqlite;
mod standard_error;
mod telemetry;
mod top;
mod units;
mod ups;
mod users;
mod volume;
