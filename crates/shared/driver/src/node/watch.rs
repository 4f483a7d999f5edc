//! Waiting until another node's write is visible here.

use std::time::{Duration, Instant};

use netram_shared_machine::{LockId, Version};
use netram_transport::WaitStep;

use super::error::Gone;
use super::peers::Listening;
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
        let mut listening = Some(Listening::begin(self));
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
                    WaitStep::Block => {
                        if let Some(listening) = listening.take() {
                            listening.hand_back();
                        }
                        self.news.rest(seen, until - now);
                    }
                    step => self.listen(listening.as_ref(), step),
                }
            }
        }
    }

    /// One look of a thread that waits: takes what has come from peers, and gives the core away.
    pub(super) fn listen(&self, listening: Option<&Listening<'_>>, step: WaitStep) {
        if let Some(listening) = listening
            && listening.look()
        {
            return;
        }
        match step {
            WaitStep::Yield => std::thread::yield_now(),
            WaitStep::Poll | WaitStep::Block => std::hint::spin_loop(),
        }
    }
}
