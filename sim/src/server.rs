//! The server of a shared region, as far as one node's journal is concerned: its durable state, and one link
//! to the node. It may die and be restarted, be away or slow, and give the node up at any time.
//!
//! A message is stored on its disk before it counts or is answered. If the server dies before that, the
//! message is sent again. Once it has stored that the node is being fenced it stores nothing more of it.

use netram_proto::id::Lsn;
use netram_proto::journal::{ServerAck, View};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;

use crate::event::{NodeMessage, WorldEvent};
use crate::process::ServingState;
use crate::world::World;

/// The server of a region.
#[derive(Debug)]
pub(crate) struct SimServer {
    /// Number of its current process. Messages not stored by it are lost with it.
    boot: u32,
    up: bool,
    /// Until this time it can neither be reached nor heard.
    pub(crate) away_until: Time,
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
}

impl SimServerLink {
    /// Handles a view that is about to be stored at the node.
    pub(crate) fn on_view(&mut self, view: View) {
        self.newest = Some(view);
    }
}

impl World {
    /// Tells the server the news: views at once, records when they are acknowledged or only the server can
    /// acknowledge them.
    pub(crate) fn pump_server(&mut self, process: usize, serving: &mut ServingState) {
        let (Some(server), Some(link)) = (&self.server, &mut serving.server) else {
            return;
        };
        if !server.up || server.node != Some(process) {
            return;
        }
        let kept = serving.writer.server_ack().unwrap_or_default();
        if link.boot != server.boot {
            (link.boot, link.told_version, link.told_end) = (server.boot, kept.version, kept.end.lsn);
        }
        let mut words = Vec::new();
        if let Some(view) = &link.newest
            && view.version > link.told_version
        {
            link.told_version = view.version;
            words.push(NodeMessage::View(Box::new(view.clone())));
        }
        let alone = !serving.writer.counting() || serving.writer.view_for_server().is_some();
        let upto = match alone {
            true => serving.writer.tail(),
            false => serving.writer.acked(),
        };
        let host = self.processes[process].host;
        if upto > link.told_end
            && let Some(end) = self.hosts[host].history.link_at(upto)
        {
            link.told_end = upto;
            words.push(NodeMessage::Tail(end));
        }
        for word in words {
            let at = (self.kernel.now() + self.kernel.service_latency()).max(link.last_up);
            link.last_up = at;
            let boot = link.boot;
            self.kernel
                .push(at, WorldEvent::ServerMessage { process, boot, word });
        }
    }

    /// Handles the arrival of a message. It is stored before it has any effect.
    pub(crate) fn on_server_message(&mut self, process: usize, boot: u32, word: NodeMessage) {
        let store = self.disk_time();
        let now = self.kernel.now();
        let Some(server) = &mut self.server else { return };
        if server.boot != boot || !server.up {
            return;
        }
        if server.has_fenced || server.node != Some(process) {
            return self.send_fenced(process);
        }
        let at = (now + store).max(server.stored_last);
        server.stored_last = at;
        self.kernel
            .push(at, WorldEvent::ServerStores { process, boot, word });
    }

    /// Handles a message that is stored on its disk.
    pub(crate) fn on_server_stores(&mut self, process: usize, boot: u32, word: NodeMessage) {
        let Some(server) = &mut self.server else { return };
        if server.boot != boot || !server.up || server.has_fenced || server.node != Some(process) {
            return;
        }
        match word {
            NodeMessage::View(view) if view.version > server.view.version => server.view = *view,
            NodeMessage::Tail(end) if end.lsn > server.merged_end.lsn => server.merged_end = end,
            NodeMessage::View(_) | NodeMessage::Tail(_) => (),
        }
        let said = ServerAck {
            end: server.merged_end,
            version: server.view.version,
        };
        self.kernel.hit("shared: words of the server");
        // Not in order: an earlier message may arrive later.
        let delay = self.kernel.service_latency();
        self.kernel.at(delay, WorldEvent::ServerAck { process, said });
    }

    pub(crate) fn on_server_ack(&mut self, process: usize, said: ServerAck) {
        let now = self.kernel.now();
        self.with_serving(process, |_, serving| serving.writer.on_server_ack(said, now));
        self.settle(process);
    }

    /// Tells the node's process that the server has given the node up.
    fn send_fenced(&mut self, process: usize) {
        let delay = self.kernel.service_latency();
        self.kernel.at(delay, WorldEvent::NodeFenced { process });
    }

    pub(crate) fn on_node_fenced(&mut self, process: usize) {
        let Some(server) = &self.server else { return };
        let (seen, _) = server.view.fence();
        self.with_serving(process, |_, serving| serving.writer.on_replica_fenced(seen));
        self.settle(process);
    }

    /// Keeps the server away for a while, or kills and restarts it.
    pub(crate) fn disturb_server(&mut self) {
        let until = self.kernel.now() + Nanos::from_ms(self.kernel.rng.pick(&[5, 200, 2000, 12_000]));
        let dies = self.kernel.rng.chance(500);
        let Some(server) = &mut self.server else { return };
        if !server.up {
            return;
        }
        if dies {
            server.up = false;
            server.boot += 1;
            self.kernel.hit("shared: deaths of the server");
            self.kernel.tell(|| String::from("the server dies"));
            self.kernel.push(until, WorldEvent::ServerStarts);
        } else {
            server.away_until = until;
            self.kernel.hit("shared: absences of the server");
            self.kernel.tell(|| String::from("the server is away"));
        }
    }

    pub(crate) fn on_server_starts(&mut self) {
        if let Some(server) = &mut self.server {
            server.up = true;
        }
        self.kernel.tell(|| String::from("the server is up"));
        let serving: Vec<usize> = (0..self.processes.len())
            .filter(|&process| self.alive(process))
            .collect();
        serving.into_iter().for_each(|process| self.settle(process));
    }

    /// Time until which no message passes between the server and its node, if there is one.
    pub(crate) fn server_away(&self) -> Option<Time> {
        let until = self.server.as_ref()?.away_until;
        (until > self.kernel.now()).then_some(until)
    }

    pub(crate) fn heal_server(&mut self) {
        if let Some(server) = &mut self.server {
            server.away_until = Time(0);
            server.up = true;
        }
    }
}
