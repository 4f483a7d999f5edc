//! The crate's one `unsafe` block.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Descriptors of events that tell the library's threads to end. The library gives up their ownership, and
/// never closes them.
#[derive(Debug, Default)]
pub(crate) struct GivenUpEvents(Vec<RawFd>);

impl GivenUpEvents {
    /// Notes a descriptor that the library is about to give up.
    pub(crate) fn add(&mut self, descriptor: RawFd) {
        self.0.push(descriptor);
    }

    /// Closes them. The library's threads must have ended.
    pub(crate) fn close(&mut self) {
        for descriptor in self.0.drain(..) {
            // SAFETY: the library turned its owner into this number and does not use it again, since the
            // threads that waited for it have ended.
            drop(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
    }
}
