//! The thread that brings pages before anybody waits for them.

use std::sync::{Arc, PoisonError};

use netram_proto::limit::AHEAD_PAGES_MAX;

use super::handler::{EndGuard, enlist};
use super::moves::Core;

pub(super) fn run(core: &Arc<Core>) {
    let _guard = EndGuard::here();
    enlist(core);
    loop {
        let idle = |state: &mut super::moves::State| !core.hub.is_stopping() && !state.machine.has_ahead();
        let waited = core.hub.ahead.wait_while(core.hub.lock(), idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if core.hub.is_stopping() {
            return;
        }
        let pages = state.machine.next_ahead(AHEAD_PAGES_MAX as usize);
        drop(state);
        // All are asked for at once, and then awaited one after the other.
        core.depot.prefetch(pages.iter().copied());
        for page in pages {
            core.fetch(page, &mut ());
        }
    }
}
