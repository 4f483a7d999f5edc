//! Asks clients to take their windows to other lenders while this machine lacks memory. Which,
//! [`WindowReclaim`] decides; their shards tell them.

use std::sync::Arc;

use netram_proto::reclaim::WindowReclaim;
use netram_proto::time::Time;

use crate::state::DaemonState;

/// The windows that are asked back. The thread that watches the machine's memory has it.
pub(crate) struct WindowReclaimer {
    shared: Arc<DaemonState>,
    reclaim: WindowReclaim,
}

impl WindowReclaimer {
    pub(crate) fn new(shared: Arc<DaemonState>) -> WindowReclaimer {
        WindowReclaimer {
            shared,
            reclaim: WindowReclaim::default(),
        }
    }

    /// Asks for windows, or ends that. `offer`: bytes that may be lent now; `short`: see
    /// [`WindowReclaim::settle`]. Returns whether windows are still to leave.
    pub(crate) fn settle(&mut self, time: Time, offer: u64, short: bool) -> bool {
        let excess = self.shared.store.windows_bytes().saturating_sub(offer);
        if excess == 0 && self.reclaim.is_empty() {
            return false;
        }
        // Windows that are on the disk, too, go first: nobody is asked.
        let shift = self.shared.store.chunk_shift();
        let chunks = excess.div_ceil(1 << shift) as usize;
        let coming = self.shared.store.silent().want(chunks) as u64;
        let lacking = excess.saturating_sub(coming << shift);
        let windows = self.shared.attended_windows();
        if self.reclaim.settle(time, &windows, lacking, short) {
            match self.reclaim.is_empty() {
                true => tracing::info!("the machine has enough memory again: windows may return"),
                false => tracing::warn!(
                    lacking,
                    "the machine is short of memory: clients are asked to take windows to other lenders"
                ),
            }
            self.shared.ask_back(|journal| self.reclaim.asks(journal));
        }
        excess > 0
    }
}
