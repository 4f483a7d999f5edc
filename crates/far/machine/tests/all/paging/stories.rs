//! Each policy, move by move.

use netram_far_machine::paging::{
    FirstTouch, Page, PageAccess, PageLocation, PageMove, PagingPolicy, PolicyConfig, PolicyKind,
    ReferenceOutcome, Replacement,
};

const A: Page = Page(0);
const B: Page = Page(1);
const C: Page = Page(2);

fn policy(kind: PolicyKind, local_pages: u32, remote_pages: u32) -> PagingPolicy {
    PagingPolicy::new(PolicyConfig {
        kind,
        replacement: Replacement::Lru,
        local_pages,
        remote_pages,
        first_touch: FirstTouch::Disk,
        keep_copies: false,
        seed: 1,
    })
}

fn read(policy: &mut PagingPolicy, page: Page) -> Vec<PageMove> {
    moves(policy.reference(page, PageAccess::Read))
}

fn write(policy: &mut PagingPolicy, page: Page) -> Vec<PageMove> {
    moves(policy.reference(page, PageAccess::Write))
}

fn moves(served: ReferenceOutcome<'_>) -> Vec<PageMove> {
    match served {
        ReferenceOutcome::Local | ReferenceOutcome::Word => vec![],
        ReferenceOutcome::Moved(moves) | ReferenceOutcome::WordAndMoved(moves) => moves.to_vec(),
    }
}

#[test]
fn a_disk_gets_only_changed_pages() {
    let mut disk = policy(PolicyKind::Disk, 2, 0);
    assert_eq!(write(&mut disk, A), [PageMove::Read(A)]);
    assert_eq!(read(&mut disk, B), [PageMove::Read(B)]);
    assert_eq!(read(&mut disk, C), [PageMove::Write(A), PageMove::Read(C)]);
    assert_eq!(read(&mut disk, A), [PageMove::Drop(B), PageMove::Read(A)]);
    let tally = disk.tally();
    assert_eq!(
        (tally.disk_first, tally.disk_again, tally.disk_written),
        (3, 1, 1)
    );
    assert_eq!((tally.references(), tally.faults), (4, 4));
}

#[test]
fn the_least_recently_referenced_page_is_evicted() {
    let mut disk = policy(PolicyKind::Disk, 2, 0);
    read(&mut disk, A);
    read(&mut disk, B);
    assert_eq!(disk.reference(A, PageAccess::Read), ReferenceOutcome::Local);
    assert_eq!(read(&mut disk, C), [PageMove::Drop(B), PageMove::Read(C)]);
}

#[test]
fn pages_beyond_the_ram_disk_go_to_the_disk() {
    let mut ram = policy(PolicyKind::RamDisk, 1, 1);
    read(&mut ram, A);
    assert_eq!(write(&mut ram, B), [PageMove::Send(A), PageMove::Read(B)]);
    assert_eq!(write(&mut ram, C), [PageMove::Write(B), PageMove::Read(C)]);
    assert_eq!(read(&mut ram, A), [PageMove::Send(C), PageMove::Fetch(A)]);
    assert_eq!(
        (ram.location(B), ram.location(C)),
        (PageLocation::Disk, PageLocation::Remote)
    );
}

#[test]
fn under_remote_main_pages_do_not_move() {
    let mut main = policy(PolicyKind::RemoteMain, 1, 1);
    read(&mut main, A);
    assert_eq!(
        main.reference(B, PageAccess::Write),
        ReferenceOutcome::WordAndMoved(&[PageMove::ReadAway(B)])
    );
    for _ in 0..1000 {
        assert_eq!(main.reference(B, PageAccess::Read), ReferenceOutcome::Word);
    }
    // Both memories are full: a local page makes room.
    assert_eq!(read(&mut main, C), [PageMove::Drop(A), PageMove::Read(C)]);
    assert_eq!(main.tally().words, 1001);
}

#[test]
fn a_page_is_fetched_when_its_counter_is_spent() {
    let mut counters = policy(PolicyKind::Counters { initial: 3 }, 1, 2);
    write(&mut counters, A);
    assert_eq!(
        counters.reference(B, PageAccess::Read),
        ReferenceOutcome::WordAndMoved(&[PageMove::ReadAway(B)])
    );
    assert_eq!(counters.reference(B, PageAccess::Read), ReferenceOutcome::Word);
    let home = [PageMove::Send(A), PageMove::Fetch(B)];
    assert_eq!(
        counters.reference(B, PageAccess::Read),
        ReferenceOutcome::WordAndMoved(&home)
    );
    assert_eq!(counters.reference(B, PageAccess::Read), ReferenceOutcome::Local);
    // An evicted page starts with a full counter.
    for _ in 0..2 {
        assert_eq!(counters.reference(A, PageAccess::Read), ReferenceOutcome::Word);
    }
    assert_eq!(
        counters.reference(A, PageAccess::Read),
        ReferenceOutcome::WordAndMoved(&[PageMove::Send(B), PageMove::Fetch(A)])
    );
}

#[test]
fn a_copy_avoids_sending_and_gives_way_to_pages() {
    let mut ram = PagingPolicy::new(PolicyConfig {
        keep_copies: true,
        ..*policy(PolicyKind::RamDisk, 1, 2).config()
    });
    read(&mut ram, A);
    read(&mut ram, B);
    assert_eq!(read(&mut ram, A), [PageMove::Send(B), PageMove::Fetch(A)]);
    assert_eq!(ram.remote(), 2, "A's copy and B");
    assert_eq!(
        read(&mut ram, B),
        [PageMove::Drop(A), PageMove::Fetch(B)],
        "A has a copy there"
    );
    let sent = ram.tally().sent_clean;
    assert_eq!(read(&mut ram, C), [PageMove::Drop(B), PageMove::Read(C)]);
    assert_eq!(ram.tally().sent_clean, sent);
    // Remote memory has A and B. C was changed, and there is no room for it.
    write(&mut ram, C);
    assert_eq!(read(&mut ram, A), [PageMove::Write(C), PageMove::Fetch(A)]);
    assert_eq!(read(&mut ram, C), [PageMove::Drop(A), PageMove::Read(C)]);
}

#[test]
fn an_unchanged_page_of_zeros_is_made_again() {
    let mut disk = PagingPolicy::new(PolicyConfig {
        first_touch: FirstTouch::Zeros,
        ..*policy(PolicyKind::Disk, 1, 0).config()
    });
    assert_eq!(read(&mut disk, A), [PageMove::Zero(A)]);
    assert_eq!(read(&mut disk, B), [PageMove::Drop(A), PageMove::Zero(B)]);
    assert_eq!(disk.location(A), PageLocation::Nowhere);
    assert_eq!(disk.tally().disk_pages(), 0);
}

#[test]
fn quiet_references_may_be_reported_later() {
    for kind in [
        PolicyKind::Disk,
        PolicyKind::RamDisk,
        PolicyKind::RemoteMain,
        PolicyKind::Counters { initial: 5 },
    ] {
        let (mut single, mut late) = (policy(kind, 2, 3), policy(kind, 2, 3));
        let (mut state, mut now) = (7_u64, 0);
        for _ in 0..4000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = Page((state >> 33) as u32 % 8);
            let times = (state >> 40) % 9 + 1;
            let access = match state >> 63 {
                0 => PageAccess::Read,
                _ => PageAccess::Write,
            };
            for _ in 0..times {
                single.reference(page, access);
            }
            let mut told = 0;
            while told < times {
                let quiet = late.quiet(page).min(times - told);
                if quiet > 0 {
                    told += quiet;
                    late.count(page, access, quiet, now + told);
                } else {
                    told += 1;
                    let served = late.reference_at(now + told, page, access);
                    assert_ne!(
                        served,
                        ReferenceOutcome::Local,
                        "the reference would have been quiet"
                    );
                }
            }
            now += times;
            assert_eq!(single.tally(), late.tally());
        }
    }
}
