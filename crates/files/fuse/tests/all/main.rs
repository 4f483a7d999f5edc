//! Sessions with the kernel, which need root and FUSE.

mod one_file;
mod session;
