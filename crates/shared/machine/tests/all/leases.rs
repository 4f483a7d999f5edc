//! When a node is taken for dead: by silence, or by the end of its link.

use netram_proto::time::{Nanos, Time};
use netram_shared_machine::lock::TokenClaim;
use netram_shared_machine::server::{FenceReason, LinkEnd, LinkOutput, NodeState, RegionServer, SessionId};
use netram_shared_machine::{
    GrantNumber, LockId, LockMode, LockVersion, NodeId, Position, RecordNumber, RegionId, ToNode, ToServer,
};

use super::hostile::{carry_out, tail, two_nodes};
use super::world::bytes::PayloadBytes;

const ONE: NodeId = NodeId(1);

/// Lets time pass like a driver that sleeps until the next deadline.
fn pass(server: &mut RegionServer<PayloadBytes>, now: &mut Time, time: Nanos) -> Vec<(NodeId, FenceReason)> {
    let (until, mut fenced) = (*now + time, Vec::new());
    while *now < until {
        let next = server.deadline().unwrap_or(until).min(until).max(*now);
        *now = next.min(*now + Nanos::from_ms(10));
        server.on_tick(*now);
        fenced.extend(carry_out(server, *now, 4));
    }
    fenced
}

fn ping(server: &mut RegionServer<PayloadBytes>, now: Time, session: u64) {
    let (nonce, applied) = (1, Position(0));
    server.handle(now, SessionId(session), ToServer::Ping { nonce, applied });
}

#[test]
fn a_node_whose_machine_closed_its_link_is_dead_after_a_quarter_lease() {
    let (mut server, mut now) = two_nodes();
    server.handle(now, SessionId(1), tail(1, &[(0, 1)]));
    server.on_closed(now, SessionId(1), LinkEnd::HungUp);
    assert_eq!(server.deadline(), Some(now + Nanos::from_ms(25)));
    assert_eq!(pass(&mut server, &mut now, Nanos::from_ms(24)), []);
    ping(&mut server, now, 2);
    assert_eq!(
        pass(&mut server, &mut now, Nanos::from_ms(1)),
        [(ONE, FenceReason::Dead)]
    );
    assert_eq!(server.node_state(ONE), Some(NodeState::Gone));
    assert_eq!(
        server.locks().version(LockId(0)),
        Some(LockVersion(1)),
        "what it had sent counts"
    );
    assert_eq!(server.locks().holds(ONE, LockId(0)), None);
}

#[test]
fn a_node_that_reconnects_in_time_is_not_dead() {
    let (mut server, mut now) = two_nodes();
    server.on_closed(now, SessionId(1), LinkEnd::HungUp);
    pass(&mut server, &mut now, Nanos::from_ms(20));
    let resume = ToServer::Resume {
        region: RegionId(0),
        node: ONE,
        link: 2,
        whole: true,
        applied: Vec::new(),
    };
    server.handle(now, SessionId(3), resume);
    carry_out(&mut server, now, 4);
    let claims = vec![TokenClaim {
        lock: LockId(0),
        grant: GrantNumber(1),
        hold: LockMode::Exclusive,
        version: LockVersion(0),
    }];
    server.handle(now, SessionId(3), ToServer::Claims(claims));
    ping(&mut server, now, 2);
    assert_eq!(pass(&mut server, &mut now, Nanos::from_ms(60)), []);
    assert_eq!(server.node_state(ONE), Some(NodeState::Live));
    server.handle(now, SessionId(3), tail(1, &[(0, 1)]));
    assert_eq!(carry_out(&mut server, now, 4), []);
    assert_eq!(server.newest(), Position(1));
}

/// The node has no room for more messages, and sends pings. When the maximum of answers waited for it,
/// nothing more was read from it, and it was fenced.
#[test]
fn pings_of_a_node_that_reads_nothing_renew_its_lease_and_queue_one_answer() {
    let (mut server, mut now) = two_nodes();
    for nonce in 1..=1000 {
        server.handle(
            now,
            SessionId(1),
            ToServer::Ping {
                nonce,
                applied: Position(0),
            },
        );
        now = now + Nanos::from_ms(25);
        server.on_tick(now);
        assert_eq!(server.urgent(SessionId(1)), 1);
    }
    assert_eq!(server.node_state(ONE), Some(NodeState::Live));
    // An answer behind another kind of answer keeps its place.
    let (node, number) = (ONE, RecordNumber(1));
    server.handle(now, SessionId(1), ToServer::Outcome { node, number });
    ping(&mut server, now, 1);
    let said = std::iter::from_fn(|| server.poll_send(SessionId(1)));
    let pongs: Vec<Option<u64>> = said
        .map(|outgoing| match outgoing {
            LinkOutput::Message(ToNode::Pong { nonce, .. }) => Some(nonce),
            _ => None,
        })
        .collect();
    assert_eq!(pongs, [Some(1000), None, Some(1)]);
}

#[test]
fn a_node_with_a_broken_link_keeps_its_lease_to_the_end() {
    let (mut server, mut now) = two_nodes();
    server.on_closed(now, SessionId(1), LinkEnd::Broken);
    pass(&mut server, &mut now, Nanos::from_ms(60));
    ping(&mut server, now, 2);
    assert_eq!(pass(&mut server, &mut now, Nanos::from_ms(39)), []);
    assert_eq!(server.deadline(), Some(now + Nanos::from_ms(1)));
    assert_eq!(
        pass(&mut server, &mut now, Nanos::from_ms(1)),
        [(ONE, FenceReason::Silent)]
    );
}
