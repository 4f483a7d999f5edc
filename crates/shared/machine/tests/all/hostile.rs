//! Peers that say anything: the machines go on, for everybody else.

use std::sync::Arc;

use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::View;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::ChainPoint;
use netram_shared_machine::lock::{LockOrder, LockRequestId, LockRequester, ToCache, ToService, TokenClaim};
use netram_shared_machine::message::{
    JoinReply, JoinRequest, OrphanJournalId, PeerEndpoint, PeerHint, RecordOutcome, RegionOpening,
};
use netram_shared_machine::node::{NodeConfig, NodeEnd, NodePhase, PinnedOverflow, RegionNode};
use netram_shared_machine::server::{
    FenceReason, LinkEnd, NodeState, RegionServer, RegionState, ServerAction, ServerConfig, SessionId,
};
use netram_shared_machine::{
    GrantNumber, InvalidRecord, LockId, LockMode, LockVersion, NodeId, Position, RecordNumber, RegionId,
    Stamp, ToNode, ToServer,
};

use super::world::SplitMix;
use super::world::bytes::{self, PayloadBytes};

pub(super) fn server() -> RegionServer<PayloadBytes> {
    let config = ServerConfig {
        lease: Nanos::from_ms(100),
        recent_bytes_max: 300,
        page_bytes: 64,
        forget_retry: Nanos::from_ms(1000),
        opening: RegionOpening {
            bytes: 128,
            ..RegionOpening::default()
        },
    };
    let table = RegionState {
        versions: (0..4).map(|lock| (LockId(lock), LockVersion(0))).collect(),
        ..RegionState::default()
    };
    RegionServer::new(config, table, Time(0))
}

pub(super) fn join(journal: u128) -> JoinRequest {
    JoinRequest {
        region: None,
        name: String::new(),
        view: View::first(JournalId(journal)),
        key: Vec::new(),
        begins: ChainPoint::default(),
        lazy: false,
        link: 1,
    }
}

/// Carries out what a server says, at once; what became of nodes.
pub(super) fn carry_out(
    server: &mut RegionServer<PayloadBytes>,
    now: Time,
    sessions: u64,
) -> Vec<(NodeId, FenceReason)> {
    let mut fenced = Vec::new();
    loop {
        while let Some(deed) = server.poll() {
            match deed {
                ServerAction::Store { ticket, .. } => server.on_stored(now, ticket),
                ServerAction::Apply { position, .. } => server.on_durable(position),
                ServerAction::Recover { node, .. } => server.on_recovered(node, Vec::new()),
                ServerAction::Fenced { node, why } | ServerAction::Refused { node, why } => {
                    fenced.push((node, why))
                }
                ServerAction::Forget { .. } => (),
                ServerAction::Close(session) => server.on_closed(now, session, LinkEnd::Broken),
            }
        }
        let mut sent = (1..=sessions).filter_map(|session| server.poll_send(SessionId(session)));
        if sent.next().is_none() {
            return fenced;
        }
    }
}

pub(super) fn tail(number: u64, written: &[(u32, u64)]) -> ToServer<PayloadBytes> {
    let written = written.iter();
    let stamp = Stamp {
        written: written
            .map(|(lock, version)| (LockId(*lock), LockVersion(*version)))
            .collect(),
        read: Vec::new(),
    };
    ToServer::Record {
        number: RecordNumber(number),
        end: ChainPoint {
            lsn: Lsn(number * 64),
            chain: 0,
        },
        acked: true,
        payload: bytes::record(&stamp, &[]),
    }
}

/// Nodes 1 and 2 have joined; node 1 has lock 0 alone.
pub(super) fn two_nodes() -> (RegionServer<PayloadBytes>, Time) {
    let (mut server, now) = (server(), Time(1));
    for session in 1..=2 {
        server.handle(now, SessionId(session), ToServer::Join(join(session.into())));
        carry_out(&mut server, now, 2);
    }
    server.handle(now, SessionId(1), acquire(0));
    carry_out(&mut server, now, 2);
    assert_eq!(
        server.locks().holds(NodeId(1), LockId(0)),
        Some(LockMode::Exclusive)
    );
    (server, now)
}

/// The lock is wanted alone.
fn acquire(lock: u32) -> ToServer<PayloadBytes> {
    ToServer::Lock(ToService::Acquire {
        lock: LockId(lock),
        hold: LockMode::Exclusive,
        order: LockOrder::Up,
        ask: LockRequestId(1),
    })
}

#[test]
fn a_record_under_a_lock_that_its_node_does_not_hold_is_refused_and_the_node_fenced() {
    let (mut server, now) = two_nodes();
    server.handle(now, SessionId(2), tail(1, &[(0, 1)]));
    assert_eq!(
        carry_out(&mut server, now, 2),
        [(NodeId(2), FenceReason::Unlocked(LockId(0)))]
    );
    // A lock that the region has not.
    server.handle(now, SessionId(1), tail(1, &[(77, 1)]));
    assert_eq!(
        carry_out(&mut server, now, 2),
        [(NodeId(1), FenceReason::Unlocked(LockId(77)))]
    );
    assert_eq!(server.newest(), Position(0));
}

/// While a node resumes its claims are not known; but what it may have is, unless the server has started
/// since. It could take another's version otherwise, and that one would be fenced for it.
#[test]
fn a_record_under_anothers_lock_is_refused_of_one_that_resumes_too() {
    let (mut server, now) = two_nodes();
    let resume = |node: u64| ToServer::Resume {
        region: RegionId(0),
        node: NodeId(node),
        link: 2,
        whole: true,
        applied: Vec::new(),
    };
    server.handle(now, SessionId(3), resume(2));
    server.handle(now, SessionId(3), tail(1, &[(0, 1)]));
    assert_eq!(
        carry_out(&mut server, now, 3),
        [(NodeId(2), FenceReason::Unlocked(LockId(0)))]
    );
    // The one that has the lock sends again what did not come.
    server.handle(now, SessionId(4), resume(1));
    server.handle(now, SessionId(4), tail(1, &[(0, 1)]));
    assert_eq!(carry_out(&mut server, now, 4), []);
    assert_eq!(server.newest(), Position(1));
}

#[test]
fn a_record_out_of_its_number_is_refused_and_a_version_that_jumps_is_named() {
    let (mut server, now) = two_nodes();
    server.handle(now, SessionId(1), tail(1, &[(0, 5)]));
    assert!(carry_out(&mut server, now, 2).is_empty());
    assert_eq!(server.newest(), Position(0));
    let missing = server.missing();
    assert_eq!((missing[0].lock, missing[0].needs), (LockId(0), LockVersion(4)));
    server.handle(now, SessionId(1), tail(3, &[(0, 6)]));
    let number = InvalidRecord::Number {
        node: NodeId(1),
        expected: RecordNumber(2),
        found: RecordNumber(3),
    };
    assert_eq!(
        carry_out(&mut server, now, 2),
        [(NodeId(1), FenceReason::Alien(number))]
    );
}

/// What no node can bring any more is waited for by nobody for ever: that is said, and whoever looks after
/// the region may give it up.
#[test]
fn a_dead_nodes_record_that_needs_what_nobody_has_is_hopeless_and_can_be_given_up() {
    let (mut server, now) = two_nodes();
    server.report_violation(NodeId(1), "a lie");
    let found = |server: &mut RegionServer<PayloadBytes>, node: u64, jumps: bool| {
        let version = if jumps { 5 } else { 1 };
        let ToServer::Record { payload, .. } = tail(1, &[(0, version)]) else {
            unreachable!("that is what it is")
        };
        server.on_recovered(NodeId(node), vec![(RecordNumber(1), payload)]);
    };
    assert!(server.unmergeable().is_empty());
    let mut tickets = Vec::new();
    while let Some(deed) = server.poll() {
        if let ServerAction::Store { ticket, .. } = deed {
            tickets.push(ticket);
        }
    }
    tickets.iter().for_each(|ticket| server.on_stored(now, *ticket));
    found(&mut server, 1, true);
    let hopeless = server.unmergeable();
    assert_eq!((hopeless[0].node, hopeless[0].needs), (NodeId(1), LockVersion(4)));
    // While a node's journal is still to be read, it may have that.
    server.report_violation(NodeId(2), "another");
    assert!(server.unmergeable().is_empty());
    assert!(!server.give_up(NodeId(1)));
    assert_eq!(server.node_state(NodeId(1)), Some(NodeState::Read));
    carry_out(&mut server, now, 2);
    assert_eq!(server.node_state(NodeId(2)), Some(NodeState::Gone));
    assert!(server.give_up(NodeId(1)));
    let given_up = carry_out(&mut server, now, 2);
    assert!(
        matches!(given_up[..], [(NodeId(1), FenceReason::GivenUp(_))]),
        "{given_up:?}"
    );
    assert_eq!(server.node_state(NodeId(1)), Some(NodeState::Gone));
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), None);
}

fn small(dice: &mut SplitMix) -> u64 {
    match dice.below(12) {
        0 => u64::MAX,
        1 => 1 << 40,
        _ => dice.below(4),
    }
}

fn anything(dice: &mut SplitMix) -> ToServer<PayloadBytes> {
    let (node, number) = (NodeId(small(dice)), RecordNumber(small(dice)));
    let lock = LockId(small(dice) as u32);
    let hold = if dice.percent(50) {
        LockMode::Shared
    } else {
        LockMode::Exclusive
    };
    let asker = LockRequester {
        node,
        ask: LockRequestId(small(dice)),
    };
    match dice.below(16) {
        0 => ToServer::Join(join(dice.below(6).into())),
        1 => ToServer::Resume {
            region: RegionId(0),
            node,
            link: 2,
            whole: dice.percent(80),
            applied: (1..4)
                .map(|node| (NodeId(node), RecordNumber(small(dice))))
                .collect(),
        },
        2 => {
            let (grant, version) = (GrantNumber(small(dice)), LockVersion(small(dice)));
            ToServer::Claims(vec![TokenClaim {
                lock,
                grant,
                hold,
                version,
            }])
        }
        3 => ToServer::Claims(Vec::new()),
        4..=6 => tail(small(dice) >> 8, &[(lock.0, small(dice).max(1))]),
        7 | 8 => {
            let order = [LockOrder::Up, LockOrder::Upgrade, LockOrder::Out][dice.below(3) as usize];
            let ask = LockRequestId(small(dice));
            ToServer::Lock(ToService::Acquire {
                lock,
                hold,
                order,
                ask,
            })
        }
        9 => ToServer::Lock(ToService::Release {
            lock,
            grant: GrantNumber(small(dice)),
            version: LockVersion(small(dice)),
            keep: dice.percent(50).then_some(hold),
        }),
        10 => ToServer::Lock(ToService::Die { lock, asker }),
        11 => ToServer::View(View::first(JournalId(dice.below(6).into()))),
        12 => ToServer::Outcome { node, number },
        13 => {
            let journal = JournalId(dice.below(6).into());
            ToServer::OfferOrphan {
                old: OrphanJournalId { node, journal },
                last: number,
            }
        }
        14 => {
            let payload: PayloadBytes = Arc::from([dice.next() as u8, 0, 0]);
            ToServer::OrphanRecord {
                node,
                number,
                payload,
            }
        }
        _ => match dice.below(5) {
            0 => ToServer::Pull,
            2 | 3 => ToServer::Endpoint(PeerEndpoint {
                address: "x".repeat(dice.below(3) as usize),
                tune: None,
            }),
            1 => ToServer::Leave,
            _ => ToServer::Ping {
                nonce: small(dice),
                applied: Position(small(dice)),
            },
        },
    }
}

#[test]
fn whatever_strangers_and_nodes_say_no_lock_has_two_writers() {
    for seed in 0..2000 {
        let mut dice = SplitMix::new(seed);
        let (mut server, mut now) = (server(), Time(1));
        for _ in 0..60 {
            let session = SessionId(1 + dice.below(4));
            now = now + Nanos::from_ms(dice.below(8));
            match dice.below(20) {
                0 => server.on_closed(now, session, LinkEnd::Broken),
                2 => server.on_closed(now, session, LinkEnd::HungUp),
                1 => server.on_tick(now),
                _ => server.handle(now, session, anything(&mut dice)),
            }
            carry_out(&mut server, now, 4);
            for lock in (0..4).map(LockId) {
                let holders: Vec<LockMode> = server.locks().holders(lock).map(|(_, hold)| hold).collect();
                let alone = holders.len() == 1;
                assert!(
                    alone || !holders.contains(&LockMode::Exclusive),
                    "seed {seed}: {holders:?}"
                );
            }
        }
    }
}

fn any_answer(dice: &mut SplitMix) -> ToNode<PayloadBytes> {
    let (node, number) = (NodeId(small(dice)), RecordNumber(small(dice)));
    let lock = LockId(small(dice) as u32);
    let version = LockVersion(small(dice));
    match dice.below(16) {
        0 | 1 => ToNode::Joined(JoinReply {
            node: NodeId(7),
            lease: Nanos(small(dice)),
            position: Position(small(dice)),
            opening: RegionOpening::default(),
            applied: vec![(NodeId(1), number)],
            versions: vec![(LockId(0), version)],
        }),
        2 => ToNode::Page {
            offset: small(dice),
            bytes: Arc::from([1, 2]),
        },
        3 | 4 => ToNode::Current,
        5 => ToNode::Resumed {
            merged: number,
            position: Position(small(dice)),
            ahead: vec![(node, number)],
        },
        6 => {
            let stamp = Stamp {
                written: vec![(lock, LockVersion(version.0.max(1)))],
                read: Vec::new(),
            };
            let payload = bytes::record(&stamp, &[]);
            ToNode::Record {
                position: Position(small(dice)),
                node,
                number,
                payload,
            }
        }
        7 => ToNode::Record {
            position: Position(small(dice)),
            node,
            number,
            payload: Arc::from([9, 9]),
        },
        8 => ToNode::Lock(ToCache::Grant {
            lock,
            grant: GrantNumber(small(dice)),
            hold: LockMode::Shared,
            version,
        }),
        9 => {
            let asker = LockRequester {
                node,
                ask: LockRequestId(1),
            };
            let grant = GrantNumber(small(dice));
            ToNode::Lock(ToCache::Recall {
                lock,
                grant,
                keep: None,
                asker,
                waits: dice.percent(50),
            })
        }
        10 => ToNode::Durable {
            number,
            end: ChainPoint::default(),
            view: small(dice),
        },
        11 => ToNode::Pong {
            nonce: small(dice),
            newest: Position(small(dice)),
        },
        12 => ToNode::Outcome {
            node,
            number,
            fate: RecordOutcome::Open,
        },
        13 => ToNode::Peer {
            node,
            reach: dice.percent(80).then(PeerEndpoint::default),
        },
        14 => match dice.percent(80) {
            true => ToNode::PeerGroup { group: String::new() },
            false => ToNode::Gone { node, last: number },
        },
        _ => ToNode::Rejoin,
    }
}

fn any_hint(dice: &mut SplitMix) -> PeerHint<PayloadBytes> {
    let stamp = Stamp {
        written: vec![(LockId(dice.below(3) as u32), LockVersion(small(dice).max(1)))],
        read: Vec::new(),
    };
    PeerHint {
        node: NodeId(small(dice)),
        number: RecordNumber(small(dice)),
        needs: vec![(NodeId(small(dice)), RecordNumber(small(dice)))],
        payload: match dice.percent(80) {
            true => bytes::record(&stamp, &[]),
            false => Arc::from([9, 9]),
        },
    }
}

#[test]
fn whatever_a_server_says_a_node_ends_by_itself_and_applies_nothing_that_does_not_follow_on() {
    let mut misled = 0;
    for seed in 0..2000 {
        let mut dice = SplitMix::new(seed);
        let mut node: RegionNode<PayloadBytes> = RegionNode::new(NodeConfig {
            join: join(1),
            pinned_bytes_max: 10,
            full: PinnedOverflow::Expire,
        });
        let mut now = Time(1);
        for _ in 0..40 {
            now = now + Nanos::from_ms(dice.below(8));
            match dice.below(10) {
                0 => node.on_unlinked(),
                1 | 2 => node.on_linked(),
                3 => node.on_tick(now),
                4 => node.set_reach(PeerEndpoint::default()),
                5 => drop(node.on_hint(now, any_hint(&mut dice))),
                _ => node.handle(now, any_answer(&mut dice)),
            }
            while node.poll().is_some() {}
        }
        misled += u64::from(matches!(node.state(), NodePhase::Over(NodeEnd::Violation(_))));
    }
    assert!(misled > 500, "{misled}");
}

/// A node gave its first link up before it had an answer, and came over another. What it had said first
/// arrives late: the machine of whoever closes a link goes on sending what is in it. It was believed, and the
/// locks that the node had been given since were free for all.
#[test]
fn what_a_node_said_first_over_a_link_that_it_gave_up_takes_nothing_from_it() {
    let (mut server, now) = (server(), Time(0));
    let over = |link| ToServer::Join(JoinRequest { link, ..join(1) });
    server.handle(now, SessionId(2), over(2));
    carry_out(&mut server, now, 3);
    server.handle(now, SessionId(2), acquire(0));
    carry_out(&mut server, now, 3);
    let held = Some(LockMode::Exclusive);
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), held);
    server.handle(now, SessionId(1), over(1));
    assert_eq!(carry_out(&mut server, now, 3), []);
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), held);
    assert_eq!(server.node(SessionId(2)), Some(NodeId(1)));
    let resume = |link| ToServer::Resume {
        region: RegionId(0),
        node: NodeId(1),
        link,
        whole: false,
        applied: Vec::new(),
    };
    server.handle(now, SessionId(3), resume(2));
    assert_eq!(carry_out(&mut server, now, 4), []);
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), held);
    // A later one is one.
    server.handle(now, SessionId(4), resume(3));
    carry_out(&mut server, now, 5);
    assert_eq!(server.node(SessionId(4)), Some(NodeId(1)));
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), None);
}

/// Whom the server asks when a node is gone follows from its newest view: no older one takes its place, nor
/// another journal's.
#[test]
fn a_view_that_is_older_or_another_journals_fences_its_node() {
    let view = |journal: u128, version| View {
        version,
        ..View::first(JournalId(journal))
    };
    for wrong in [view(1, 4), view(7, 9)] {
        let (mut server, now) = two_nodes();
        server.handle(now, SessionId(1), ToServer::View(view(1, 5)));
        assert_eq!(carry_out(&mut server, now, 2), []);
        server.handle(now, SessionId(1), ToServer::View(wrong));
        let fenced = carry_out(&mut server, now, 2);
        assert!(
            matches!(fenced[..], [(NodeId(1), FenceReason::OutOfPlace(_))]),
            "{fenced:?}"
        );
    }
}

/// Nobody was heard meanwhile, and that was not the nodes' fault.
#[test]
fn a_server_that_slept_fences_nobody_for_it() {
    let (mut server, now) = two_nodes();
    let later = now + Nanos::from_ms(1000);
    server.on_tick(later);
    assert_eq!(carry_out(&mut server, later, 2), []);
    let mut then = later;
    for _ in 0..11 {
        then = then + Nanos::from_ms(10);
        server.on_tick(then);
    }
    assert_eq!(
        carry_out(&mut server, then, 2).len(),
        2,
        "after that, silence counts"
    );
}

/// Until its id is durable, which may take long, a node cannot know that it is to be heard.
#[test]
fn a_lease_runs_from_when_the_node_id_is_durable() {
    let (mut server, now) = (server(), Time(0));
    server.handle(now, SessionId(1), ToServer::Join(join(1)));
    let mut then = now;
    for _ in 0..30 {
        then = then + Nanos::from_ms(10);
        server.on_tick(then);
    }
    assert_eq!(carry_out(&mut server, then, 1), []);
    server.on_tick(then + Nanos::from_ms(20));
    assert_eq!(carry_out(&mut server, then, 1), []);
}
