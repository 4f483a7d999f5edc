//! A volume as the one file of a FUSE file system. The crate `netram-fuse` speaks with the kernel.
//!
//! | module | purpose |
//! |---|---|
//! | [`mod@file`] | replies: a device's bytes as a file |
//! | [`session`] | beginning and taking over a session |
//! | [`mount`] | a mount without a mount point |

pub(crate) mod file;
pub(crate) mod mount;
pub(crate) mod session;
