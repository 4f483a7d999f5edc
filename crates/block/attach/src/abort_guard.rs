//! A thread that answers the kernel ends well, or all end.

/// A request that a thread was at when it ended would never be answered, and whoever waits for it neither.
/// The process ends instead, and another takes over, or everybody gets an error.
pub(crate) struct AbortGuard {
    well: bool,
}

impl AbortGuard {
    /// From now on the end of this thread is the end of the process.
    pub(crate) fn new() -> AbortGuard {
        AbortGuard { well: false }
    }

    /// Nobody waits for an answer any more.
    pub(crate) fn disarm(&mut self) {
        self.well = true;
    }
}

impl Drop for AbortGuard {
    fn drop(&mut self) {
        if !self.well {
            std::process::abort();
        }
    }
}
