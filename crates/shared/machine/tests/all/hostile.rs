//! Peers that send arbitrary messages: both machines keep working for all others.

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

/// Carries out a server's actions at once. Returns the nodes that were fenced or refused.
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

/// Nodes 1 and 2 have joined; node 1 holds lock 0 exclusively.
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

/// A request for exclusive access.
fn acquire(lock: u32) -> ToServer<PayloadBytes> {
    ToServer::Lock(ToService::Acquire {
        lock: LockId(lock),
        hold: LockMode::Exclusive,
        order: LockOrder::Up,
        ask: LockRequestId(1),
    })
}

#[test]
fn a_record_under_an_unheld_lock_fences_its_node() {
    let (mut server, now) = two_nodes();
    server.handle(now, SessionId(2), tail(1, &[(0, 1)]));
    assert_eq!(
        carry_out(&mut server, now, 2),
        [(NodeId(2), FenceReason::Unlocked(LockId(0)))]
    );
    // A lock that the region does not have.
    server.handle(now, SessionId(1), tail(1, &[(77, 1)]));
    assert_eq!(
        carry_out(&mut server, now, 2),
        [(NodeId(1), FenceReason::Unlocked(LockId(77)))]
    );
    assert_eq!(server.newest(), Position(0));
}

/// While a node resumes, its claims are not known. But its possible tokens are, unless the server has
/// restarted since. Otherwise it could make another node's version, and that node would be fenced for it.
#[test]
fn a_resuming_nodes_record_under_anothers_lock_is_refused() {
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
    // The node with the lock sends its unmerged record again.
    server.handle(now, SessionId(4), resume(1));
    server.handle(now, SessionId(4), tail(1, &[(0, 1)]));
    assert_eq!(carry_out(&mut server, now, 4), []);
    assert_eq!(server.newest(), Position(1));
}

#[test]
fn a_record_out_of_number_is_refused_and_a_skipped_version_is_reported() {
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

/// A record whose needed version can never come must not wait for ever: it is reported, and the operator may
/// give it up.
#[test]
fn a_dead_nodes_record_with_a_missing_version_can_be_given_up() {
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
    // While another node's journal is still to be read, it may have the version.
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
        kind @ 7..=10 => ToServer::Lock(any_lock_message(dice, kind, lock, hold, asker)),
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

fn any_lock_message(
    dice: &mut SplitMix,
    kind: u64,
    lock: LockId,
    hold: LockMode,
    asker: LockRequester,
) -> ToService {
    match kind {
        7 | 8 => {
            let order = [LockOrder::Up, LockOrder::Upgrade, LockOrder::Out][dice.below(3) as usize];
            let ask = LockRequestId(small(dice));
            ToService::Acquire {
                lock,
                hold,
                order,
                ask,
            }
        }
        9 => ToService::Release {
            lock,
            grant: GrantNumber(small(dice)),
            version: LockVersion(small(dice)),
            keep: dice.percent(50).then_some(hold),
        },
        _ => ToService::Die { lock, asker },
    }
}

#[test]
fn no_messages_give_a_lock_two_writers() {
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
        6 => ToNode::Record {
            position: Position(small(dice)),
            node,
            number,
            payload: record_under(lock, version),
        },
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
        9 => ToNode::Lock(any_recall(dice, node, lock)),
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

fn record_under(lock: LockId, version: LockVersion) -> PayloadBytes {
    let stamp = Stamp {
        written: vec![(lock, LockVersion(version.0.max(1)))],
        read: Vec::new(),
    };
    bytes::record(&stamp, &[])
}

fn any_recall(dice: &mut SplitMix, node: NodeId, lock: LockId) -> ToCache {
    let asker = LockRequester {
        node,
        ask: LockRequestId(1),
    };
    ToCache::Recall {
        lock,
        grant: GrantNumber(small(dice)),
        keep: None,
        asker,
        waits: dice.percent(50),
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
fn a_node_survives_any_server_messages_and_applies_only_consecutive_records() {
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

/// A node gave its first link up before it had an answer, and used another. Its first message arrives late,
/// since the machine of a closed link goes on sending buffered bytes. The message was believed, and the locks
/// granted since became free for all.
#[test]
fn a_late_first_message_of_an_abandoned_link_changes_nothing() {
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
    // A later first message is valid.
    server.handle(now, SessionId(4), resume(3));
    carry_out(&mut server, now, 5);
    assert_eq!(server.node(SessionId(4)), Some(NodeId(1)));
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), None);
}

/// The lenders to ask about a gone node follow from its newest view, which must not be replaced by an older
/// one or by another journal's.
#[test]
fn an_older_view_or_one_of_another_journal_fences_its_node() {
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

/// The server heard no node while it slept, which is not the nodes' fault.
#[test]
fn a_server_that_slept_fences_no_node_for_silence() {
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

/// Until its id is durable, which may take long, a node cannot know that it must send pings.
#[test]
fn a_lease_starts_when_the_node_id_is_durable() {
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
