//! Measurements as programs that are not the command line use them.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod bank;
