//! The server of a shared region, as far as one node's journal is concerned: its durable state, and one link
//! to the node. It may die and be restarted, be away or slow, and give the node up at any time.
//!
//! A message is stored on its disk before it counts or is answered. If the server dies before that, the
//! message is sent again. Once it has stored that the node is being fenced it stores nothing more of it.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::journal::{JournalWriter, ServerAck, View};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;

use crate::event::{NodeMessage, WorldEvent};
use crate::history::JournalHistory;
use crate::kernel::SimKernel;

/// The server of a region.
#[derive(Debug)]
pub(crate) struct SimServer {
    /// Number of its current process. Messages not stored by it are lost with it.
    boot: u32,
    up: bool,
    /// Until this time it can neither be reached nor heard.
    away_until: Time,
    /// End of the merged records, durable on its disk.
    pub(crate) merged_end: ChainPoint,
    /// The newest view of the node's journal, durable on its disk.
    pub(crate) view: View,
    /// The process of the node that has joined.
    node: Option<usize>,
    /// Whether it has given the node up, durable on its disk.
    pub(crate) has_fenced: bool,
    /// End to which it has read the fenced node's journal and merged it durably.
    pub(crate) read: Option<Lsn>,
    /// Time of its newest store; stores keep their order.
    stored_last: Time,
}

/// The node's end of the link.
#[derive(Debug, Default)]
pub(crate) struct SimServerLink {
    boot: u32,
    /// The newest view that is durable at the node, or about to be.
    newest: Option<View>,
    told_version: u64,
    told_end: Lsn,
    /// Arrival time of the newest message; messages arrive in order.
    last_up: Time,
}

impl SimServer {
    /// A server that no node has joined yet.
    pub(crate) fn new(view: View) -> SimServer {
        SimServer {
            boot: 1,
            up: true,
            away_until: Time(0),
            merged_end: ChainPoint::default(),
            view,
            node: None,
            has_fenced: false,
            read: None,
            stored_last: Time(0),
        }
    }

    /// Handles a node that joins with a journal that begins at `start`, in `view`, all of it durable.
    pub(crate) fn joined(&mut self, process: usize, start: ChainPoint, view: View) {
        self.node = Some(process);
        self.merged_end = start;
        self.view = view;
    }

    /// Epoch with which it fences the node.
    pub(crate) fn fence(&self) -> Epoch {
        let (epoch, _) = self.view.fence();
        epoch
    }

    /// Handles the arrival of a message. It is stored before it has any effect.
    pub(crate) fn on_message(
        &mut self,
        kernel: &mut SimKernel,
        process: usize,
        boot: u32,
        word: NodeMessage,
    ) {
        let store = kernel.disk_time();
        if self.boot != boot || !self.up {
            return;
        }
        if self.has_fenced || self.node != Some(process) {
            let delay = kernel.service_latency();
            return kernel.at(delay, WorldEvent::NodeFenced { process });
        }
        let at = (kernel.now() + store).max(self.stored_last);
        self.stored_last = at;
        kernel.push(at, WorldEvent::ServerStores { process, boot, word });
    }

    /// Handles a message that is stored on its disk.
    pub(crate) fn on_stored(&mut self, kernel: &mut SimKernel, process: usize, boot: u32, word: NodeMessage) {
        if self.boot != boot || !self.up || self.has_fenced || self.node != Some(process) {
            return;
        }
        match word {
            NodeMessage::View(view) if view.version > self.view.version => self.view = *view,
            NodeMessage::Tail(end) if end.lsn > self.merged_end.lsn => self.merged_end = end,
            NodeMessage::View(_) | NodeMessage::Tail(_) => (),
        }
        let said = ServerAck {
            end: self.merged_end,
            version: self.view.version,
        };
        kernel.hit("shared: words of the server");
        // Not in order: an earlier message may arrive later.
        let delay = kernel.service_latency();
        kernel.at(delay, WorldEvent::ServerAck { process, said });
    }

    /// Keeps it away for a while, or kills and restarts it.
    pub(crate) fn disturb(&mut self, kernel: &mut SimKernel) {
        let until = kernel.now() + Nanos::from_ms(kernel.rng.pick(&[5, 200, 2000, 12_000]));
        let dies = kernel.rng.chance(500);
        if !self.up {
            return;
        }
        if dies {
            self.up = false;
            self.boot += 1;
            kernel.hit("shared: deaths of the server");
            kernel.tell(|| String::from("the server dies"));
            kernel.push(until, WorldEvent::ServerStarts);
        } else {
            self.away_until = until;
            kernel.hit("shared: absences of the server");
            kernel.tell(|| String::from("the server is away"));
        }
    }

    /// Starts its process.
    pub(crate) fn start(&mut self) {
        self.up = true;
    }

    /// Time until which no message passes between it and its node.
    pub(crate) fn away(&self, now: Time) -> Option<Time> {
        (self.away_until > now).then_some(self.away_until)
    }

    /// Ends all its faults.
    pub(crate) fn heal(&mut self) {
        self.away_until = Time(0);
        self.up = true;
    }
}

impl SimServerLink {
    /// Handles a view that is about to be stored at the node.
    pub(crate) fn on_view(&mut self, view: View) {
        self.newest = Some(view);
    }

    /// Tells the server the news: views at once, records when they are acknowledged or only the server can
    /// acknowledge them.
    pub(crate) fn pump(
        &mut self,
        kernel: &mut SimKernel,
        server: &SimServer,
        process: usize,
        writer: &JournalWriter,
        history: &JournalHistory,
    ) {
        if !server.up || server.node != Some(process) {
            return;
        }
        let kept = writer.server_ack().unwrap_or_default();
        if self.boot != server.boot {
            (self.boot, self.told_version, self.told_end) = (server.boot, kept.version, kept.end.lsn);
        }
        let mut words = Vec::new();
        if let Some(view) = &self.newest
            && view.version > self.told_version
        {
            self.told_version = view.version;
            words.push(NodeMessage::View(Box::new(view.clone())));
        }
        let alone = !writer.counting() || writer.view_for_server().is_some();
        let upto = match alone {
            true => writer.tail(),
            false => writer.acked(),
        };
        if upto > self.told_end
            && let Some(end) = history.link_at(upto)
        {
            self.told_end = upto;
            words.push(NodeMessage::Tail(end));
        }
        for word in words {
            let at = (kernel.now() + kernel.service_latency()).max(self.last_up);
            self.last_up = at;
            let boot = self.boot;
            kernel.push(at, WorldEvent::ServerMessage { process, boot, word });
        }
    }
}
