//! A misbehaving data session loses only itself: no thread panics, nothing grows, and the copy is correct or
//! its client corrects it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use netram_block_machine::message::{BLOCKS_PER_FRAME, FollowRequest};
use netram_block_machine::{ReplicaDescription, ReplicaIdentity, ReplicaMessage};
use netram_lender::{DataService, Lender, LenderConfig};
use netram_proto::id::{Epoch, JournalId, Lsn};
use netram_proto::journal::View;
use netram_proto::wire::{ChainPoint, Flag, Frame, FrameHeader, FrameKind, RefusalReason};
use netram_transport::{Link, NetAddress, OwnerKey, Security, connect};
use netram_volume::replica::ReplicaHost;
use netram_volume::{BlockDevice, Volume, VolumeSettings};

const BLOCK: usize = 4096;
const BYTES: u64 = 2 << 20;
const BLOCKS: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(60);

/// Panics of the lender's threads. Those of copies are caught, and must not be missed here.
static PANICS: AtomicUsize = AtomicUsize::new(0);

/// A generator that repeats its numbers in every run.
struct TestRng(u64);

impl TestRng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number near those at which lengths and positions overflow.
    fn number(&mut self) -> u64 {
        match self.next() % 6 {
            0 => self.next() % 100_000,
            1 => u64::MAX - self.next() % 10_000,
            2 => BYTES / BLOCK as u64 - 2 + self.next() % 4,
            3 => (1 << 62) - self.next() % 100,
            4 => 0,
            _ => self.next(),
        }
    }
}

/// A data lender with the copy of a volume that was written and closed.
struct TestPaths {
    directory: tempfile::TempDir,
    lender: Lender,
    keeper: Arc<ReplicaHost>,
}

impl TestPaths {
    fn new() -> TestPaths {
        let default = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            if thread.name().is_some_and(|name| name.starts_with("netram-")) {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            default(panic);
        }));
        let directory = tempfile::tempdir().unwrap();
        let keeper = Arc::new(ReplicaHost::start(&directory.path().join("kept")).unwrap());
        let config = LenderConfig {
            listen: vec![NetAddress::Unix(directory.path().join("socket"))],
            memory: 1 << 20,
            store: Some(directory.path().join("store")),
            allow_disk: true,
            ..LenderConfig::default()
        };
        let lender = Lender::start_with(config, Some(keeper.clone())).unwrap();
        let place = TestPaths {
            directory,
            lender,
            keeper,
        };
        Volume::create(&place.path("volume"), BYTES, 1 << 20).unwrap();
        let volume = place.open();
        for block in 0..BLOCKS {
            let pending = volume.write(block * BLOCK as u64, &[block as u8; BLOCK]).unwrap();
            volume.wait(pending).unwrap();
        }
        place.settle(&volume);
        volume.close().unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn open(&self) -> Volume {
        let mut settings = VolumeSettings {
            data_lender: Some(self.lender.addresses()[0].clone()),
            ..VolumeSettings::default()
        };
        settings.journal.insecure = true;
        Volume::open_with(&self.path("volume"), &settings).unwrap().0
    }

    fn settle(&self, volume: &Volume) {
        until("the copy has everything", || {
            let tail = volume.status().journal.log.tail.0;
            (volume.data_lender()).is_some_and(|kept| kept.in_service && kept.flushed == tail)
        });
    }

    /// A session that proves the key of the volume's journal.
    fn dial(&self) -> Link {
        let secret = std::fs::read(self.path("volume/journal/data.key")).unwrap();
        let key = OwnerKey::derive(&secret.try_into().unwrap());
        self.dial_as(Some(&key))
    }

    fn dial_as(&self, key: Option<&OwnerKey>) -> Link {
        let mut link = connect(&self.lender.addresses()[0], &Security::Insecure, PATIENCE).unwrap();
        if let Some(key) = key {
            assert!(key.introduce(&mut link).unwrap());
        }
        link
    }

    fn describe(&self) -> ReplicaDescription {
        self.describe_over(self.dial())
    }

    fn describe_over(&self, mut link: Link) -> ReplicaDescription {
        let id = u128::from_str_radix(&self.keeper.replicas()[0].volume, 16).unwrap();
        say(&mut link, &ReplicaMessage::inquire(Some(id))).unwrap();
        let answer = receive(&mut link).expect("an answer");
        ReplicaDescription::decode(&answer.frame()).unwrap()
    }

    /// A session that poses as the copy's client. Another session may still have the copy.
    fn pose(&self, description: &ReplicaDescription) -> Link {
        let view = &description.view;
        let mut link = self.dial();
        say(&mut link, &description.follow.message(view.epoch, view.writer)).unwrap();
        let answer = receive(&mut link).expect("an answer");
        assert_eq!(answer.header.kind, FrameKind::Following, "{:?}", answer.header);
        link
    }

    /// Checks that the lender serves without a panic, has only the one copy, and that the copy is correct
    /// once its client is back.
    fn check(self, resyncs: bool) {
        assert_eq!(self.keeper.replicas().len(), 1);
        let volume = self.open();
        volume
            .wait(volume.write(BYTES - 512, &[1; 512]).unwrap())
            .unwrap();
        self.settle(&volume);
        let status = volume.data_lender().unwrap();
        assert!(resyncs || status.resyncs == 0, "{status:?}");
        volume.close().unwrap();
        assert_eq!(PANICS.load(Ordering::Relaxed), 0);
        let TestPaths {
            directory,
            lender,
            keeper,
        } = self;
        lender.stop(Duration::ZERO);
        let copy = PathBuf::from(&keeper.replicas()[0].path);
        keeper.stop();
        check_copy(&copy);
        drop(directory);
    }
}

fn check_copy(copy: &Path) {
    let taking = VolumeSettings {
        take_over: true,
        client_is_off: true,
        ..VolumeSettings::default()
    };
    let (taken, _) = Volume::open_with(copy, &taking).unwrap();
    assert_eq!(taken.geometry().bytes, BYTES);
    let mut bytes = [0; BLOCK];
    for block in 0..BLOCKS {
        taken.read(block * BLOCK as u64, &mut bytes).unwrap();
        assert_eq!(bytes, [block as u8; BLOCK], "block {block}");
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `None`: the lender has ended the session.
fn say(link: &mut Link, message: &ReplicaMessage) -> Option<()> {
    let header = message.header.encode(message.body.len());
    link.send(&[&header, &message.body]).ok().map(drop)
}

/// The next frame; `None` once the lender has ended the session.
fn receive(link: &mut Link) -> Option<ReplicaMessage> {
    let began = Instant::now();
    loop {
        link.flush().ok()?;
        if let Some(packet) = link.receive().ok()? {
            let frame = Frame::parse(packet).unwrap();
            return Some(ReplicaMessage {
                header: frame.header,
                body: frame.body.to_vec(),
            });
        }
        assert!(began.elapsed() < PATIENCE, "the lender does not answer");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Reason with which the session is refused, if it is.
fn refusal(link: &mut Link) -> Option<RefusalReason> {
    while let Some(answer) = receive(link) {
        if answer.header.kind == FrameKind::Refuse {
            assert!(receive(link).is_none(), "a refused session ends");
            return RefusalReason::from_byte(answer.header.flags);
        }
    }
    None
}

/// A header in the epoch of `description`.
fn header(description: &ReplicaDescription, kind: FrameKind) -> FrameHeader {
    FrameHeader {
        epoch: description.view.epoch,
        sender: description.view.writer.0,
        ..FrameHeader::new(kind)
    }
}

const KINDS: [FrameKind; 14] = [
    FrameKind::Bind,
    FrameKind::Ping,
    FrameKind::Read,
    FrameKind::Follow,
    FrameKind::Records,
    FrameKind::StoreView,
    FrameKind::Resync,
    FrameKind::Digests,
    FrameKind::Blocks,
    FrameKind::ResyncEnd,
    FrameKind::Fetch,
    FrameKind::Inquire,
    FrameKind::Flushed,
    FrameKind::BadBlocks,
];

#[test]
fn random_frames_and_bytes_end_only_their_session_and_leave_the_copy_unchanged() {
    let place = TestPaths::new();
    let description = place.describe();
    let mut random = TestRng(0x5EED_CAFE);
    for session in 0..150 {
        let mut link = match session % 3 {
            // The first frame may be anything too.
            0 => place.dial(),
            _ => place.pose(&description),
        };
        for _ in 0..20 {
            let kind = KINDS[random.next() as usize % KINDS.len()];
            let mut header = match random.next() % 4 {
                0 => FrameHeader::new(kind),
                _ => header(&description, kind),
            };
            (header.lsn, header.stable) = (Lsn(random.number()), Lsn(random.number()));
            // A peer that poses as the client may have the copy rebuilt: that is not under test.
            header.flags = random.next() as u8 & !Flag::FULL;
            header.mark = random.number() as u32;
            let body = (0..[0, 1, 4, 8, 16, 56, 4104, 9000][random.next() as usize % 8])
                .map(|_| random.next() as u8)
                .collect();
            if say(&mut link, &ReplicaMessage { header, body }).is_none() {
                break;
            }
        }
        if session % 5 == 0 {
            // No frame at all.
            let _ = link.send(&[&[200, 1, 2, 3]]);
        }
        if session % 2 == 0 {
            // Other sessions just close, with answers in flight.
            let _ = say(
                &mut link,
                &ReplicaMessage::bare(FrameHeader::new(FrameKind::Flushed)),
            );
            while receive(&mut link).is_some() {}
        }
    }
    place.check(false);
}

#[test]
fn impossible_lengths_and_positions_are_refused() {
    let place = TestPaths::new();
    let description = place.describe();
    let blocks = BYTES / BLOCK as u64;
    let number = |number: u64| number.to_le_bytes().to_vec();
    let block = |number: u64| [&number.to_le_bytes()[..], &[1; BLOCK]].concat();
    // An invalid body, position and flags while the copy accepts blocks.
    let wrong: Vec<(FrameKind, u64, u8, Vec<u8>)> = vec![
        (FrameKind::Digests, u64::MAX, 0, vec![1; 32]),
        (FrameKind::Digests, blocks - 1, 0, vec![1; 32]),
        (FrameKind::Digests, 0, 0, vec![1; 17]),
        (FrameKind::Blocks, 0, 0, block(blocks)),
        (FrameKind::Blocks, 0, 0, block(u64::MAX)),
        (FrameKind::Blocks, 0, 0, vec![1; BLOCK]),
        (FrameKind::Blocks, 0, Flag::HOLES, number(blocks)),
        (FrameKind::Blocks, 0, Flag::HOLES, number(u64::MAX)),
        (FrameKind::Blocks, 0, Flag::HOLES, vec![0; 7]),
        (FrameKind::Fetch, 0, 0, vec![0; 4]),
        (FrameKind::Fetch, 0, 0, u32::MAX.to_le_bytes().to_vec()),
        (
            FrameKind::Fetch,
            0,
            0,
            (BLOCKS_PER_FRAME as u32 + 1).to_le_bytes().to_vec(),
        ),
        (FrameKind::Read, u64::MAX, 0, vec![1; 4]),
        (FrameKind::Records, u64::MAX, 0, vec![1; 64]),
        (FrameKind::Resync, 12, Flag::FULL, Vec::new()),
        (FrameKind::Resync, u64::MAX - 7, Flag::FULL, Vec::new()),
    ];
    for (kind, lsn, flags, body) in wrong {
        let mut link = place.pose(&description);
        let keep = ReplicaMessage::keep_view(&description.view, BYTES, false);
        say(&mut link, &keep).unwrap();
        let resync = FrameHeader {
            flags: Flag::FULL,
            ..header(&description, FrameKind::Resync)
        };
        say(&mut link, &ReplicaMessage::bare(resync)).unwrap();
        let asked = FrameHeader {
            lsn: Lsn(lsn),
            flags,
            ..header(&description, kind)
        };
        say(&mut link, &ReplicaMessage { header: asked, body }).unwrap();
        let refused = refusal(&mut link);
        assert!(refused.is_some(), "{asked:?}");
        assert_ne!(refused, Some(RefusalReason::DiskFailed), "{asked:?}");
    }
    for bytes in [u64::MAX, BYTES + 1, 1 << 60] {
        let mut link = place.pose(&description);
        say(
            &mut link,
            &ReplicaMessage::keep_view(&description.view, bytes, false),
        )
        .unwrap();
        assert_eq!(refusal(&mut link), Some(RefusalReason::Malformed), "{bytes}");
    }
    // Blocks before a resync was announced.
    place.check(true);
}

/// A client with the cluster key and the right to data sessions posed as the client of any volume.
#[test]
fn a_stranger_cannot_follow_overwrite_or_fetch_another_ones_copy() {
    let place = TestPaths::new();
    let description = place.describe();
    let (view, follow) = (&description.view, &description.follow);
    assert!(view.epoch > Epoch(0) && description.closed.is_some());
    let own = OwnerKey::derive(&[9; 32]);
    for key in [None, Some(&own)] {
        let told = place.describe_over(place.dial_as(key));
        assert_eq!(&told.follow, follow, "sizes, and the wrapped key");
        assert_eq!(
            (told.view, told.end, told.closed),
            (View::first(view.journal), ChainPoint::default(), None)
        );
        for epoch in [view.epoch, Epoch(view.epoch.0 + 5), Epoch(u32::MAX)] {
            let mut link = place.dial_as(key);
            say(&mut link, &follow.message(epoch, view.writer)).unwrap();
            assert_eq!(refusal(&mut link), Some(RefusalReason::NotOwner), "{epoch:?}");
        }
        for kind in [
            FrameKind::StoreView,
            FrameKind::Records,
            FrameKind::Resync,
            FrameKind::Blocks,
            FrameKind::Fetch,
        ] {
            let mut link = place.dial_as(key);
            say(&mut link, &ReplicaMessage::bare(header(&description, kind))).unwrap();
            assert_eq!(refusal(&mut link), Some(RefusalReason::Malformed), "{kind:?}");
        }
    }
    // The copy is the volume's, not that of a journal which the stranger does own.
    let mut theirs = follow.clone();
    theirs.identity.journal = JournalId(own.owned());
    let mut link = place.dial_as(Some(&own));
    say(&mut link, &theirs.message(Epoch(view.epoch.0 + 5), view.writer)).unwrap();
    assert_eq!(refusal(&mut link), Some(RefusalReason::NoReplica));
    place.check(false);
}

#[test]
fn impossible_volumes_and_sessions_without_a_view_create_no_copy() {
    let place = TestPaths::new();
    let description = place.describe();
    let view = &description.view;
    let ours = &description.follow;
    let stranger = |bytes, capacity| FollowRequest {
        identity: ReplicaIdentity {
            volume: 77,
            journal: JournalId(78),
        },
        bytes,
        capacity,
        key: vec![1; 32],
        wrapped_key: Vec::new(),
    };
    let mut other_journal = ours.clone();
    other_journal.identity.journal = JournalId(9);
    let mut other_log = ours.clone();
    other_log.capacity += 4096;
    let mut cases = vec![
        (other_journal, RefusalReason::NoReplica),
        (other_log, RefusalReason::NoReplica),
    ];
    for (bytes, capacity) in [
        (0, 1 << 20),
        (4097, 1 << 20),
        (u64::MAX, 1 << 20),
        (1 << 50, 1 << 20),
        (1 << 20, 0),
        (1 << 20, 4097),
        (1 << 20, u64::MAX),
        (u64::MAX, u64::MAX),
    ] {
        cases.push((stranger(bytes, capacity), RefusalReason::Malformed));
    }
    for (follow, expected) in cases {
        let mut link = place.dial();
        say(&mut link, &follow.message(Epoch(view.epoch.0 + 5), view.writer)).unwrap();
        assert_eq!(refusal(&mut link), Some(expected), "{follow:?}");
    }
    // Before any view, only inquiries are answered.
    for kind in [
        FrameKind::Records,
        FrameKind::Blocks,
        FrameKind::Digests,
        FrameKind::ResyncEnd,
        FrameKind::Resync,
    ] {
        let mut link = place.pose(&description);
        say(&mut link, &ReplicaMessage::bare(header(&description, kind))).unwrap();
        assert_eq!(refusal(&mut link), Some(RefusalReason::NotFenced), "{kind:?}");
    }
    let made: Vec<_> = std::fs::read_dir(place.path("kept")).unwrap().collect();
    // The one copy, and the lock.
    assert_eq!(made.len(), 2, "{made:?}");
    place.check(false);
}

#[test]
fn fetches_that_cannot_be_answered_do_not_pile_up() {
    let place = TestPaths::new();
    let description = place.describe();
    let mut link = place.pose(&description);
    let asked = 500;
    let mut later = 0;
    for mark in 0..asked {
        // As of a log that will never exist.
        say(&mut link, &ReplicaMessage::fetch(mark, 0, 1, Lsn(1 << 61))).unwrap();
        while mark - later > 20 {
            let answer = receive(&mut link).expect("an answer");
            if answer.header.kind == FrameKind::Fetched {
                assert_eq!(answer.header.flags, Flag::LATER);
                later += 1;
            }
        }
    }
    drop(link);
    place.check(false);
}
