//! A volume's directory: creating, serving, copying, restoring.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod control;
mod create;
mod hostile;
mod kill;
mod proof;
mod replica;
mod restore;
mod silent;
mod volume;
