//! The kernel's FUSE protocol, as far as one file needs it.
//!
//! Implemented here without a library, because a server must be able to take over a session in which another
//! was killed. That one did the handshake with the kernel, and requests that it left unanswered are sent
//! again ([`session`]).
//!
//! | module | purpose |
//! |---|---|
//! | [`wire`] | formats of requests and replies |
//! | [`mod@file`] | replies: a device's bytes as a file |
//! | [`session`] | threads that read and reply; beginning and taking over a session |
//! | [`mount`] | a mount without a mount point |

pub(crate) mod file;
pub(crate) mod mount;
pub(crate) mod session;
mod wire;

/// See [`crate::fuzzed::fuse_request`].
pub(crate) fn fuzz(bytes: &[u8]) {
    wire::fuzz(bytes);
}

/// See [`crate::fuzzed::fuse_seeds`].
pub(crate) fn fuzz_seeds() -> Vec<Vec<u8>> {
    wire::fuzz_seeds()
}
