//! Going to peers. Connecting waits; so it has a thread of its own.

use std::time::{Duration, Instant};

use super::Peers;
use crate::channel::Channel;
use crate::node::inner::NodeInner;

/// How long a peer may take to greet.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How often it is looked whether there is somebody to go to.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Whoever could not be reached is tried again after so long.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Goes to whoever is to be gone to, until the node ends.
pub(in crate::node) fn run(shared: &NodeInner) {
    while let Some(peers) = shared.peers.get().filter(|_| !shared.is_over()) {
        let call = peers.links().next_dial(Instant::now());
        match call {
            Some((node, address)) => match Channel::open(&address, &peers.security, CONNECT_TIMEOUT) {
                Ok(channel) => peers.dial_peer(node, channel),
                Err(error) => {
                    tracing::debug!(node = node.0, %address, %error, "a peer cannot be reached: its records come from the server");
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
            tracing::debug!(node = node.0, %error, "a peer was reached, and cannot be listened to");
        }
        drop(lines);
        self.wake();
    }
}
