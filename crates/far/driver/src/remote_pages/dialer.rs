//! Connects lenders, with a thread for each because connecting blocks. Threads are started at the beginning
//! (`threads.rs` says why).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use netram_transport::{ConnectError, Link, connect};

use super::Inner;
use crate::threads;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Index of a lender, and the result of connecting it.
pub(super) type DialResult = (usize, Result<Link, ConnectError>);

/// Connects one lender on request. Dropping this ends its thread after the last request.
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
        // Threads must not keep remote pages alive that are no longer used.
        let depot = Arc::downgrade(shared);
        let body = move || {
            while asks.recv().is_ok() {
                let Some(shared) = depot.upgrade() else { return };
                let address = &shared.config.lenders[lender];
                let link = connect(address, &shared.config.security, CONNECT_TIMEOUT);
                let link = link.and_then(|mut link| match shared.owner_key.introduce(&mut link) {
                    Ok(_) => Ok(link),
                    Err(_) => Err(ConnectError::CutOff),
                });
                if sender.send((lender, link)).is_ok() {
                    shared.leadership.summon();
                }
            }
        };
        threads::begin("netram-connect", body)?;
        Ok(Dialer { requests: asked })
    }

    /// Requests a connection. `false`: the thread has ended.
    pub(super) fn dial(&self) -> bool {
        // A request that is still queued counts for both.
        !matches!(self.requests.try_send(()), Err(TrySendError::Disconnected(())))
    }
}
