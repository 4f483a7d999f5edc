//! A region that is served, and nodes that are played by hand: who hears what, who gets which lock, what becomes of those who
//! go, and of those who lie.

mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::history::{BYTES, SPAN, plan};
use common::script::{Bytes, Script, join_message};
use common::{Random, until};
use netram_proto::id::{Incarnation, JournalId};
use netram_proto::journal::{View, ViewMember};
use netram_proto::shared::lock::{Claim, ToCache};
use netram_proto::shared::message::{Fate, Join, Joined, OldJournal, Refused};
use netram_proto::shared::{Hold, LockId, NodeId, Number, RegionId, ToNode, ToServer, Version};
use netram_shared::channel::Channel;
use netram_shared::server::serve::control;
use netram_shared::server::serve::report::NodeReport;
use netram_shared::server::{ServeConfig, ServeError, Serving, Store};
use netram_transport::{Address, ClusterKey, Security};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(60);

struct Place {
    serving: Option<Serving>,
    security: Security,
    segment: u32,
    lease: Duration,
    folder: tempfile::TempDir,
}

impl Place {
    fn new(lease: Duration) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("region");
        Store::create(&root, &plan(1 << 20)).unwrap();
        let (store, _) = Store::open(&root, || ()).unwrap();
        let segment = store.segment();
        store.close().unwrap();
        let mut place = Place {
            serving: None,
            security: Security::Key(ClusterKey::generate()),
            segment,
            lease,
            folder,
        };
        place.start();
        place
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("region")
    }

    fn config(&self) -> ServeConfig {
        let listen = vec!["tcp://127.0.0.1:0".parse().unwrap()];
        ServeConfig {
            lease: self.lease,
            ..ServeConfig::new(listen, self.security.clone())
        }
    }

    fn start(&mut self) {
        self.serving = Some(Serving::start(&self.root(), self.config()).unwrap());
    }

    fn stop(&mut self) {
        let serving = self.serving.take().unwrap();
        serving.stop();
        serving.wait().unwrap();
    }

    fn serving(&self) -> &Serving {
        self.serving.as_ref().unwrap()
    }

    fn address(&self) -> &Address {
        &self.serving().addresses()[0]
    }

    fn join(&self, journal: u128) -> (Script, Joined) {
        Script::join(self.address(), &self.security, self.segment, journal)
    }

    /// A node that has the whole region.
    fn node(&self, journal: u128) -> Script {
        let (mut script, _) = self.join(journal);
        script.whole(BYTES);
        script
    }

    fn stranger(&self) -> Script {
        Script::stranger(self.address(), &self.security, self.segment)
    }

    fn report_of(&self, node: NodeId) -> Option<NodeReport> {
        let report = self.serving().report()?;
        report.nodes.into_iter().find(|one| one.node == node.0)
    }
}

#[test]
fn a_record_is_with_the_others_before_the_lock_is() {
    let place = Place::new(LONG);
    let (mut one, mut other) = (place.node(1), place.node(2));
    let (grant, version) = one.acquire(3);
    assert_eq!(version, Version(0));
    let written = one.write(3, 1, b"drawn");
    assert_eq!(other.next_record(), (one.id, Number(1), written));
    other.ask(3, Hold::Exclusive);
    let recalled = one.expect("Recall", |message| match message {
        ToNode::Lock(ToCache::Recall { lock, grant, .. }) => Some((*lock, *grant)),
        _ => None,
    });
    assert_eq!(recalled, (LockId(3), grant));
    let again = one.write(3, 2, b"again");
    one.release(3, grant, Version(2));
    assert_eq!(other.next_record(), (one.id, Number(2), again));
    let (later, version) = other.granted(3);
    assert!(later > grant);
    assert_eq!(version, Version(2));
    one.kept(Number(2));

    // Who comes now gets it in the pages, and is told what is in them.
    let (mut late, joined) = place.join(3);
    assert_eq!(joined.applied, [(one.id, Number(2))]);
    assert_eq!(joined.versions, [(LockId(3), Version(2))]);
    assert_eq!(joined.opening.bytes, BYTES);
    let region = late.whole(BYTES);
    let start = 3 * SPAN as usize;
    assert_eq!(region[start..start + 5], *b"again");
    assert!(region[..start].iter().all(|byte| *byte == 0));

    let report = control::ask(&place.root()).unwrap().unwrap();
    assert_eq!((report.position, report.nodes.len()), (2, 3));
    assert_eq!(report.addresses, [place.address().to_string()]);
    let first = &report.nodes[0];
    assert_eq!((first.merged, first.standing.as_str()), (2, "live"));
}

#[test]
fn many_records_come_to_everybody_in_one_order() {
    let place = Place::new(LONG);
    let mut nodes: Vec<Script> = (1..=3).map(|journal| place.node(journal)).collect();
    for (index, node) in nodes.iter_mut().enumerate() {
        node.acquire(index as u32);
    }
    const RECORDS: u64 = 200;
    for version in 1..=RECORDS {
        for (index, node) in nodes.iter_mut().enumerate() {
            node.write(index as u32, version, &version.to_le_bytes());
        }
    }
    for node in &mut nodes {
        let mut seen = std::collections::BTreeMap::new();
        for _ in 0..2 * RECORDS {
            let (whose, number, _) = node.next_record();
            let before = seen.insert(whose, number).unwrap_or_default();
            assert_eq!(number, before.next(), "of node {whose}");
            assert_ne!(whose, node.id);
        }
    }
    for node in &mut nodes {
        node.kept(Number(RECORDS));
    }
}

#[test]
fn a_node_goes_on_over_another_link() {
    let place = Place::new(LONG);
    let (mut one, mut other) = (place.node(1), place.node(2));
    let (grant, _) = one.acquire(0);
    one.write(0, 1, b"a");
    assert_eq!(other.next_record().1, Number(1));
    let merged = one.resume(place.address(), &place.security, Vec::new());
    assert_eq!(merged, Number(1));
    // One that never left by the link before.
    one.write(0, 2, b"b");
    one.say(&ToServer::Claims(vec![Claim {
        lock: LockId(0),
        grant,
        hold: Hold::Exclusive,
        version: Version(2),
    }]));
    assert_eq!(other.next_record().1, Number(2));
    one.write(0, 3, b"c");
    assert_eq!(other.next_record().1, Number(3));
    // The other had heard two when its link broke.
    let of_one = vec![(one.id, Number(2))];
    other.resume(place.address(), &place.security, of_one);
    assert_eq!(other.next_record().1, Number(3));
    assert!(place.report_of(one.id).unwrap().peer.is_some());
}

#[test]
fn the_next_server_goes_on_where_the_last_stopped() {
    let mut place = Place::new(LONG);
    let (mut one, mut other) = (place.node(1), place.node(2));
    let (grant, _) = one.acquire(0);
    one.write(0, 1, b"a");
    one.kept(Number(1));
    place.stop();
    assert!(control::ask(&place.root()).unwrap().is_none());
    place.start();
    assert_eq!(
        one.resume(place.address(), &place.security, Vec::new()),
        Number(1)
    );
    one.say(&ToServer::Claims(vec![Claim {
        lock: LockId(0),
        grant,
        hold: Hold::Exclusive,
        version: Version(1),
    }]));
    let of_one = vec![(one.id, Number(1))];
    other.resume(place.address(), &place.security, of_one);
    other.say(&ToServer::Claims(Vec::new()));
    one.write(0, 2, b"b");
    assert_eq!(other.next_record().1, Number(2));
    let (later, _) = other.acquire(1);
    assert!(later > grant, "grants rise over all starts");
}

#[test]
fn the_silent_are_fenced_and_their_locks_go_on() {
    let place = Place::new(Duration::from_millis(500));
    let (mut one, mut other) = (place.node(1), place.node(2));
    one.acquire(0);
    one.write(0, 1, b"a");
    other.ask(0, Hold::Exclusive);
    let (_, version) = other.granted(0);
    assert_eq!(version, Version(1), "what it had sent counts");
    until("it is gone", || place.report_of(one.id).is_none());
    other.say(&ToServer::Outcome {
        node: one.id,
        number: Number(2),
    });
    let fate = other.expect("Fate", |message| match message {
        ToNode::Fate { fate, .. } => Some(*fate),
        _ => None,
    });
    assert_eq!(fate, Fate::Aborted);
    one.pings = false;
    one.expect("Fenced", |message| {
        matches!(message, ToNode::Fenced).then_some(())
    });
    one.expect_end();
}

#[test]
fn a_journal_that_its_machine_offers_is_taken_from_there() {
    let place = Place::new(LONG);
    let (mut one, mut other) = (place.node(1), place.node(2));
    one.acquire(0);
    one.write(0, 1, b"a");
    assert_eq!(other.next_record().1, Number(1));
    let lost = one.record(0, 2, b"b");
    // Its link is not closed meanwhile: its members, of which it has none, would be asked at once.
    let (old, journal) = (one.id, one.journal);
    other.ask(0, Hold::Exclusive);
    let mut heir = place.node(3);
    let last = Number(2);
    heir.say(&ToServer::Offer {
        old: OldJournal { node: old, journal },
        last,
    });
    let wanted = |message: &ToNode<Bytes>| match message {
        ToNode::Wanted { from, .. } => Some(*from),
        _ => None,
    };
    assert_eq!(heir.expect("Wanted", wanted), Some(last));
    heir.say(&ToServer::OldTail {
        node: old,
        number: last,
        payload: lost.clone(),
    });
    assert_eq!(other.next_record(), (old, last, lost));
    assert_eq!(other.granted(0).1, Version(2));
    assert_eq!(heir.expect("Wanted", wanted), None);
}

#[test]
fn what_cannot_be_read_keeps_its_locks_and_is_told() {
    let place = Place::new(Duration::from_millis(500));
    let nowhere = "tcp://127.0.0.1:1";
    let view = View {
        counting: true,
        members: vec![ViewMember {
            incarnation: Incarnation(7),
            address: nowhere.to_owned(),
            domain: "a".to_owned(),
        }],
        ..View::first(JournalId(1))
    };
    let (mut one, _) = Script::join_with(place.address(), &place.security, place.segment, view);
    one.whole(BYTES);
    one.acquire(0);
    let (old, journal) = (one.id, one.journal);
    let mut other = place.node(2);
    other.ask(0, Hold::Exclusive);
    drop(one);
    // Its own pings keep it alive meanwhile.
    let stuck = loop {
        other.say(&ToServer::Outcome {
            node: old,
            number: Number(1),
        });
        let fate = other.expect("Fate", |message| match message {
            ToNode::Fate { fate, .. } => Some(*fate),
            ToNode::Lock(ToCache::Grant { .. }) => panic!("nobody knows what it had acknowledged"),
            _ => None,
        });
        assert_eq!(fate, Fate::Open);
        let report = place.report_of(old).unwrap();
        if let Some(stuck) = report.stuck {
            assert_eq!(report.standing, "stuck");
            assert!(report.why.is_some());
            break stuck;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(stuck.lenders[0].contains(nowhere), "{stuck:?}");
    let report = place.serving().report().unwrap();
    assert_eq!((report.waited_for_count, report.waited_for[0].lock), (1, 0));
    assert_eq!(report.waited_for[0].holders[0].node, old.0);
    // Its machine comes back, and has nothing more.
    let mut heir = place.stranger();
    heir.say(&ToServer::Offer {
        old: OldJournal { node: old, journal },
        last: Number(0),
    });
    assert_eq!(other.granted(0).1, Version(0));
}

#[test]
fn liars_are_fenced_and_nobody_else_notices() {
    let place = Place::new(LONG);
    let mut honest = place.node(1);
    honest.acquire(5);
    let mut version = 0;
    type Lie = fn(&mut Script);
    let lies: [(&str, Lie); 7] = [
        ("a record under a lock that it does not hold", |liar| {
            liar.write(6, 1, b"x");
        }),
        ("bytes outside the span of its lock", |liar| {
            liar.acquire(7);
            liar.write(7, 1, &[1; SPAN as usize + 8]);
        }),
        ("no record at all", |liar| liar.tail(Number(1), vec![9; 40])),
        ("a number that is not next", |liar| {
            liar.acquire(8);
            let payload = liar.record(8, 1, b"x");
            liar.tail(Number(7), payload);
        }),
        ("bytes that are no message", |liar| liar.raw(&[&[255, 1, 2, 3]])),
        ("a token that it does not have", |liar| {
            liar.release(5, netram_proto::shared::Grant(1), Version(0));
        }),
        ("claims out of place", |liar| {
            liar.say(&ToServer::Claims(Vec::new()))
        }),
    ];
    for (index, (what, lie)) in lies.into_iter().enumerate() {
        let mut liar = place.node(100 + index as u128);
        lie(&mut liar);
        liar.expect(what, |message| matches!(message, ToNode::Fenced).then_some(()));
        version += 1;
        honest.write(5, version, b"true");
        honest.kept(Number(version));
    }
    until("all locks are free again", || {
        place
            .serving()
            .report()
            .is_some_and(|report| report.nodes.len() == 1)
    });
}

#[test]
fn strangers_cost_nobody_anything() {
    let place = Place::new(LONG);
    let mut honest = place.node(1);
    honest.acquire(5);
    let mut stranger = place.stranger();
    // Of a node that is not one any more: nothing is said to that.
    stranger.tail(Number(1), vec![1; 100]);
    stranger.say(&ToServer::Pull);
    stranger.say(&ToServer::Offer {
        old: OldJournal {
            node: NodeId(77),
            journal: JournalId(77),
        },
        last: Number(9),
    });
    let wanted = stranger.expect("Wanted", |message| match message {
        ToNode::Wanted { from, .. } => Some(*from),
        _ => None,
    });
    assert_eq!(wanted, None);
    let ToServer::Join(join) = join_message(View::first(JournalId(9))) else {
        unreachable!("that is what it is")
    };
    let region = Some(RegionId(1));
    stranger.say(&ToServer::Join(Join {
        region,
        ..join.clone()
    }));
    let refused = |message: &ToNode<Bytes>| match message {
        ToNode::Refused(why) => Some(*why),
        _ => None,
    };
    assert_eq!(stranger.expect("Refused", refused), Refused::Region);
    stranger.expect_end();
    let mut keyed = place.stranger();
    let key = vec![1; 7];
    keyed.say(&ToServer::Join(Join { key, ..join }));
    assert_eq!(keyed.expect("Refused", refused), Refused::Journal);
    let mut random = Random(5);
    for _ in 0..50 {
        let mut channel = Channel::open(place.address(), &place.security, LONG).unwrap();
        for _ in 0..1 + random.below(5) {
            let length = 1 + random.below(200) as usize;
            channel.queue(&[&random.bytes(length)]);
        }
        // It may have been shown the door.
        let _ = channel.flush();
    }
    for version in 1..10 {
        honest.write(5, version, b"true");
        honest.kept(Number(version));
    }
    until("strangers are gone", || {
        place
            .serving()
            .report()
            .is_some_and(|report| report.nodes.len() == 1)
    });
}

#[test]
fn whoever_reads_nothing_holds_nobody_up() {
    let place = Place::new(LONG);
    let (mut one, mut other) = (place.node(1), place.node(2));
    let (mut deaf, _) = place.join(3);
    one.acquire(0);
    for version in 1..=300 {
        one.write(0, version, &[version as u8; SPAN as usize]);
        assert_eq!(other.next_record().1, Number(version));
    }
    one.kept(Number(300));
    // It asks and asks, and takes no answers: no more is read from it than there is room for.
    for _ in 0..20_000 {
        if !deaf.channel.has_room() {
            break;
        }
        deaf.say(&ToServer::Outcome {
            node: one.id,
            number: Number(1),
        });
    }
    one.write(0, 301, b"on");
    assert_eq!(other.next_record().1, Number(301));
    assert_eq!(deaf.whole(BYTES).len(), BYTES as usize);
}

#[test]
fn one_directory_has_one_server_and_a_lease_has_bounds() {
    let place = Place::new(LONG);
    let error = Serving::start(&place.root(), place.config()).unwrap_err();
    assert!(matches!(error, ServeError::Open(_)), "{error}");
    let lease = Duration::from_millis(1);
    let config = ServeConfig {
        lease,
        ..place.config()
    };
    let error = Serving::start(&place.root(), config).unwrap_err();
    assert!(matches!(error, ServeError::Lease(_)), "{error}");
    // The one that has it goes on.
    place.node(1).acquire(0);
}
