//! Nodes that violate the protocol, and strangers, have no effect on other nodes.

use crate::common::history::SPAN;
use crate::common::script::{Bytes, ScriptedPeer, join_message};
use crate::common::served_region::{LONG, ServedRegion};
use crate::common::{TestRng, until};
use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_shared::channel::Channel;
use netram_shared_machine::message::{JoinRefusal, JoinRequest, OrphanJournalId};
use netram_shared_machine::{LockVersion, NodeId, RecordNumber, RegionId, ToNode, ToServer};

#[test]
fn nodes_that_violate_the_protocol_are_fenced_without_effect_on_others() {
    let place = ServedRegion::new(LONG);
    let mut honest = place.node(1);
    honest.acquire(5);
    let mut version = 0;
    type Corruption = fn(&mut ScriptedPeer);
    let lies: [(&str, Corruption); 7] = [
        ("a record under a lock that it does not hold", |liar| {
            liar.write(6, 1, b"x");
        }),
        ("bytes outside the span of its lock", |liar| {
            liar.acquire(7);
            liar.write(7, 1, &[1; SPAN as usize + 8]);
        }),
        ("no record at all", |liar| liar.tail(RecordNumber(1), vec![9; 40])),
        ("a number that is not next", |liar| {
            liar.acquire(8);
            let payload = liar.record(8, 1, b"x");
            liar.tail(RecordNumber(7), payload);
        }),
        ("bytes that are no message", |liar| liar.raw(&[&[255, 1, 2, 3]])),
        ("a token that it does not have", |liar| {
            liar.release(5, netram_shared_machine::GrantNumber(1), LockVersion(0));
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
        honest.kept(RecordNumber(version));
    }
    until("all locks are free again", || {
        place
            .serving()
            .report()
            .is_some_and(|report| report.nodes.len() == 1)
    });
}

#[test]
fn strangers_have_no_effect_on_nodes() {
    let place = ServedRegion::new(LONG);
    let mut honest = place.node(1);
    honest.acquire(5);
    let mut stranger = place.stranger();
    // Messages of a node that has ended are not answered.
    stranger.tail(RecordNumber(1), vec![1; 100]);
    stranger.say(&ToServer::Pull);
    stranger.say(&ToServer::OfferOrphan {
        old: OrphanJournalId {
            node: NodeId(77),
            journal: JournalId(77),
        },
        last: RecordNumber(9),
    });
    let wanted = stranger.expect("Wanted", |message| match message {
        ToNode::OrphanWanted { from, .. } => Some(*from),
        _ => None,
    });
    assert_eq!(wanted, None);
    let ToServer::Join(join) = join_message(View::first(JournalId(9))) else {
        unreachable!("that is what it is")
    };
    let region = Some(RegionId(1));
    stranger.say(&ToServer::Join(JoinRequest {
        region,
        ..join.clone()
    }));
    let refused = |message: &ToNode<Bytes>| match message {
        ToNode::Refused(why) => Some(*why),
        _ => None,
    };
    assert_eq!(stranger.expect("Refused", refused), JoinRefusal::Region);
    stranger.expect_end();
    let mut keyed = place.stranger();
    let key = vec![1; 7];
    keyed.say(&ToServer::Join(JoinRequest { key, ..join }));
    assert_eq!(keyed.expect("Refused", refused), JoinRefusal::Journal);
    let mut random = TestRng(5);
    for _ in 0..50 {
        let mut channel = Channel::open(place.address(), &place.security, LONG).unwrap();
        for _ in 0..1 + random.below(5) {
            let length = 1 + random.below(200) as usize;
            channel.queue(&[&random.bytes(length)]);
        }
        // The session may have been closed.
        let _ = channel.flush();
    }
    for version in 1..10 {
        honest.write(5, version, b"true");
        honest.kept(RecordNumber(version));
    }
    until("strangers are gone", || {
        place
            .serving()
            .report()
            .is_some_and(|report| report.nodes.len() == 1)
    });
}
