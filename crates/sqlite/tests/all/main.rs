//! SQLite's databases on a model of processes, disks and journals.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod model;
