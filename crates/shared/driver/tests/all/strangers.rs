//! Nodes that lie, and strangers: whatever they say, nobody else notices.

use crate::common::history::SPAN;
use crate::common::scene::{LONG, Scene};
use crate::common::script::{Bytes, Script, join_message};
use crate::common::{Random, until};
use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_shared::channel::Channel;
use netram_shared_machine::message::{Join, OldJournal, Refused};
use netram_shared_machine::{NodeId, Number, RegionId, ToNode, ToServer, Version};

#[test]
fn liars_are_fenced_and_nobody_else_notices() {
    let place = Scene::new(LONG);
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
            liar.release(5, netram_shared_machine::Grant(1), Version(0));
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
    let place = Scene::new(LONG);
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
