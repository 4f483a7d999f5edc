//! Waiting until another node's write is visible here.

use std::time::{Duration, Instant};

use netram_proto::shared::{LockId, Version};
use netram_transport::WaitStep;

use super::error::Gone;
use super::shared::Shared;

impl Shared {
    /// Waits until the region's memory has this version of a lock. `false`: it had it not in time.
    pub(super) fn wait_version(
        &self,
        lock: LockId,
        version: Version,
        timeout: Duration,
    ) -> Result<bool, Gone> {
        let since = Instant::now();
        let until = since + timeout;
        let _watching = self.news.watch();
        loop {
            let seen = self.news.count();
            let shows = {
                let core = self.core();
                core.alive()?;
                core.machine.shows(lock, version)
            };
            if shows {
                return self.catch_up().map(|()| true);
            }
            while self.news.count() == seen {
                let now = Instant::now();
                if now >= until {
                    return Ok(false);
                }
                match self.wait.step(now - since) {
                    WaitStep::Poll => std::hint::spin_loop(),
                    WaitStep::Yield => std::thread::yield_now(),
                    WaitStep::Block => self.news.rest(seen, until - now),
                }
            }
        }
    }
}
