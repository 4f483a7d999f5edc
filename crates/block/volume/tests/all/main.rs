//! A volume's directory: creating, serving, copying, restoring.
//!
//! One test program, because linking each costs time; a module is one scenario or several of a kind.

mod control;
mod create;
mod hostile;
mod kill;
mod proof;
mod recovery;
mod replica;
mod restore;
mod silent;
mod volume;
