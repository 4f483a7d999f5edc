//! Appends that arrive by multicast.

use netram_proto::multicast::ChannelInvite;
use netram_transport::{DropCounts, Interest, MulticastReceiver, Poller};

use super::resting::time_of;
use super::{FAILURE_LOG_INTERVAL, MULTICAST_TOKEN, Shard, watch};
use crate::connection::TurnContext;
use crate::limit::DATAGRAMS_PER_TURN;
use crate::state::DaemonState;

impl Shard {
    /// Reads the datagrams that have arrived and answers them over their sessions' links. Returns whether
    /// there were any. Handles all datagrams that the receiver has read, since the kernel does not report
    /// them again.
    pub(super) fn receive_multicast(&mut self) -> bool {
        let mut received = false;
        while self.receive_datagrams() {
            received = true;
            if !self
                .multicast_receiver
                .as_ref()
                .is_some_and(MulticastReceiver::has_buffered)
            {
                break;
            }
        }
        received
    }

    fn receive_datagrams(&mut self) -> bool {
        let Some(receiver) = &mut self.multicast_receiver else {
            return false;
        };
        let turn = TurnContext {
            now: self.now,
            shard: self.index,
            shared: &self.shared,
            counters: &self.shared.counters[self.index],
        };
        let mut answered: Option<usize> = None;
        let mut ended = None;
        for count in 0.. {
            if count >= DATAGRAMS_PER_TURN && !receiver.has_buffered() {
                break;
            }
            let received = match receiver.receive() {
                Ok(Some(received)) => received,
                Ok(None) => break,
                Err(error) => {
                    if self.log_again_at <= self.now {
                        self.log_again_at = self.now + FAILURE_LOG_INTERVAL;
                        tracing::warn!(%error, group = %receiver.group(), "receiving from the multicast group failed");
                    }
                    break;
                }
            };
            // Datagrams of one session mostly arrive in a row and share an answer.
            let before = answered
                .replace(received.listener)
                .filter(|&index| index != received.listener);
            let connections = &mut self.connections;
            if let Some(index) = before
                && let Some(connection) = &mut connections[index]
            {
                let said = connection.answer_multicast(self.journals.at(connection.index), &turn);
                watch(&self.poller, connection, index);
                if let Err(ending) = said {
                    ended = Some((index, ending));
                    break;
                }
            }
            if let Some(connection) = &mut connections[received.listener]
                && let Err(ending) =
                    connection.receive_multicast(received.packet, self.journals.at(connection.index), &turn)
            {
                ended = Some((received.listener, ending));
                break;
            }
        }
        if let Some(index) = answered
            && let Some(connection) = &mut self.connections[index]
        {
            // Accepted appends are answered even if the session ends.
            if let Err(ending) = connection.answer_multicast(self.journals.at(connection.index), &turn) {
                ended.get_or_insert((index, ending));
            }
            let time = time_of(self.now, self.shared.started);
            self.last_appends.note(connection.index, time);
            watch(&self.poller, connection, index);
        }
        if let Some((index, ending)) = ended {
            self.end(index, ending);
        }
        answered.is_some()
    }

    /// Adds the receiver's drops since the last call to the counters.
    pub(super) fn count_dropped(&mut self) {
        if let Some(receiver) = &self.multicast_receiver {
            let dropped = receiver.dropped();
            self.shared.counters[self.index].dropped(DropCounts {
                unknown: dropped.unknown - self.dropped.unknown,
                duplicate: dropped.duplicate - self.dropped.duplicate,
                forged: dropped.forged - self.dropped.forged,
            });
            self.dropped = dropped;
        }
    }
}

/// Listens to a channel for the session `index`. `false` if this lender serves another group, the group
/// cannot be joined, or the channel's name is taken.
pub(super) fn listen(
    receiver: &mut Option<MulticastReceiver>,
    poller: &Poller,
    shared: &DaemonState,
    tune: &ChannelInvite,
    index: usize,
) -> bool {
    let Some(group) = shared
        .config
        .multicast
        .as_ref()
        .filter(|group| group.is_named_by(tune))
    else {
        return false;
    };
    if receiver.is_none() {
        let opened = MulticastReceiver::open(group).and_then(|receiver| {
            poller
                .add(&receiver, MULTICAST_TOKEN, Interest::Read)
                .map(|()| receiver)
        });
        match opened {
            Ok(opened) => *receiver = Some(opened),
            Err(error) => {
                tracing::warn!(%error, %group, "cannot join the multicast group");
                return false;
            }
        }
    }
    receiver
        .as_mut()
        .is_some_and(|receiver| receiver.listen(tune, index))
}
