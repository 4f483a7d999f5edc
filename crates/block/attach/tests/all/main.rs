//! A volume attached as a device, with a server's process that is killed.
//!
//! One program, because each is linked to everything: a module is a story or several of one kind.

mod device;
