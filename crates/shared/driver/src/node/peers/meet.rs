//! Going to peers. Connecting waits; so it has a thread of its own.

use std::time::{Duration, Instant};

use super::Peers;
use crate::channel::Channel;
use crate::node::shared::Shared;

/// How long a peer may take to greet.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked whether there is somebody to go to.
const LOOK: Duration = Duration::from_millis(20);
/// Whoever could not be reached is tried again after so long.
const AGAIN: Duration = Duration::from_millis(500);

/// Goes to whoever is to be gone to, until the node ends.
pub(in crate::node) fn run(shared: &Shared) {
    while let Some(peers) = shared.peers.get().filter(|_| !shared.is_over()) {
        let call = peers.lines().next_call(Instant::now());
        match call {
            Some((node, address)) => match Channel::open(&address, &peers.security, CONNECT_TIMEOUT) {
                Ok(channel) => peers.called(node, channel),
                Err(error) => {
                    tracing::debug!(node = node.0, %address, %error, "a peer cannot be reached: its records come from the server");
                    peers.lines().call_failed(node, Instant::now() + AGAIN);
                }
            },
            None => std::thread::park_timeout(LOOK),
        }
    }
}

impl Peers {
    fn called(&self, node: netram_shared_machine::NodeId, channel: Channel) {
        let mut lines = self.lines();
        if let Err(error) = lines.called(node, channel, &self.poller) {
            tracing::debug!(node = node.0, %error, "a peer was reached, and cannot be listened to");
        }
        drop(lines);
        self.ring();
    }
}
