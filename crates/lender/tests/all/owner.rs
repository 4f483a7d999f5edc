//! A journal belongs to the holder of its key (rule 15): what others with the cluster key try at its lender.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use crate::common::{
    JOURNAL_NAME, PATIENCE, ReceivedFrame, START, TestWriter, WINDOW, config, dial, memory_dir,
    operators_status, receive, send, socket, start,
};
use netram_lender::{Lender, LenderConfig, operator_path};
use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use netram_proto::journal::MemberReport;
use netram_proto::owner::{FenceClaim, FenceSignature, FenceStatement};
use netram_proto::wire::{ChainPoint, Flag, Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::{Link, NetAddress, OwnerKey, Security, connect};

/// The owner of a journal at a lender.
struct Owner {
    key: OwnerKey,
    journal: JournalId,
}

impl Owner {
    fn new(secret: u8) -> Owner {
        let key = OwnerKey::derive(&[secret; 32]);
        let journal = JournalId(key.owned());
        Owner { key, journal }
    }

    /// A session that proves itself with `key`, which may be another one, and asks for the journal.
    fn bind_as(&self, key: Option<&OwnerKey>, lender: &Lender) -> (Link, ReceivedFrame) {
        let mut link = dial(&lender.addresses()[0]);
        if let Some(key) = key {
            let proof = key.prove(link.session()).encode();
            send(&mut link, FrameHeader::new(FrameKind::Prove), &proof);
        }
        let bound = bind(&mut link, self.journal);
        (link, bound)
    }

    /// A session of the owner.
    fn bind(&self, lender: &Lender) -> Link {
        let (link, bound) = self.bind_as(Some(&self.key), lender);
        assert_eq!(bound.header.kind, FrameKind::Bound, "{bound:?}");
        link
    }

    fn fence(&self, epoch: u32) -> (FrameHeader, FenceSignature) {
        let (epoch, writer) = (Epoch(epoch), WriterId(u64::from(epoch) + 1000));
        let journal = self.journal;
        let statement = FenceStatement {
            journal,
            epoch,
            writer,
        };
        let header = FrameHeader {
            epoch,
            sender: writer.0,
            ..FrameHeader::new(FrameKind::Fence)
        };
        (header, self.key.sign_fence(&statement))
    }

    /// A writer that has fenced and may read the window, as the owner.
    fn fenced_writer(&self, lender: &Lender, epoch: u32) -> TestWriter {
        let (header, signature) = self.fence(epoch);
        let mut writer = TestWriter {
            link: self.bind(lender),
            journal: self.journal,
            epoch: header.epoch,
            writer: WriterId(header.sender),
            at: ChainPoint { lsn: START, chain: 9 },
            stable: Lsn(0),
            incarnation: 0,
        };
        assert_eq!(writer.ask(header, &signature.0).header.kind, FrameKind::Fenced);
        writer
    }

    /// The same, and it has joined.
    fn writer(&self, lender: &Lender, epoch: u32) -> TestWriter {
        let mut writer = self.fenced_writer(lender, epoch);
        assert_eq!(writer.join_window(WINDOW, 1).header.kind, FrameKind::Ack);
        writer
    }
}

fn bind(link: &mut Link, journal: JournalId) -> ReceivedFrame {
    send(link, FrameHeader::new(FrameKind::Bind), &journal.0.to_le_bytes());
    receive(link).unwrap()
}

fn probe(link: &mut Link) -> ReceivedFrame {
    let mut header = FrameHeader::new(FrameKind::Ping);
    header.flags = Flag::PROBE;
    send(link, header, &[]);
    receive(link).unwrap()
}

/// The state of the lender's one journal.
fn state(lender: &Lender) -> String {
    format!("{:?}", lender.report().journals.remove(0).state.unwrap())
}

/// Findings S1 and S3 of the review: fence, empty or trim another client's journal in its writer's name.
#[test]
fn a_client_with_the_cluster_key_cannot_touch_another_ones_journal() {
    let dir = memory_dir();
    let lender = start(&dir);
    let owner = Owner::new(1);
    let mut writer = owner.writer(&lender, 1);
    let record = writer.append(b"the last commit");
    writer.acked();
    drop(writer.link);
    let before = state(&lender);
    for key in [None, Some(Owner::new(2).key)] {
        let (mut link, answer) = owner.bind_as(key.as_ref(), &lender);
        assert_eq!(answer.refusal(), Some(RefusalReason::NotOwner));
        assert!(receive(&mut link).is_err(), "the session has ended");
    }
    assert_eq!(state(&lender), before);
    let mut heir = owner.fenced_writer(&lender, 2);
    assert_eq!(heir.read(START, record.len()), record);
}

/// A lender that sees a client's proof must not be able to use it at another lender.
#[test]
fn a_proof_of_another_session_is_refused() {
    let dir = memory_dir();
    let lender = start(&dir);
    let owner = Owner::new(1);
    let seen = owner.key.prove(dial(&lender.addresses()[0]).session()).encode();
    let mut link = dial(&lender.addresses()[0]);
    send(&mut link, FrameHeader::new(FrameKind::Prove), &seen);
    assert_eq!(
        receive(&mut link).unwrap().refusal(),
        Some(RefusalReason::NotOwner)
    );
    assert!(receive(&mut link).is_err());
}

#[test]
fn a_fence_without_the_owners_signature_of_it_is_refused() {
    let dir = memory_dir();
    let lender = start(&dir);
    let (owner, other) = (Owner::new(1), Owner::new(2));
    let mut link = owner.bind(&lender);
    let (header, signature) = owner.fence(5);
    let before = state(&lender);
    let next = owner.fence(6).1;
    let foreign = other.fence(5).1;
    for wrong in [&[][..], &signature.0[1..], &next.0, &foreign.0] {
        send(&mut link, header, wrong);
        let answer = receive(&mut link).unwrap();
        assert_eq!(answer.refusal(), Some(RefusalReason::NotOwner));
    }
    assert_eq!(state(&lender), before);
    send(&mut link, header, &signature.0);
    assert_eq!(receive(&mut link).unwrap().header.kind, FrameKind::Fenced);
}

/// An older writer stops only for a fence that its owner has signed.
#[test]
fn a_refusal_shows_the_signature_of_the_fence_also_after_a_restart() {
    let dir = memory_dir();
    let lender = start(&dir);
    let owner = Owner::new(1);
    let mut newer = owner.bind(&lender);
    for epoch in [2, 3, 4] {
        let (header, signature) = owner.fence(epoch);
        send(&mut newer, header, &signature.0);
        assert_eq!(receive(&mut newer).unwrap().header.kind, FrameKind::Fenced);
    }
    let check = |lender: &Lender| {
        let mut link = owner.bind(lender);
        let (header, signature) = owner.fence(1);
        send(&mut link, header, &signature.0);
        let refused = receive(&mut link).unwrap();
        assert_eq!(refused.refusal(), Some(RefusalReason::Fenced));
        let told = probe(&mut link);
        for answer in [&refused, &told] {
            let frame = Frame {
                header: answer.header,
                body: &answer.body,
            };
            let claim = FenceClaim::of(&frame, owner.journal).unwrap();
            assert_eq!(
                (claim.fence.epoch, claim.fence.writer),
                (Epoch(4), WriterId(1004))
            );
            assert!(owner.key.id().signed(&claim.fence, &claim.signature));
        }
        let frame = Frame {
            header: told.header,
            body: &told.body,
        };
        let report = MemberReport::decode(&frame).unwrap();
        assert_eq!((report.fence_epoch, report.writer), (Epoch(4), WriterId(1004)));
        Incarnation(told.header.sender)
    };
    let incarnation = check(&lender);
    drop(lender);
    let again = start(&dir);
    assert_eq!(check(&again), incarnation, "the memory lived on");
}

#[test]
fn others_are_told_sizes_and_ages_only() {
    let dir = memory_dir();
    let lender = start(&dir);
    let owner = Owner::new(1);
    let mut writer = owner.writer(&lender, 7);
    writer.append(b"how much there is");
    writer.acked();
    let mut link = dial(&lender.addresses()[0]);
    send(&mut link, FrameHeader::new(FrameKind::Status), &[]);
    let report = receive(&mut link).unwrap();
    let report: serde_json::Value = serde_json::from_slice(&report.body).unwrap();
    let journal = report["journals"][0].as_object().unwrap();
    // Programs of wire version 1 demand some fields, which are empty.
    let is_empty = |value: &serde_json::Value| *value == 0 || *value == "";
    let told = journal.iter().filter(|(_, value)| !is_empty(value));
    let mut told: Vec<&str> = told.map(|(name, _)| name.as_str()).collect();
    told.retain(|name| *name != "last_append_age_ms" && *name != "last_heard_age_s");
    told.sort_unstable();
    let sizes = ["id", "sessions", "used_bytes", "window_bytes"];
    assert_eq!(told, sizes);
    let mut names: Vec<&str> = journal.keys().map(String::as_str).collect();
    names.sort_unstable();
    let all = [
        "epoch",
        "generation",
        "held",
        "id",
        "last_append_age_ms",
        "last_heard_age_s",
        "sessions",
        "trim",
        "used_bytes",
        "window_bytes",
        "writer",
    ];
    assert_eq!(names, all);
    assert_eq!(journal["window_bytes"], WINDOW);
    let told = &operators_status(&dir).journals[0];
    assert_eq!(told.name, JOURNAL_NAME, "the lender's operator is told");
}

/// The operator may end any journal under its last fence, and fence none.
#[test]
fn the_operator_ends_a_journal_and_fences_none() {
    let dir = memory_dir();
    let lender = start(&dir);
    let owner = Owner::new(1);
    drop(owner.writer(&lender, 3));
    let address = NetAddress::Unix(operator_path(&dir.path().join("store")));
    let mut link = connect(&address, &Security::Insecure, PATIENCE).unwrap();
    assert_eq!(bind(&mut link, owner.journal).header.kind, FrameKind::Bound);
    let (newer, _) = owner.fence(4);
    send(&mut link, newer, &[]);
    assert_eq!(
        receive(&mut link).unwrap().refusal(),
        Some(RefusalReason::NotOwner)
    );
    let (last, _) = owner.fence(3);
    send(&mut link, last, &[]);
    assert_eq!(receive(&mut link).unwrap().header.kind, FrameKind::Fenced);
    let leave = FrameHeader {
        kind: FrameKind::Leave,
        flags: Flag::ENDED,
        lsn: Lsn(3),
        mark: 1,
        ..last
    };
    send(&mut link, leave, &[]);
    assert_eq!(receive(&mut link).unwrap().header.kind, FrameKind::LeaveAck);
    assert_eq!(lender.report().memory.used, 0);
}

/// A client of wire version 1 cannot prove anything, so it gets no owned journal; others it gets as before.
#[test]
fn a_client_of_the_first_version_is_served_journals_without_owners_only() {
    let dir = memory_dir();
    let _lender = start(&dir);
    for (journal, kind) in [
        (Owner::new(1).journal.0, FrameKind::Refuse),
        (7, FrameKind::Bound),
    ] {
        let mut raw = UnixStream::connect(socket(&dir)).unwrap();
        raw.set_read_timeout(Some(PATIENCE)).unwrap();
        raw.write_all(b"NETRAM\x01\x00\x00\x00\x01\x00\x01\x00\x00\x00")
            .unwrap();
        raw.read_exact(&mut [0; 16]).unwrap();
        let header = FrameHeader::new(FrameKind::Bind).encode(16);
        let packet = [&56u16.to_le_bytes()[..], &header, &journal.to_le_bytes()].concat();
        raw.write_all(&packet).unwrap();
        let mut answer = [0; 3];
        raw.read_exact(&mut answer).unwrap();
        assert_eq!(answer[2], kind as u8);
    }
}

/// Finding S9 of the review: take over, read and empty another client's pages.
#[test]
fn a_client_with_the_cluster_key_cannot_touch_another_ones_deposit() {
    let dir = memory_dir();
    let lender = Lender::start(LenderConfig {
        deposits: Some(1 << 19),
        ..config(&dir)
    })
    .unwrap();
    let owner = Owner::new(1);
    let open = |key: Option<&OwnerKey>, session: u32| {
        let mut link = dial(&lender.addresses()[0]);
        if let Some(key) = key {
            key.introduce(&mut link).unwrap();
        }
        let mut header = FrameHeader::new(FrameKind::Deposit);
        header.epoch = Epoch(session);
        send(&mut link, header, &owner.journal.0.to_le_bytes());
        let answer = receive(&mut link).unwrap();
        (link, answer)
    };
    let (mut session, opened) = open(Some(&owner.key), 1);
    assert_eq!(opened.header.kind, FrameKind::DepositAck, "{opened:?}");
    let mut resize = FrameHeader::new(FrameKind::Resize);
    (resize.epoch, resize.lsn) = (Epoch(1), Lsn(8));
    send(&mut session, resize, &[]);
    assert_eq!(receive(&mut session).unwrap().header.kind, FrameKind::DepositAck);
    for key in [None, Some(&Owner::new(2).key)] {
        let (_, refused) = open(key, u32::MAX);
        assert_eq!(refused.refusal(), Some(RefusalReason::NotOwner));
    }
    // A report may be of the moment before.
    let deadline = std::time::Instant::now() + PATIENCE;
    let report = loop {
        let report = lender.report().deposits.remove(0);
        if report.slots == 8 || std::time::Instant::now() > deadline {
            break report;
        }
        std::thread::yield_now();
    };
    assert_eq!((report.slots, report.connected), (8, true));
    let whole = format!("{:032x}", owner.journal.0);
    assert_eq!(
        report.id,
        whole[..8],
        "whoever has all of an id of an earlier release may take it"
    );
    let ping = FrameHeader {
        kind: FrameKind::Ping,
        lsn: Lsn(5),
        ..resize
    };
    send(&mut session, ping, &[]);
    assert_eq!(receive(&mut session).unwrap().header.kind, FrameKind::Pong);
}
