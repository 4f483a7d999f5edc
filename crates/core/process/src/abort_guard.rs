//! Aborts the whole process when a thread that answers the kernel panics.

/// Aborts the process unless the thread ends regularly. A request that a panicked thread was handling would
/// never be answered, and its user would wait for ever. After the abort another server takes over, or all
/// requests fail.
#[derive(Debug)]
pub struct AbortGuard {
    well: bool,
}

impl AbortGuard {
    /// From now on the end of this thread aborts the process.
    pub fn arm() -> AbortGuard {
        AbortGuard { well: false }
    }

    /// No request waits for an answer any more.
    pub fn disarm(&mut self) {
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
