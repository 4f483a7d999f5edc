//! Life of a page, move by move.

use netram_far_machine::arena::{
    ArenaMachine, ArenaSettings, ArrivalAction, EvictionWork, FaultAction, MoveFollowUp, Page, Replacement,
    WordSource,
};
use netram_far_machine::limit::{ARENA_FRAMES_MIN, EVICT_PAGES, PAGE_BYTES};

use crate::arena::world::{ArenaWorld, ThreadAction};

fn settings(hidden: u32) -> ArenaSettings {
    ArenaSettings {
        frames: ARENA_FRAMES_MIN,
        inactive: hidden,
        pack: 0,
        packs_always: false,
        looks_ahead: true,
        patched: 0,
        replacement: Replacement::Fifo,
        seed: 1,
    }
}

/// An arena whose pages from 0 on are resident until eviction has work.
fn filled(hidden: u32) -> (ArenaMachine, EvictionWork) {
    let mut arena = ArenaMachine::new(settings(hidden));
    let work = fill(&mut arena, 0);
    (arena, work)
}

/// Brings pages from this one on until eviction has work.
fn fill(arena: &mut ArenaMachine, from: u32) -> EvictionWork {
    for page in (from..).map(Page) {
        if let Some(work) = arena.work() {
            return work;
        }
        bring(arena, page);
    }
    unreachable!("eviction has work before the arena is full")
}

#[test]
fn a_page_is_evicted_through_its_staging_frame() {
    let (mut arena, work) = filled(0);
    let EvictionWork::Deactivate(pages) = work else {
        panic!("{work:?}")
    };
    assert_eq!(pages.len(), EVICT_PAGES);
    let (page, berth) = pages[0];
    assert_eq!(page, Page(0), "the first page in is the first out");
    assert_eq!(arena.want(Page(1)), FaultAction::Wait);
    for (page, _) in &pages[2..] {
        assert_eq!(arena.deactivated(*page, true), MoveFollowUp::Done);
    }
    assert_eq!(arena.deactivated(page, true), MoveFollowUp::Done);
    assert_eq!(
        arena.deactivated(Page(1), true),
        MoveFollowUp::Activate(pages[1].1),
        "a thread waits for the page"
    );
    assert_eq!(arena.arrive(Page(1)), ArrivalAction::Bytes);
    assert_eq!(arena.came(Page(1)), MoveFollowUp::Done);

    let Some(EvictionWork::Send(leaving)) = arena.work() else {
        panic!("inactive pages are sent next")
    };
    assert_eq!(leaving.len(), EVICT_PAGES - 1);
    let free = arena.free();
    assert_eq!(arena.sent(page, true), MoveFollowUp::Drop(berth));
    assert_eq!(arena.free(), free, "its frame is not free yet");
    arena.dropped(berth);
    assert_eq!(arena.free(), free + 1);
    assert_eq!(arena.want(page), FaultAction::Fetch);
    assert_eq!(arena.sent(Page(2), false), MoveFollowUp::Drop(pages[2].1));
    assert_eq!(
        arena.want(Page(2)),
        FaultAction::Zero,
        "the page was zeros when it was evicted"
    );
}

#[test]
fn an_inactive_page_has_a_second_chance() {
    let (mut arena, work) = filled(28);
    let EvictionWork::Deactivate(pages) = work else {
        panic!("{work:?}")
    };
    for (page, _) in &pages {
        assert_eq!(arena.deactivated(*page, true), MoveFollowUp::Done);
    }
    assert!(
        matches!(arena.work(), Some(EvictionWork::Deactivate(_))),
        "this many pages may be inactive"
    );
    assert_eq!(arena.want(pages[3].0), FaultAction::Activate(pages[3].1));
    assert_eq!(arena.arrive(pages[3].0), ArrivalAction::Bytes);
    assert_eq!(arena.came(pages[3].0), MoveFollowUp::Done);
    assert_eq!(arena.tally().activated, 1);
}

#[test]
fn a_page_that_cannot_be_moved_is_skipped() {
    let (mut arena, work) = filled(0);
    let EvictionWork::Deactivate(pages) = work else {
        panic!("{work:?}")
    };
    for (page, _) in &pages {
        assert_eq!(arena.deactivated(*page, false), MoveFollowUp::Done);
        assert_eq!(arena.want(*page), FaultAction::Resident);
    }
    let Some(EvictionWork::Deactivate(others)) = arena.work() else {
        panic!("eviction continues")
    };
    assert_eq!(others[0].0, Page(EVICT_PAGES as u32));
}

#[test]
fn a_page_discarded_on_arrival_is_looked_up_again() {
    let mut arena = ArenaMachine::new(settings(0));
    let page = Page(5);
    assert_eq!(arena.want(page), FaultAction::Zero);
    arena.arrive(page);
    arena.came(page);
    assert_eq!(arena.fault(page), FaultAction::Check);
    assert_eq!(arena.fault(page), FaultAction::Wait, "one looks");
    assert_eq!(arena.arrive(page), ArrivalAction::Bytes);
    assert_eq!(arena.came(page), MoveFollowUp::Done);
    assert_eq!((arena.want(page), arena.used()), (FaultAction::Resident, 1));
}

#[test]
fn a_pinned_page_is_not_evicted() {
    let (mut arena, work) = filled(0);
    let EvictionWork::Deactivate(pages) = work else {
        panic!("{work:?}")
    };
    for (page, _) in &pages {
        arena.deactivated(*page, false);
    }
    for page in EVICT_PAGES as u32..2 * EVICT_PAGES as u32 {
        arena.pin(Page(page));
    }
    let Some(EvictionWork::Deactivate(others)) = arena.work() else {
        panic!("eviction continues")
    };
    assert_eq!(others[0].0, Page(2 * EVICT_PAGES as u32));
}

#[test]
fn without_room_at_lenders_faults_wait_and_local_pages_stay() {
    let mut world = ArenaWorld::new(settings(0), 2, 1);
    world.stashes = false;
    let mut pages = (0..).map(Page);
    while !world.is_blocked(0) {
        world.act(0, ThreadAction::Write(pages.next().unwrap()));
        while world.step() {}
    }
    assert!(world.arena.is_crowded());
    assert_eq!(world.arena.work(), None);
    world.act(1, ThreadAction::Read(Page(pages.next().unwrap().0 - 2)));
    assert!(!world.is_blocked(1), "a local page is accessible");
    world.stashes = true;
    world.drain();
}

#[test]
fn a_page_discarded_in_flight_arrives_as_zeros() {
    let mut arena = ArenaMachine::new(settings(0));
    let page = Page(5);
    assert_eq!(arena.want(page), FaultAction::Zero);
    assert_eq!(arena.discard(page), Default::default());
    assert_eq!(arena.arrive(page), ArrivalAction::Zeros);
    // Discard again, between its mapping and the report of it.
    arena.discard(page);
    assert_eq!(arena.want(page), FaultAction::Wait);
    assert_eq!(arena.came(page), MoveFollowUp::Zero);
    assert_eq!(arena.arrive(page), ArrivalAction::Bytes);
    assert_eq!(arena.came(page), MoveFollowUp::Done);
    arena.discard(page);
    assert_eq!((arena.used(), arena.want(page)), (0, FaultAction::Zero));
}

#[test]
fn a_counter_continues_when_a_packed_page_is_sent_on() {
    let (mut arena, work) = filled(0);
    assert_eq!(
        arena.word_source(Page(0), 1, 4),
        WordSource::Page,
        "the page is being deactivated"
    );
    pack(&mut arena, work);
    let (page, thrown) = (Page(0), Page(1));
    assert!(arena.is_packed(page));
    assert_eq!(arena.word_source(page, 3, 4), WordSource::Packed);
    assert_eq!(
        arena.word_source(page, 1, 4),
        WordSource::Page,
        "its counter is spent"
    );
    assert!(arena.discard(thrown).packed);
    assert_eq!(arena.word_source(thrown, 1, 4), WordSource::Zeros);
    // The pack may hold nothing now, so its pages are sent on.
    let EvictionWork::Pass(passing) = fill(&mut arena, 1000) else {
        panic!("packed pages are sent on")
    };
    assert_eq!(
        arena.word_source(page, 1, 9),
        WordSource::Page,
        "the page is still being sent"
    );
    for page in passing {
        assert_eq!(arena.passed(page), MoveFollowUp::Done);
    }
    assert_eq!(arena.word_source(page, 1, 4), WordSource::Page);
    assert_eq!(arena.word_source(page, 1, 5), WordSource::Words);
}

#[test]
fn a_page_with_a_waiter_is_mapped_even_if_it_is_prefetched() {
    // It arrived as the marker of a run and stayed unmapped, and the thread that had found no free frame
    // slept on.
    let (mut arena, mut work) = filled(0);
    loop {
        evict(&mut arena, work);
        let Some(next) = arena.work() else { break };
        work = next;
    }
    let mut newer = (1000..).map(Page);
    while arena.free() > 0 {
        bring(&mut arena, newer.next().unwrap());
    }
    let awaited = 4..EVICT_PAGES as u32;
    for page in awaited.clone() {
        assert_eq!(arena.want(Page(page)), FaultAction::Starved);
    }
    while let Some(work) = arena.work() {
        evict(&mut arena, work);
    }
    let mut ahead = 0;
    for page in (0..4).map(Page) {
        let serve = arena.want(page);
        arena.note(1, u64::from(page.0) * PAGE_BYTES as u64, serve, &(0..100));
        if serve == FaultAction::Fetch {
            assert_eq!(arena.arrive(page), ArrivalAction::Bytes);
            assert_eq!(arena.came(page), MoveFollowUp::Done);
        }
        for page in arena.next_ahead(usize::MAX) {
            if awaited.contains(&page.0) {
                assert_eq!(arena.arrive(page), ArrivalAction::Bytes, "{page:?}");
                ahead += 1;
            }
        }
    }
    assert!(ahead > 0, "no page was prefetched");
}

#[test]
fn nothing_is_prefetched_if_that_is_off() {
    for looks_ahead in [true, false] {
        let mut arena = ArenaMachine::new(ArenaSettings {
            looks_ahead,
            ..settings(0)
        });
        let mut work = Some(fill(&mut arena, 0));
        while let Some(next) = work {
            evict(&mut arena, next);
            work = arena.work();
        }
        let mut asked = 0;
        for page in (0..8).map(Page) {
            let serve = arena.want(page);
            arena.note(1, u64::from(page.0) * PAGE_BYTES as u64, serve, &(0..100));
            if serve == FaultAction::Fetch {
                assert_eq!(arena.arrive(page), ArrivalAction::Bytes);
                assert_eq!(arena.came(page), MoveFollowUp::Done);
            }
            asked += arena.next_ahead(usize::MAX).len();
        }
        assert_eq!(asked > 0, looks_ahead);
    }
}

#[test]
fn announced_pages_are_prefetched_in_order_within_spare_frames() {
    let (mut arena, work) = filled(0);
    evict(&mut arena, work);
    let leaving = arena.work().expect("inactive pages are sent next");
    evict(&mut arena, leaving);
    let (here, nowhere) = (Page(ARENA_FRAMES_MIN / 2), Page(10 * ARENA_FRAMES_MIN));
    arena.will_need([here, nowhere, Page(1), Page(0), Page(1)]);
    assert_eq!(
        arena.next_ahead(usize::MAX),
        [Page(1), Page(0)],
        "remote pages, each once"
    );
    assert_eq!(arena.want(Page(0)), FaultAction::Wait, "the page is arriving");
    for page in [Page(1), Page(0)] {
        assert_eq!(
            arena.arrive(page),
            ArrivalAction::Bytes,
            "mapped, because a thread is about to use it"
        );
        assert_eq!(arena.came(page), MoveFollowUp::Done);
    }
    while arena.free() > 0 {
        let page = Page(nowhere.0 + arena.free());
        bring(&mut arena, page);
    }
    arena.will_need([Page(2)]);
    assert!(!arena.has_ahead(), "frames are kept for waiting threads");
}

#[test]
fn a_packed_page_that_waits_for_a_frame_arrives_after_it_was_sent_on() {
    // Its turn came while it was being sent on from the pack. It was skipped, and its thread slept on.
    let (mut arena, work) = filled(0);
    let passing = pack(&mut arena, work);
    let mut newer = (1000..).map(Page);
    while arena.free() > 0 {
        bring(&mut arena, newer.next().unwrap());
    }
    let (awaited, others) = passing.split_last().unwrap();
    assert_eq!(arena.want(*awaited), FaultAction::Starved);
    assert_eq!(arena.work(), Some(EvictionWork::Pass(passing.clone())));
    for page in others {
        assert_eq!(arena.passed(*page), MoveFollowUp::Done);
        assert_eq!(arena.next_starved(), None);
    }
    assert!(arena.free() > 0);
    assert_eq!(arena.passed(*awaited), MoveFollowUp::Done);
    assert_eq!(arena.next_starved(), Some((*awaited, FaultAction::Fetch)));
}

/// Packs the pages chosen for deactivation.
fn pack(arena: &mut ArenaMachine, work: EvictionWork) -> Vec<Page> {
    let EvictionWork::Deactivate(pages) = work else {
        panic!("{work:?}")
    };
    for (page, _) in &pages {
        assert_eq!(arena.deactivated(*page, true), MoveFollowUp::Done);
    }
    let Some(EvictionWork::Send(leaving)) = arena.work() else {
        panic!("inactive pages are sent next")
    };
    for (page, berth) in &leaving {
        assert_eq!(arena.packed(*page, 1000), MoveFollowUp::Drop(*berth));
        arena.dropped(*berth);
    }
    leaving.into_iter().map(|(page, _)| page).collect()
}

/// Brings a blank page.
fn bring(arena: &mut ArenaMachine, page: Page) {
    assert_eq!(arena.want(page), FaultAction::Zero);
    assert_eq!(arena.arrive(page), ArrivalAction::Bytes);
    assert_eq!(arena.came(page), MoveFollowUp::Done);
}

/// Evicts the chosen pages.
fn evict(arena: &mut ArenaMachine, work: EvictionWork) {
    match work {
        EvictionWork::Deactivate(pages) => pages.into_iter().for_each(|(page, _)| {
            assert_eq!(arena.deactivated(page, true), MoveFollowUp::Done);
        }),
        EvictionWork::Send(pages) => pages.into_iter().for_each(|(page, berth)| {
            assert_eq!(arena.sent(page, true), MoveFollowUp::Drop(berth));
            arena.dropped(berth);
        }),
        EvictionWork::Pass(pages) => panic!("nothing is packed: {pages:?}"),
    }
}

#[test]
#[should_panic(expected = "the cap must leave frames")]
fn a_cap_below_the_minimum_is_refused() {
    let settings = ArenaSettings {
        frames: ARENA_FRAMES_MIN - 1,
        ..settings(0)
    };
    ArenaMachine::new(settings);
}
