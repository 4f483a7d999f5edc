//! A peer that sends any frame at any time.

use netram_far_machine::deposit::{
    DirectoryLookup, DirectorySettings, FramePages, Page, PageDirectory, page_header,
};
use netram_far_machine::limit::DEPOSIT_LEASE;
use netram_proto::id::{Epoch, Incarnation, Lsn};
use netram_proto::time::Time;
use netram_proto::wire::{FrameHeader, FrameKind, RefusalReason};
use proptest::prelude::*;

use super::world::{DepositLender, OWNER};

/// Pages as a peer may claim them: mostly small numbers, so that some are valid.
fn claimed() -> impl Strategy<Value = Vec<(u32, u64, usize)>> {
    let slot = prop_oneof![0..6u32, any::<u32>()];
    let version = prop_oneof![0..6u64, any::<u64>()];
    let bytes = prop_oneof![Just(0usize), Just(1), Just(4096)];
    prop::collection::vec((slot, version, bytes), 0..5)
}

fn body(pages: &[(u32, u64, usize)]) -> Vec<u8> {
    let mut body = Vec::new();
    for (slot, version, bytes) in pages {
        body.extend_from_slice(&page_header(*slot, *version, *bytes));
        body.resize(body.len() + bytes, *version as u8);
    }
    body
}

fn kind() -> impl Strategy<Value = FrameKind> {
    prop_oneof![
        Just(FrameKind::Put),
        Just(FrameKind::Get),
        Just(FrameKind::Resize),
        Just(FrameKind::Ping),
        Just(FrameKind::Append),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// A lender answers each frame, returns only what was put in that slot and version, and never has more
    /// slots than room.
    #[test]
    fn a_lender_survives_any_frames(
        frames in prop::collection::vec((kind(), 0..3u32, prop_oneof![0..12u64, any::<u64>()], claimed(), any::<bool>()), 1..60),
    ) {
        let mut lender = DepositLender::new(1, 9);
        let mut open = FrameHeader::new(FrameKind::Deposit);
        (open.epoch, open.sender) = (Epoch(1), OWNER);
        lender.ask(open, &[]);
        for (kind, epoch, lsn, pages, garbled) in frames {
            let mut header = FrameHeader::new(kind);
            (header.epoch, header.sender, header.lsn) = (Epoch(epoch), OWNER, Lsn(lsn));
            let mut bytes = body(&pages);
            if garbled {
                bytes.truncate(bytes.len() / 2);
            }
            let (answer, body) = lender.ask(header, &bytes);
            prop_assert!(lender.server.slots() <= 9 && lender.server.used_slots() <= lender.server.slots());
            if epoch != 1 {
                prop_assert_eq!(answer.flags, RefusalReason::Fenced as u8);
            }
            if answer.kind == FrameKind::GetReply {
                for page in FramePages::parse(&body).unwrap().pages() {
                    let there = lender.server.version(page.slot) == Some(page.version);
                    prop_assert_eq!(!page.bytes.is_empty(), there);
                    prop_assert!(page.bytes.iter().all(|byte| *byte == page.version as u8));
                }
            }
        }
    }

    /// An owner survives any answer: one that fits no request is misconduct and changes nothing.
    #[test]
    fn an_owner_survives_any_answers(
        steps in prop::collection::vec((0..9u8, 0..8u32, prop_oneof![0..12u32, any::<u32>()], claimed()), 1..80),
    ) {
        let mut depot = PageDirectory::new(&DirectorySettings { copies: 2, slots_max: vec![6; 3], grow: 3, spill_max: 0 });
        let mut now = Time(1);
        for (step, page, number, pages) in steps {
            let lender = page as usize % 3;
            now = Time(now.0 + 300_000_000);
            match step {
                0 => {
                    depot.put(Page(page));
                }
                1 => {
                    let found = depot.get(Page(page));
                    prop_assert_eq!(found == DirectoryLookup::Never, depot.version(Page(page)).is_none());
                }
                2 => {
                    let bytes = body(&pages);
                    if let Ok(cut) = FramePages::parse(&bytes)
                        && let Ok(due) = depot.on_got(lender, number, &cut)
                    {
                        for due in due {
                            depot.take(lender, due.page, due.version);
                        }
                    }
                }
                3 => {
                    let _ = depot.on_stashed(lender, number);
                }
                4 => {
                    let _ = (depot.on_resized(lender, number), depot.on_no_room(lender, number, now));
                }
                6 => depot.on_asked_back(lender, number),
                5 if depot.status().lenders[lender].linked => depot.on_unlinked(lender, now),
                5 => {
                    depot.next_session(lender);
                    let _ = depot.on_linked(lender, Incarnation(u64::from(number % 4)), number, DEPOSIT_LEASE);
                }
                _ => {
                    depot.tick(now);
                    while depot.poll(lender, now).is_some() {}
                }
            }
            for lender in depot.status().lenders {
                prop_assert!(lender.slots <= 6 && lender.used <= lender.slots);
            }
            for at in 0..3 {
                let places = (0..8).map(Page).flat_map(|page| depot.places(page));
                let taken = places.filter(|(lender, ..)| *lender == at).map(|(_, slot, _)| slot);
                let mut slots: Vec<u32> = taken.chain(depot.free_slots(at)).collect();
                slots.sort_unstable();
                let all: Vec<u32> = (0..depot.status().lenders[at].slots).collect();
                prop_assert_eq!(slots, all, "each slot has at most one page");
            }
            while depot.next_event().is_some() {}
        }
    }
}
