//! A client with the cluster's key that means harm. It introduces itself at the server as a node that is
//! another's: it resumes, or joins with that node's journal, and names any link number. It owns a journal of
//! its own, or none.

use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::wire::ChainPoint;
use netram_shared_machine::limit::NODE_LINKS_MAX;
use netram_shared_machine::message::JoinRequest;
use netram_shared_machine::server::{LinkEnd, SessionId};
use netram_shared_machine::{NodeId, RegionId, ToServer};

use super::bytes::PayloadBytes;
use super::check::{RegionRule, fail};
use super::process::draw_owned;
use super::server_events::after_server;
use super::world::World;

/// Lets an intruder speak for one of the nodes that the server knows.
pub(super) fn intrude(world: &mut World) {
    let nodes: Vec<NodeId> = world.server.disk.table.nodes.keys().copied().collect();
    if nodes.is_empty() || !world.server.is_up() {
        return;
    }
    let node = nodes[world.kernel.rng.index(nodes.len())];
    let message = draw_introduction(world, node);
    let session = world.node_links.new_session();
    let own = world
        .kernel
        .rng
        .chance(500)
        .then(|| draw_owned(&mut world.kernel));
    world.kernel.tell(|| format!("an intruder says {message:?}"));
    world.kernel.hit("region: intruders that spoke for a node");
    speak(world, session, own.map(JournalId), node, message);
    after_server(world);
}

fn speak(
    world: &mut World,
    session: SessionId,
    own: Option<JournalId>,
    node: NodeId,
    message: ToServer<PayloadBytes>,
) {
    let now = world.server.local(world.kernel.now());
    let Some(process) = world.server.process_mut() else {
        return;
    };
    if let Some(own) = own {
        process.on_proven(session, own);
    }
    let before = process.node_state(node);
    process.handle(now, session, message);
    let (after, speaks_for) = (process.node_state(node), process.node(session));
    if before != after || speaks_for.is_some() {
        let what = format!("an intruder speaks for node {node}: {before:?}, then {after:?}");
        fail(RegionRule::Owner, &what);
    }
    process.on_closed(now, session, LinkEnd::HungUp);
}

fn draw_introduction(world: &mut World, node: NodeId) -> ToServer<PayloadBytes> {
    let link = world.kernel.rng.pick(&[1, 1000, NODE_LINKS_MAX]);
    if world.kernel.rng.chance(500) {
        return ToServer::Resume {
            region: RegionId(7),
            node,
            link,
            whole: world.kernel.rng.chance(500),
            applied: Vec::new(),
        };
    }
    let row = &world.server.disk.table.nodes[&node];
    let view = row.journal.as_ref().map(|journal| journal.view.clone());
    let (view, end) = (
        view.unwrap_or_else(|| View::first(row.id)),
        row.journal
            .as_ref()
            .map_or(ChainPoint::default(), |journal| journal.end),
    );
    ToServer::Join(JoinRequest {
        region: None,
        name: String::from("intruder"),
        view,
        key: Vec::new(),
        begins: world.kernel.rng.pick(&[end, ChainPoint::default()]),
        lazy: false,
        link,
    })
}
