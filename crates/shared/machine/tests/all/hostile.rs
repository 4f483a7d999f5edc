//! Peers that say anything: the machines go on, for everybody else.

use std::sync::Arc;

use netram_proto::id::{JournalId, Lsn};
use netram_proto::journal::View;
use netram_proto::time::{Span, Time};
use netram_proto::wire::Link;
use netram_shared_machine::lock::{Ask, Asker, Claim, Order, ToCache, ToService};
use netram_shared_machine::message::{Fate, Hint, Join, Joined, OldJournal, Opening, Reach};
use netram_shared_machine::node::{Full, Node, NodeConfig, Over, State};
use netram_shared_machine::server::{Closed, Deed, Server, ServerConfig, Session, Standing, Table, Why};
use netram_shared_machine::{
    Alien, Grant, Hold, LockId, NodeId, Number, Position, RegionId, Stamp, ToNode, ToServer, Version,
};

use super::world::Dice;
use super::world::bytes::{self, P};

pub(super) fn server() -> Server<P> {
    let config = ServerConfig {
        lease: Span::from_ms(100),
        recent_bytes_max: 300,
        page_bytes: 64,
        tell_again: Span::from_ms(1000),
        opening: Opening {
            bytes: 128,
            ..Opening::default()
        },
    };
    let table = Table {
        versions: (0..4).map(|lock| (LockId(lock), Version(0))).collect(),
        ..Table::default()
    };
    Server::new(config, table, Time(0))
}

pub(super) fn join(journal: u128) -> Join {
    Join {
        region: None,
        name: String::new(),
        view: View::first(JournalId(journal)),
        key: Vec::new(),
        begins: Link::default(),
        lazy: false,
        link: 1,
    }
}

/// Carries out what a server says, at once; what became of nodes.
pub(super) fn carry_out(server: &mut Server<P>, now: Time, sessions: u64) -> Vec<(NodeId, Why)> {
    let mut fenced = Vec::new();
    loop {
        while let Some(deed) = server.poll() {
            match deed {
                Deed::Store { ticket, .. } => server.on_stored(now, ticket),
                Deed::Apply { position, .. } => server.on_durable(position),
                Deed::Recover { node, .. } => server.on_recovered(node, Vec::new()),
                Deed::Fenced { node, why } | Deed::Refused { node, why } => fenced.push((node, why)),
                Deed::Forget { .. } => (),
                Deed::Close(session) => server.on_closed(now, session, Closed::Broken),
            }
        }
        let mut sent = (1..=sessions).filter_map(|session| server.poll_send(Session(session)));
        if sent.next().is_none() {
            return fenced;
        }
    }
}

pub(super) fn tail(number: u64, written: &[(u32, u64)]) -> ToServer<P> {
    let written = written.iter();
    let stamp = Stamp {
        written: written
            .map(|(lock, version)| (LockId(*lock), Version(*version)))
            .collect(),
        read: Vec::new(),
    };
    ToServer::Tail {
        number: Number(number),
        end: Link {
            lsn: Lsn(number * 64),
            chain: 0,
        },
        acked: true,
        payload: bytes::record(&stamp, &[]),
    }
}

/// Nodes 1 and 2 have joined; node 1 has lock 0 alone.
pub(super) fn two_nodes() -> (Server<P>, Time) {
    let (mut server, now) = (server(), Time(1));
    for session in 1..=2 {
        server.handle(now, Session(session), ToServer::Join(join(session.into())));
        carry_out(&mut server, now, 2);
    }
    server.handle(now, Session(1), acquire(0));
    carry_out(&mut server, now, 2);
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), Some(Hold::Exclusive));
    (server, now)
}

/// The lock is wanted alone.
fn acquire(lock: u32) -> ToServer<P> {
    ToServer::Lock(ToService::Acquire {
        lock: LockId(lock),
        hold: Hold::Exclusive,
        order: Order::Up,
        ask: Ask(1),
    })
}

#[test]
fn a_record_under_a_lock_that_its_node_does_not_hold_is_refused_and_the_node_fenced() {
    let (mut server, now) = two_nodes();
    server.handle(now, Session(2), tail(1, &[(0, 1)]));
    assert_eq!(
        carry_out(&mut server, now, 2),
        [(NodeId(2), Why::Unlocked(LockId(0)))]
    );
    // A lock that the region has not.
    server.handle(now, Session(1), tail(1, &[(77, 1)]));
    assert_eq!(
        carry_out(&mut server, now, 2),
        [(NodeId(1), Why::Unlocked(LockId(77)))]
    );
    assert_eq!(server.newest(), Position(0));
}

/// While a node resumes its claims are not known; but what it may have is, unless the server has started since. It could
/// take another's version otherwise, and that one would be fenced for it.
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
    server.handle(now, Session(3), resume(2));
    server.handle(now, Session(3), tail(1, &[(0, 1)]));
    assert_eq!(
        carry_out(&mut server, now, 3),
        [(NodeId(2), Why::Unlocked(LockId(0)))]
    );
    // The one that has the lock sends again what did not come.
    server.handle(now, Session(4), resume(1));
    server.handle(now, Session(4), tail(1, &[(0, 1)]));
    assert_eq!(carry_out(&mut server, now, 4), []);
    assert_eq!(server.newest(), Position(1));
}

#[test]
fn a_record_out_of_its_number_is_refused_and_a_version_that_jumps_is_named() {
    let (mut server, now) = two_nodes();
    server.handle(now, Session(1), tail(1, &[(0, 5)]));
    assert!(carry_out(&mut server, now, 2).is_empty());
    assert_eq!(server.newest(), Position(0));
    let missing = server.missing();
    assert_eq!((missing[0].lock, missing[0].needs), (LockId(0), Version(4)));
    server.handle(now, Session(1), tail(3, &[(0, 6)]));
    let number = Alien::Number {
        node: NodeId(1),
        expected: Number(2),
        found: Number(3),
    };
    assert_eq!(carry_out(&mut server, now, 2), [(NodeId(1), Why::Alien(number))]);
}

/// What no node can bring any more is waited for by nobody for ever: that is said, and whoever looks after the region may give it up.
#[test]
fn a_dead_nodes_record_that_needs_what_nobody_has_is_hopeless_and_can_be_given_up() {
    let (mut server, now) = two_nodes();
    server.accuse(NodeId(1), "a lie");
    let found = |server: &mut Server<P>, node: u64, jumps: bool| {
        let version = if jumps { 5 } else { 1 };
        let ToServer::Tail { payload, .. } = tail(1, &[(0, version)]) else {
            unreachable!("that is what it is")
        };
        server.on_recovered(NodeId(node), vec![(Number(1), payload)]);
    };
    assert!(server.hopeless().is_empty());
    let mut tickets = Vec::new();
    while let Some(deed) = server.poll() {
        if let Deed::Store { ticket, .. } = deed {
            tickets.push(ticket);
        }
    }
    tickets.iter().for_each(|ticket| server.on_stored(now, *ticket));
    found(&mut server, 1, true);
    let hopeless = server.hopeless();
    assert_eq!((hopeless[0].node, hopeless[0].needs), (NodeId(1), Version(4)));
    // While a node's journal is still to be read, it may have that.
    server.accuse(NodeId(2), "another");
    assert!(server.hopeless().is_empty());
    assert!(!server.give_up(NodeId(1)));
    assert_eq!(server.standing(NodeId(1)), Some(Standing::Read));
    carry_out(&mut server, now, 2);
    assert_eq!(server.standing(NodeId(2)), Some(Standing::Gone));
    assert!(server.give_up(NodeId(1)));
    let given_up = carry_out(&mut server, now, 2);
    assert!(
        matches!(given_up[..], [(NodeId(1), Why::GivenUp(_))]),
        "{given_up:?}"
    );
    assert_eq!(server.standing(NodeId(1)), Some(Standing::Gone));
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), None);
}

fn small(dice: &mut Dice) -> u64 {
    match dice.below(12) {
        0 => u64::MAX,
        1 => 1 << 40,
        _ => dice.below(4),
    }
}

fn anything(dice: &mut Dice) -> ToServer<P> {
    let (node, number) = (NodeId(small(dice)), Number(small(dice)));
    let lock = LockId(small(dice) as u32);
    let hold = if dice.percent(50) {
        Hold::Shared
    } else {
        Hold::Exclusive
    };
    let asker = Asker {
        node,
        ask: Ask(small(dice)),
    };
    match dice.below(16) {
        0 => ToServer::Join(join(dice.below(6).into())),
        1 => ToServer::Resume {
            region: RegionId(0),
            node,
            link: 2,
            whole: dice.percent(80),
            applied: (1..4).map(|node| (NodeId(node), Number(small(dice)))).collect(),
        },
        2 => {
            let (grant, version) = (Grant(small(dice)), Version(small(dice)));
            ToServer::Claims(vec![Claim {
                lock,
                grant,
                hold,
                version,
            }])
        }
        3 => ToServer::Claims(Vec::new()),
        4..=6 => tail(small(dice) >> 8, &[(lock.0, small(dice).max(1))]),
        7 | 8 => {
            let order = [Order::Up, Order::Upgrade, Order::Out][dice.below(3) as usize];
            let ask = Ask(small(dice));
            ToServer::Lock(ToService::Acquire {
                lock,
                hold,
                order,
                ask,
            })
        }
        9 => ToServer::Lock(ToService::Release {
            lock,
            grant: Grant(small(dice)),
            version: Version(small(dice)),
            keep: dice.percent(50).then_some(hold),
        }),
        10 => ToServer::Lock(ToService::Die { lock, asker }),
        11 => ToServer::View(View::first(JournalId(dice.below(6).into()))),
        12 => ToServer::Outcome { node, number },
        13 => {
            let journal = JournalId(dice.below(6).into());
            ToServer::Offer {
                old: OldJournal { node, journal },
                last: number,
            }
        }
        14 => {
            let payload: P = Arc::from([dice.next() as u8, 0, 0]);
            ToServer::OldTail {
                node,
                number,
                payload,
            }
        }
        _ => match dice.below(5) {
            0 => ToServer::Pull,
            2 | 3 => ToServer::Reach(Reach {
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
        let mut dice = Dice::new(seed);
        let (mut server, mut now) = (server(), Time(1));
        for _ in 0..60 {
            let session = Session(1 + dice.below(4));
            now = now + Span::from_ms(dice.below(8));
            match dice.below(20) {
                0 => server.on_closed(now, session, Closed::Broken),
                2 => server.on_closed(now, session, Closed::HungUp),
                1 => server.on_tick(now),
                _ => server.handle(now, session, anything(&mut dice)),
            }
            carry_out(&mut server, now, 4);
            for lock in (0..4).map(LockId) {
                let holders: Vec<Hold> = server.locks().holders(lock).map(|(_, hold)| hold).collect();
                let alone = holders.len() == 1;
                assert!(
                    alone || !holders.contains(&Hold::Exclusive),
                    "seed {seed}: {holders:?}"
                );
            }
        }
    }
}

fn any_answer(dice: &mut Dice) -> ToNode<P> {
    let (node, number) = (NodeId(small(dice)), Number(small(dice)));
    let lock = LockId(small(dice) as u32);
    let version = Version(small(dice));
    match dice.below(16) {
        0 | 1 => ToNode::Joined(Joined {
            node: NodeId(7),
            lease: Span(small(dice)),
            position: Position(small(dice)),
            opening: Opening::default(),
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
                written: vec![(lock, Version(version.0.max(1)))],
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
            grant: Grant(small(dice)),
            hold: Hold::Shared,
            version,
        }),
        9 => {
            let asker = Asker { node, ask: Ask(1) };
            let grant = Grant(small(dice));
            ToNode::Lock(ToCache::Recall {
                lock,
                grant,
                keep: None,
                asker,
                waits: dice.percent(50),
            })
        }
        10 => ToNode::Kept {
            number,
            end: Link::default(),
            view: small(dice),
        },
        11 => ToNode::Pong {
            nonce: small(dice),
            newest: Position(small(dice)),
        },
        12 => ToNode::Fate {
            node,
            number,
            fate: Fate::Open,
        },
        13 => ToNode::Peer {
            node,
            reach: dice.percent(80).then(Reach::default),
        },
        14 => match dice.percent(80) {
            true => ToNode::Meet { group: String::new() },
            false => ToNode::Gone { node, last: number },
        },
        _ => ToNode::Anew,
    }
}

fn any_hint(dice: &mut Dice) -> Hint<P> {
    let stamp = Stamp {
        written: vec![(LockId(dice.below(3) as u32), Version(small(dice).max(1)))],
        read: Vec::new(),
    };
    Hint {
        node: NodeId(small(dice)),
        number: Number(small(dice)),
        needs: vec![(NodeId(small(dice)), Number(small(dice)))],
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
        let mut dice = Dice::new(seed);
        let mut node: Node<P> = Node::new(NodeConfig {
            join: join(1),
            pinned_bytes_max: 10,
            full: Full::Expire,
        });
        let mut now = Time(1);
        for _ in 0..40 {
            now = now + Span::from_ms(dice.below(8));
            match dice.below(10) {
                0 => node.on_unlinked(),
                1 | 2 => node.on_linked(),
                3 => node.on_tick(now),
                4 => node.set_reach(Reach::default()),
                5 => drop(node.on_hint(now, any_hint(&mut dice))),
                _ => node.handle(now, any_answer(&mut dice)),
            }
            while node.poll().is_some() {}
        }
        misled += u64::from(matches!(node.state(), State::Over(Over::Misled(_))));
    }
    assert!(misled > 500, "{misled}");
}

/// A node gave its first link up before it had an answer, and came over another. What it had said first arrives late: the machine of
/// whoever closes a link goes on sending what is in it. It was believed, and the locks that the node had been given since were free for all.
#[test]
fn what_a_node_said_first_over_a_link_that_it_gave_up_takes_nothing_from_it() {
    let (mut server, now) = (server(), Time(0));
    let over = |link| ToServer::Join(Join { link, ..join(1) });
    server.handle(now, Session(2), over(2));
    carry_out(&mut server, now, 3);
    server.handle(now, Session(2), acquire(0));
    carry_out(&mut server, now, 3);
    let held = Some(Hold::Exclusive);
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), held);
    server.handle(now, Session(1), over(1));
    assert_eq!(carry_out(&mut server, now, 3), []);
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), held);
    assert_eq!(server.node(Session(2)), Some(NodeId(1)));
    let resume = |link| ToServer::Resume {
        region: RegionId(0),
        node: NodeId(1),
        link,
        whole: false,
        applied: Vec::new(),
    };
    server.handle(now, Session(3), resume(2));
    assert_eq!(carry_out(&mut server, now, 4), []);
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), held);
    // A later one is one.
    server.handle(now, Session(4), resume(3));
    carry_out(&mut server, now, 5);
    assert_eq!(server.node(Session(4)), Some(NodeId(1)));
    assert_eq!(server.locks().holds(NodeId(1), LockId(0)), None);
}

/// Whom the server asks when a node is gone follows from its newest view: no older one takes its place, nor another journal's.
#[test]
fn a_view_that_is_older_or_another_journals_fences_its_node() {
    let view = |journal: u128, version| View {
        version,
        ..View::first(JournalId(journal))
    };
    for wrong in [view(1, 4), view(7, 9)] {
        let (mut server, now) = two_nodes();
        server.handle(now, Session(1), ToServer::View(view(1, 5)));
        assert_eq!(carry_out(&mut server, now, 2), []);
        server.handle(now, Session(1), ToServer::View(wrong));
        let fenced = carry_out(&mut server, now, 2);
        assert!(
            matches!(fenced[..], [(NodeId(1), Why::OutOfPlace(_))]),
            "{fenced:?}"
        );
    }
}

/// Nobody was heard meanwhile, and that was not the nodes' fault.
#[test]
fn a_server_that_slept_fences_nobody_for_it() {
    let (mut server, now) = two_nodes();
    let later = now + Span::from_ms(1000);
    server.on_tick(later);
    assert_eq!(carry_out(&mut server, later, 2), []);
    let mut then = later;
    for _ in 0..11 {
        then = then + Span::from_ms(10);
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
    server.handle(now, Session(1), ToServer::Join(join(1)));
    let mut then = now;
    for _ in 0..30 {
        then = then + Span::from_ms(10);
        server.on_tick(then);
    }
    assert_eq!(carry_out(&mut server, then, 1), []);
    server.on_tick(then + Span::from_ms(20));
    assert_eq!(carry_out(&mut server, then, 1), []);
}
