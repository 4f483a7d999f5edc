//! A thread that answers the kernel ends well, or all end.

/// A request that a thread was at when it ended would never be answered, and whoever waits for it neither. The process
/// ends instead, and another takes over, or everybody gets an error.
pub(crate) struct EndTogether {
    well: bool,
}

impl EndTogether {
    /// From now on the end of this thread is the end of the process.
    pub(crate) fn new() -> EndTogether {
        EndTogether { well: false }
    }

    /// Nobody waits for an answer any more.
    pub(crate) fn went_well(&mut self) {
        self.well = true;
    }
}

impl Drop for EndTogether {
    fn drop(&mut self) {
        if !self.well {
            std::process::abort();
        }
    }
}
