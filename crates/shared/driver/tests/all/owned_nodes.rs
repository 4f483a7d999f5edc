//! A node is its owner's (rule 15): what others with the cluster key try at the region's server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::wire::{Frame, FrameHeader, FrameKind, RefusalReason};
use netram_shared::server::{RegionStore, ServeConfig, ServingRegion};
use netram_shared_machine::limit::NODE_LINKS_MAX;
use netram_shared_machine::message::{JoinRefusal, JoinRequest};
use netram_shared_machine::{ToNode, ToServer};
use netram_transport::{Link, NetAddress, OwnerKey, Security, connect};

use crate::common::PATIENCE;
use crate::common::history::plan;
use crate::common::script::{Bytes, ScriptedPeer, join_message};
use crate::common::served_region::{LONG, ServedRegion};
use crate::common::world::TestPaths;

const SECRET: [u8; 32] = [7; 32];

fn journal_of(secret: &[u8; 32]) -> JournalId {
    JournalId(OwnerKey::derive(secret).owned())
}

/// A join request for the journal of one secret with the key of another.
fn join_with_key(secret: &[u8; 32], key: &[u8], link: u64) -> ToServer<Bytes> {
    match join_message(View::first(journal_of(secret))) {
        ToServer::Join(join) => ToServer::Join(JoinRequest {
            key: key.to_vec(),
            link,
            ..join
        }),
        other => other,
    }
}

/// A session that proves the key of this secret, or none.
fn session(place: &ServedRegion, secret: Option<[u8; 32]>) -> ScriptedPeer {
    let mut script = place.stranger();
    script.owner = secret.map(|secret| OwnerKey::derive(&secret));
    script.reconnect(place.address(), &place.security);
    script
}

fn refusal(script: &mut ScriptedPeer) -> JoinRefusal {
    script.expect("Refused", |message| match message {
        ToNode::Refused(why) => Some(*why),
        _ => None,
    })
}

/// A node that owns its journal, holds lock 5, and has written under it once.
fn owned_node(place: &ServedRegion) -> ScriptedPeer {
    let mut owner = session(place, Some(SECRET));
    owner.enter(&join_with_key(&SECRET, &SECRET, 1));
    owner.acquire(5);
    owner.write(5, 1, b"its own");
    owner.kept(owner.number);
    owner
}

/// Finding S15 of the review: `Resume` over a later link, or `Join` with the journal's id, ended a node.
#[test]
fn a_client_with_the_cluster_key_cannot_speak_for_another_ones_node() {
    let mut place = ServedRegion::new(LONG);
    let mut owner = owned_node(&place);
    for restarts in 0..2 {
        for secret in [None, Some([8; 32])] {
            let resume = owner.resumption(NODE_LINKS_MAX, Vec::new());
            let mut again = join_with_key(&SECRET, &SECRET, NODE_LINKS_MAX);
            if let ToServer::Join(join) = &mut again {
                join.begins.lsn.0 += 64;
            }
            for message in [resume, again] {
                let mut stranger = session(&place, secret);
                stranger.say(&message);
                assert_eq!(refusal(&mut stranger), JoinRefusal::Owner);
            }
        }
        if restarts == 0 {
            owner.write(5, 2, b"as before");
            owner.kept(owner.number);
            place.stop();
            place.start();
        }
    }
    // Nor do the strangers' link numbers make the owner's next link late.
    let (address, security) = (place.address().clone(), place.security.clone());
    assert_eq!(owner.resume(&address, &security, Vec::new()), owner.number);
    assert_eq!(place.report_of(owner.id).unwrap().standing, "live");
}

/// The server fences a dead node's journal in its owner's name.
#[test]
fn a_journal_that_has_an_owner_joins_with_its_own_key_only() {
    let place = ServedRegion::new(LONG);
    for key in [&[8; 32][..], &[]] {
        let mut owner = session(&place, Some(SECRET));
        owner.say(&join_with_key(&SECRET, key, 1));
        assert_eq!(refusal(&mut owner), JoinRefusal::Journal);
    }
}

fn said(link: &mut Link) -> (FrameKind, Option<RefusalReason>) {
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        if let Some(packet) = link.receive().unwrap() {
            let header = Frame::parse(packet).unwrap().header;
            return (header.kind, RefusalReason::from_byte(header.flags));
        }
        assert!(std::time::Instant::now() < end, "the server answers");
        std::thread::yield_now();
    }
}

#[test]
fn a_proof_holds_on_its_own_link_and_is_given_once() {
    let place = ServedRegion::new(LONG);
    let dial = || connect(place.address(), &place.security, PATIENCE).unwrap();
    let key = OwnerKey::derive(&SECRET);
    let seen = key.prove(dial().session()).encode();
    let mut link = dial();
    link.send(&[&FrameHeader::new(FrameKind::Prove).encode(seen.len()), &seen])
        .unwrap();
    assert_eq!(
        said(&mut link),
        (FrameKind::Refuse, Some(RefusalReason::NotOwner))
    );
    let mut link = dial();
    for _ in 0..2 {
        assert!(key.introduce(&mut link).unwrap());
    }
    link.flush().unwrap();
    assert_eq!(
        said(&mut link),
        (FrameKind::Refuse, Some(RefusalReason::Malformed))
    );
}

/// A node of wire version 1 cannot prove anything. Its journal has no owner, so it is admitted as before.
#[test]
fn a_node_of_the_first_version_joins_with_a_journal_without_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let place = TestPaths {
        directory: directory.path().to_owned(),
    };
    RegionStore::create(&place.region(), &plan(1 << 20)).unwrap();
    let config = ServeConfig::new(vec![place.address("server")], Security::Insecure);
    let _serving = ServingRegion::start(&place.region(), config).unwrap();
    let NetAddress::Unix(socket) = place.address("server") else {
        panic!("it is a Unix socket")
    };
    for (journal, is_refused) in [(journal_of(&SECRET), true), (JournalId(7), false)] {
        let mut raw = UnixStream::connect(&socket).unwrap();
        raw.set_read_timeout(Some(PATIENCE)).unwrap();
        raw.write_all(b"NETRAM\x01\x00\x00\x00\x01\x00\x01\x00\x00\x00")
            .unwrap();
        raw.read_exact(&mut [0; 16]).unwrap();
        let share = FrameHeader::new(FrameKind::Share).encode(0);
        let packet = |bytes: &[u8]| [&(bytes.len() as u16).to_le_bytes(), bytes].concat();
        raw.write_all(&packet(&share)).unwrap();
        raw.read_exact(&mut vec![0; 2 + share.len()]).unwrap();
        let mut join = Vec::new();
        match journal == JournalId(7) {
            true => join_message(View::first(journal)).head(&mut join),
            false => join_with_key(&SECRET, &SECRET, 1).head(&mut join),
        }
        let message = [&(join.len() as u32).to_le_bytes()[..], &join].concat();
        raw.write_all(&packet(&message)).unwrap();
        // A packet's length, a message's length, and the message's kind. A node is first told what is
        // durable.
        let mut answer = [0; 7];
        raw.read_exact(&mut answer).unwrap();
        let (durable, refused) = (9, 16);
        assert_eq!(answer[6], if is_refused { refused } else { durable });
    }
}
