//! Mounts whose servers are killed, which need root and FUSE.

mod program;
mod random_kills;
mod server;
mod survive;
