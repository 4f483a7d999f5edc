//! Life of pages at lenders, one scenario each.

use netram_far_machine::deposit::{
    DepositCommand, DirectoryEvent, DirectoryLookup, DirectorySettings, LenderSet, MisconductError, Page,
    PageDirectory,
};
use netram_far_machine::limit::{
    DEPOSIT_DETECT, DEPOSIT_FRAMES_MAX, DEPOSIT_LEASE, DEPOSIT_TIMEOUT, FRAME_PAGES_MAX, PAGE_BYTES,
    PUT_BACKLOG_PAGES, REPAIR_PAGES_MAX,
};
use netram_proto::id::{Epoch, Incarnation, Lsn};
use netram_proto::time::Time;
use netram_proto::wire::{FrameHeader, FrameKind, RefusalReason};

use super::world::{DepositLender, DepositWorld, OWNER};

fn set(lenders: &[usize]) -> LenderSet {
    let mut set = LenderSet::default();
    lenders.iter().for_each(|lender| set.insert(*lender));
    set
}

#[test]
fn a_page_has_two_copies_before_its_bytes_are_released() {
    let mut world = DepositWorld::new(2, &[64, 64]);
    for page in 0..40 {
        world.put(page, page as u8);
    }
    assert!(world.pending.is_empty());
    assert!(
        world
            .events
            .iter()
            .all(|news| matches!(news, DirectoryEvent::Stashed(_, _, 2)))
    );
    for dead in [0, 1] {
        world.unlink(dead);
        for page in 0..40 {
            assert_eq!(world.directory.get(Page(page)), DirectoryLookup::Requested);
        }
        world.settle();
        assert_eq!(world.arrived.len(), 40);
        assert!(world.arrived.iter().all(|(page, bytes)| bytes[0] == page.0 as u8));
        world.arrived.clear();
        world.link(dead);
    }
    assert_eq!(world.directory.get(Page(40)), DirectoryLookup::Never);
}

#[test]
fn piled_up_puts_alternate_with_requests() {
    // Requests took all frames of the link. Pages to be evicted took more and more of the cap, until no page
    // could be evicted.
    let first = DEPOSIT_FRAMES_MAX * FRAME_PAGES_MAX;
    let rest = PUT_BACKLOG_PAGES + FRAME_PAGES_MAX;
    let slots = (first + rest) as u32;
    let mut depot = PageDirectory::new(&DirectorySettings {
        copies: 1,
        slots_max: vec![slots],
        grow: slots,
        spill_max: 0,
    });
    depot.next_session(0);
    depot.on_linked(0, Incarnation(1), slots, DEPOSIT_LEASE).unwrap();
    for page in 0..first as u32 {
        depot.put(Page(page));
    }
    while let Some(frame) = depot.poll(0, Time(0)) {
        match frame {
            DepositCommand::Resize(slots) => depot.on_resized(0, slots).unwrap(),
            DepositCommand::Put(number, _) => depot.on_stashed(0, number).unwrap(),
            other => panic!("{other:?}"),
        }
    }
    for page in first as u32..slots {
        depot.put(Page(page));
    }
    for page in 0..3 * FRAME_PAGES_MAX as u32 {
        assert_eq!(depot.get(Page(page)), DirectoryLookup::Requested);
    }
    let kind = |frame: DepositCommand| match frame {
        DepositCommand::Put(..) => "put",
        DepositCommand::Get(..) => "get",
        other => panic!("{other:?}"),
    };
    let kinds: Vec<_> = std::iter::from_fn(|| depot.poll(0, Time(0))).map(kind).collect();
    // After the first put the backlog is below its limit, and requests go first again.
    assert_eq!(kinds, ["get", "put", "get", "get"]);
}

#[test]
fn a_lender_returns_the_requested_version_or_nothing() {
    let mut world = DepositWorld::new(1, &[64]);
    world.put(3, 1);
    let (_, slot, _) = world.directory.places(Page(3)).next().unwrap();
    let old = world.directory.version(Page(3)).unwrap();
    world.put(3, 2);
    for (version, bytes) in [(old, 0), (old + 1, 4096), (old + 2, 0), (0, 0)] {
        let mut header = FrameHeader::new(FrameKind::Get);
        (header.epoch, header.sender) = (Epoch(1), OWNER);
        let (answer, body) = world.lenders[0].ask(
            header,
            &netram_far_machine::deposit::page_header(slot, version, 0),
        );
        assert_eq!(
            (answer.kind, body.len()),
            (FrameKind::GetReply, 16 + bytes),
            "version {version}"
        );
    }
}

#[test]
fn a_new_session_ends_earlier_ones() {
    let mut lender = DepositLender::new(1, 64);
    let header = |kind, epoch, who| FrameHeader {
        epoch: Epoch(epoch),
        sender: who,
        ..FrameHeader::new(kind)
    };
    assert_eq!(
        lender.ask(header(FrameKind::Deposit, 2, 5), &[]).0.kind,
        FrameKind::DepositAck
    );
    for (epoch, who) in [(1, 5), (2, 5), (2, 6)] {
        let (answer, _) = lender.ask(header(FrameKind::Deposit, epoch, who), &[]);
        assert_eq!(
            (answer.kind, answer.flags),
            (FrameKind::Refuse, RefusalReason::Fenced as u8)
        );
    }
    assert_eq!(
        lender.ask(header(FrameKind::Deposit, 3, 5), &[]).0.kind,
        FrameKind::DepositAck
    );
    for (epoch, who) in [(2, 5), (3, 6), (4, 5)] {
        let (answer, _) = lender.ask(header(FrameKind::Ping, epoch, who), &[]);
        assert_eq!(
            (answer.kind, answer.flags),
            (FrameKind::Refuse, RefusalReason::Fenced as u8)
        );
    }
    assert_eq!(
        lender.ask(header(FrameKind::Ping, 3, 5), &[]).0.kind,
        FrameKind::Pong
    );
}

#[test]
fn the_remaining_slots_of_a_full_lender_are_used() {
    let mut world = DepositWorld::new(1, &[11]);
    for page in 0..20 {
        world.put(page, 1);
    }
    assert_eq!(
        (world.directory.status().lenders[0].slots, world.pending.len()),
        (11, 9)
    );
    let mut resize = FrameHeader::new(FrameKind::Resize);
    (resize.epoch, resize.sender, resize.lsn) = (Epoch(1), OWNER, Lsn(12));
    let (refused, _) = world.lenders[0].ask(resize, &[]);
    assert_eq!(
        (refused.flags, refused.lsn, refused.stable),
        (RefusalReason::NoRoom as u8, Lsn(12), Lsn(11))
    );
    assert!(world.directory.status().lenders[0].full);
    // Waiting pages are sent when others have been removed.
    for page in 0..5 {
        world.directory.forget(Page(page));
    }
    world.directory.tick(world.now);
    world.settle();
    assert_eq!(world.pending.len(), 4);
}

#[test]
fn a_page_put_anew_in_flight_stays_pending() {
    let mut world = DepositWorld::new(1, &[64]);
    world.put(0, 1);
    let first = world.directory.put(Page(0));
    world.pending.insert(Page(0), (first, vec![2; 4096]));
    let sent = world.directory.poll(0, world.now).unwrap();
    let (header, body) = world.frame(0, sent);
    let second = world.directory.put(Page(0));
    world.pending.insert(Page(0), (second, vec![3; 4096]));
    let (answer, body) = world.lenders[0].ask(header, &body);
    world.hear(0, &answer, &body).unwrap();
    assert_eq!(
        world.directory.next_event(),
        None,
        "the arrived version is outdated"
    );
    world.settle();
    assert_eq!(
        world.events.last(),
        Some(&DirectoryEvent::Stashed(Page(0), second, 1))
    );
    assert_eq!(world.directory.get(Page(0)), DirectoryLookup::Requested);
    world.settle();
    assert_eq!(world.arrived[&Page(0)][0], 3);
}

#[test]
fn pages_of_a_dead_lender_are_copied_from_the_other() {
    let mut world = DepositWorld::new(2, &[64, 64, 64]);
    for page in 0..30 {
        world.put(page, page as u8);
    }
    world.unlink(1);
    world.now = world.now + DEPOSIT_DETECT;
    for _ in 0..8 {
        world.directory.tick(world.now);
        world.settle();
    }
    assert_eq!((world.directory.status().short, world.pending.len()), (0, 0));
    for page in 0..30 {
        assert!(
            world
                .directory
                .places(Page(page))
                .all(|(lender, _, held)| lender != 1 && held)
        );
    }
}

/// Two lenders were away, and the pages that only they had took all places for pages in repair. No other page
/// was repaired until they came back.
#[test]
fn unreachable_pages_do_not_block_the_repair_of_others() {
    let mut world = DepositWorld::new(2, &[64; 4]);
    let many = REPAIR_PAGES_MAX as u32 + 6;
    world.unlink(2);
    world.unlink(3);
    (0..many).for_each(|page| world.put(page, 1));
    world.link(2);
    world.link(3);
    world.unlink(1);
    let others = many..2 * many;
    others.clone().for_each(|page| world.put(page, 2));
    world.link(1);
    world.unlink(0);
    world.unlink(1);
    world.now = world.now + DEPOSIT_DETECT;
    for _ in 0..8 {
        world.directory.tick(world.now);
        world.settle();
    }
    for page in others {
        let places: Vec<usize> = world
            .directory
            .places(Page(page))
            .map(|(lender, ..)| lender)
            .collect();
        assert!(
            places.len() == 2 && places.iter().all(|lender| *lender > 1),
            "page {page} is at {places:?}"
        );
    }
    // The others can be fetched as soon as one of their lenders is back.
    world.directory.get(Page(0));
    world.link(1);
    assert_eq!(world.arrived[&Page(0)][0], 1);
}

#[test]
fn a_lender_under_two_names_is_one_lender() {
    let mut world = DepositWorld::new(2, &[64, 64]);
    world.unlink(1);
    world.directory.next_session(1);
    assert_eq!(
        world.directory.on_linked(1, Incarnation(1), 0, DEPOSIT_LEASE),
        Err(MisconductError)
    );
    world.put(0, 5);
    assert!(world.directory.places(Page(0)).all(|(lender, ..)| lender == 0));
    assert_eq!(world.directory.status().short, 1);
}

/// A lender that claimed 2^28 slots made its owner allocate a gibibyte for their numbers.
#[test]
fn unrequested_slots_are_ignored() {
    let settings = DirectorySettings {
        copies: 1,
        slots_max: vec![u32::MAX],
        grow: 8,
        spill_max: 0,
    };
    let mut depot = PageDirectory::new(&settings);
    let now = Time(1);
    depot.next_session(0);
    depot
        .on_linked(0, Incarnation(1), 1 << 28, DEPOSIT_LEASE)
        .unwrap();
    assert_eq!(depot.status().lenders[0].slots, 0);
    assert_eq!(depot.poll(0, now), Some(DepositCommand::Resize(8)));
    // The answer is lost, but the deposit has the slots.
    depot.on_unlinked(0, now);
    depot.next_session(0);
    depot
        .on_linked(0, Incarnation(1), 1 << 28, DEPOSIT_LEASE)
        .unwrap();
    assert_eq!(depot.status().lenders[0].slots, 8);
}

#[test]
fn a_lender_that_owes_an_answer_counts_as_silent() {
    let mut world = DepositWorld::new(1, &[64]);
    let start = world.now;
    world.directory.put(Page(0));
    let Some(DepositCommand::Put(first, _)) = world.directory.poll(0, start) else {
        panic!("the page is to be sent");
    };
    world.directory.put(Page(1));
    let later = start + DEPOSIT_DETECT;
    let Some(DepositCommand::Put(second, _)) = world.directory.poll(0, later) else {
        panic!("the page is to be sent");
    };
    assert!(!world.directory.is_silent(0, later));
    assert!(world.directory.is_silent(0, start + DEPOSIT_TIMEOUT));
    world.directory.on_stashed(0, first).unwrap();
    assert!(!world.directory.is_silent(0, start + DEPOSIT_TIMEOUT));
    assert!(world.directory.is_silent(0, later + DEPOSIT_TIMEOUT));
    world.directory.on_stashed(0, second).unwrap();
    assert!(!world.directory.is_silent(0, later + DEPOSIT_TIMEOUT));
}

#[test]
fn a_lost_page_names_its_lenders_until_it_is_put_anew() {
    let mut world = DepositWorld::new(2, &[64, 64]);
    world.put(5, 9);
    world.unlink(0);
    world.lenders[0] = DepositLender::new(77, 64);
    world.unlink(1);
    assert_eq!(
        world.directory.get(Page(5)),
        DirectoryLookup::Requested,
        "its lenders may come back"
    );
    world.link(0);
    assert!(
        world
            .events
            .iter()
            .all(|news| !matches!(news, DirectoryEvent::Lost(..)))
    );
    world.now = world.now + DEPOSIT_LEASE;
    world.directory.tick(world.now);
    world.settle();
    assert_eq!(
        world.events.last(),
        Some(&DirectoryEvent::Lost(Page(5), set(&[0, 1])))
    );
    assert_eq!(world.directory.get(Page(5)), DirectoryLookup::Lost(set(&[0, 1])));
    assert_eq!(world.directory.status().lost, 1);
    world.put(5, 10);
    world.directory.get(Page(5));
    world.settle();
    assert_eq!(world.arrived[&Page(5)][0], 10);
}

#[test]
fn all_pages_leave_a_lender_that_is_about_to_stop() {
    let mut world = DepositWorld::new(1, &[64, 64]);
    for page in 0..40 {
        world.put(page, page as u8);
    }
    world.directory.on_withdraw(0);
    for _ in 0..8 {
        world.directory.tick(world.now);
        world.settle();
    }
    assert_eq!(world.lenders[0].server.slots(), 0);
    assert_eq!(world.lenders[1].server.used_slots(), 40);
    let epoch = world.lenders[0].server.epoch();
    world.lenders[0].server.end_session(epoch, world.now);
    assert!(
        world.lenders[0].server.is_over(world.now, DEPOSIT_LEASE),
        "at once"
    );
    assert!(
        !world.lenders[1]
            .server
            .is_over(world.now + DEPOSIT_LEASE, DEPOSIT_LEASE),
        "attended"
    );
}

/// The links to all other lenders broke for a moment, and the bytes were released. The only copy was at a
/// lender that had died.
#[test]
fn bytes_stay_pending_while_no_linked_lender_has_them() {
    let mut world = DepositWorld::new(2, &[64, 64]);
    let version = world.directory.put(Page(0));
    world.pending.insert(Page(0), (version, vec![7; PAGE_BYTES]));
    let send = world.directory.poll(0, world.now).unwrap();
    let (header, body) = world.frame(0, send);
    let (answer, body) = world.lenders[0].ask(header, &body);
    world.hear(0, &answer, &body).unwrap();
    // A frame to the other lender never arrives.
    assert!(world.directory.poll(1, world.now).is_some());
    world.unlink(0);
    world.unlink(1);
    assert!(world.pending.contains_key(&Page(0)), "lender 0 may have died");
    world.link(0);
    assert!(world.pending.is_empty(), "it has not");
}
