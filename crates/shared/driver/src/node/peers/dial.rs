//! Connects to peers, in a thread of its own because connecting blocks.

use std::time::{Duration, Instant};

use super::Peers;
use crate::channel::Channel;
use crate::node::inner::NodeInner;

/// Time that a peer has for its greeting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between two looks for a peer to connect to.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Pause before a peer that could not be reached is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Connects to peers until the node ends.
pub(in crate::node) fn run(shared: &NodeInner) {
    while let Some(peers) = shared.peers.get().filter(|_| !shared.is_over()) {
        let call = peers.links().next_dial(Instant::now());
        match call {
            Some((node, address)) => match Channel::open(&address, &peers.security, CONNECT_TIMEOUT) {
                Ok(channel) => peers.dial_peer(node, channel),
                Err(error) => {
                    tracing::debug!(node = node.0, %address, %error, "a peer cannot be reached; its records come from the server");
                    peers.links().dial_failed(node, Instant::now() + RETRY_INTERVAL);
                }
            },
            None => std::thread::park_timeout(POLL_INTERVAL),
        }
    }
}

impl Peers {
    fn dial_peer(&self, node: netram_shared_machine::NodeId, channel: Channel) {
        let mut lines = self.links();
        if let Err(error) = lines.add_outgoing(node, channel, &self.poller) {
            tracing::debug!(node = node.0, %error, "cannot use the connection to a peer");
        }
        drop(lines);
        self.wake();
    }
}
