//! Who connects a lender: a thread each, for that waits. It is there from the beginning (`threads.rs` says
//! why).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use netram_transport::{ConnectError, Link, connect};

use super::Inner;
use crate::threads;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A lender, and what came of connecting it.
pub(super) type DialResult = (usize, Result<Link, ConnectError>);

/// Connects one lender. Its thread ends after this, when it has done what it was asked last.
pub(super) struct Dialer {
    requests: SyncSender<()>,
}

impl Dialer {
    pub(super) fn begin(
        shared: &Arc<Inner>,
        lender: usize,
        sender: Sender<DialResult>,
    ) -> io::Result<Dialer> {
        let (asked, asks) = sync_channel(1);
        // A depot that is gone needs no link, and its dialers do not keep it.
        let depot = Arc::downgrade(shared);
        let body = move || {
            while asks.recv().is_ok() {
                let Some(shared) = depot.upgrade() else { return };
                let address = &shared.config.lenders[lender];
                let link = connect(address, &shared.config.security, CONNECT_TIMEOUT);
                if sender.send((lender, link)).is_ok() {
                    shared.leadership.summon();
                }
            }
        };
        threads::begin("netram-connect", body)?;
        Ok(Dialer { requests: asked })
    }

    /// Has the lender connected. `false`: nobody is there who could.
    pub(super) fn dial(&self) -> bool {
        // One that is asked already does it once.
        !matches!(self.requests.try_send(()), Err(TrySendError::Disconnected(())))
    }
}
