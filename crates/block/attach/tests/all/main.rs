//! A volume attached as a device, with a server process that is killed.
//!
//! One test program, because linking each costs time; a module is one scenario or several of a kind.

mod device;
