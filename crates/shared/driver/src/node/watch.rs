//! Waits until another node's write is visible here.

use std::time::{Duration, Instant};

use netram_shared_machine::{LockId, LockVersion};
use netram_transport::{WaitStep, yield_core};

use super::error::NodeGone;
use super::inner::NodeInner;
use super::peers::PeerListener;

impl NodeInner {
    /// Waits until the region's memory has this version of a lock. Returns `false` if it did not come in
    /// time.
    pub(super) fn wait_version(
        &self,
        lock: LockId,
        version: LockVersion,
        timeout: Duration,
    ) -> Result<bool, NodeGone> {
        let since = Instant::now();
        let until = since + timeout;
        let _watching = self.event_count.watch();
        let mut listening = Some(PeerListener::begin(self));
        loop {
            let seen = self.event_count.count();
            let shows = {
                let core = self.core();
                core.alive()?;
                core.machine.shows(lock, version)
            };
            if shows {
                return self.catch_up().map(|()| true);
            }
            while self.event_count.count() == seen {
                let now = Instant::now();
                if now >= until {
                    return Ok(false);
                }
                match self.wait.step(now - since) {
                    WaitStep::Block => {
                        if let Some(listening) = listening.take() {
                            listening.hand_back();
                        }
                        self.event_count.wait(seen, until - now);
                    }
                    step => self.listen(listening.as_ref(), step),
                }
            }
        }
    }

    /// One step of a waiting thread: receives from peers, or else yields or spins as `step` says.
    pub(super) fn listen(&self, listening: Option<&PeerListener<'_>>, step: WaitStep) {
        if let Some(listening) = listening
            && listening.look()
        {
            return;
        }
        match step {
            WaitStep::Yield => yield_core(),
            WaitStep::Poll | WaitStep::Block => std::hint::spin_loop(),
        }
    }
}
