//! The kernel's FUSE, as far as one file needs it.
//!
//! Spoken here and not by a library, because a server must be able to take over a conversation that another
//! has begun and been killed in: that one shook hands with the kernel, and the requests it has left
//! unanswered are sent again ([`session`]).
//!
//! | module | does |
//! |---|---|
//! | [`wire`] | how requests and answers look |
//! | [`file`] | what is answered: a device's bytes as a file's |
//! | [`session`] | the threads that read and answer; beginning, and taking over |
//! | [`mount`] | a mount that has no place |

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
