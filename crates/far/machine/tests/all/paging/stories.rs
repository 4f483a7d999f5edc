//! What each policy does, told move by move.

use netram_far_machine::paging::{
    Access, Config, FirstTouch, Kind, Move, Page, Place, Policy, Replacement, Served,
};

const A: Page = Page(0);
const B: Page = Page(1);
const C: Page = Page(2);

fn policy(kind: Kind, local_pages: u32, remote_pages: u32) -> Policy {
    Policy::new(Config {
        kind,
        replacement: Replacement::Lru,
        local_pages,
        remote_pages,
        first_touch: FirstTouch::Disk,
        keep_copies: false,
        seed: 1,
    })
}

fn read(policy: &mut Policy, page: Page) -> Vec<Move> {
    moves(policy.reference(page, Access::Read))
}

fn write(policy: &mut Policy, page: Page) -> Vec<Move> {
    moves(policy.reference(page, Access::Write))
}

fn moves(served: Served<'_>) -> Vec<Move> {
    match served {
        Served::Local | Served::Word => vec![],
        Served::Moved(moves) | Served::WordAndMoved(moves) => moves.to_vec(),
    }
}

#[test]
fn a_disk_gets_what_was_changed_and_nothing_else() {
    let mut disk = policy(Kind::Disk, 2, 0);
    assert_eq!(write(&mut disk, A), [Move::Read(A)]);
    assert_eq!(read(&mut disk, B), [Move::Read(B)]);
    assert_eq!(read(&mut disk, C), [Move::Write(A), Move::Read(C)]);
    assert_eq!(read(&mut disk, A), [Move::Drop(B), Move::Read(A)]);
    let tally = disk.tally();
    assert_eq!(
        (tally.disk_first, tally.disk_again, tally.disk_written),
        (3, 1, 1)
    );
    assert_eq!((tally.references(), tally.faults), (4, 4));
}

#[test]
fn the_page_whose_last_reference_is_longest_ago_leaves() {
    let mut disk = policy(Kind::Disk, 2, 0);
    read(&mut disk, A);
    read(&mut disk, B);
    assert_eq!(disk.reference(A, Access::Read), Served::Local);
    assert_eq!(read(&mut disk, C), [Move::Drop(B), Move::Read(C)]);
}

#[test]
fn a_ram_disk_takes_every_page_that_leaves_and_the_disk_what_it_has_no_room_for() {
    let mut ram = policy(Kind::RamDisk, 1, 1);
    read(&mut ram, A);
    assert_eq!(write(&mut ram, B), [Move::Send(A), Move::Read(B)]);
    assert_eq!(write(&mut ram, C), [Move::Write(B), Move::Read(C)]);
    assert_eq!(read(&mut ram, A), [Move::Send(C), Move::Fetch(A)]);
    assert_eq!((ram.place(B), ram.place(C)), (Place::Disk, Place::Remote));
}

#[test]
fn under_remote_main_a_page_stays_where_it_was_put() {
    let mut main = policy(Kind::RemoteMain, 1, 1);
    read(&mut main, A);
    assert_eq!(
        main.reference(B, Access::Write),
        Served::WordAndMoved(&[Move::ReadAway(B)])
    );
    for _ in 0..1000 {
        assert_eq!(main.reference(B, Access::Read), Served::Word);
    }
    // Both memories are full: a local page makes room.
    assert_eq!(read(&mut main, C), [Move::Drop(A), Move::Read(C)]);
    assert_eq!(main.tally().words, 1001);
}

#[test]
fn a_page_comes_home_with_the_word_that_spends_its_counter() {
    let mut counters = policy(Kind::Counters { initial: 3 }, 1, 2);
    write(&mut counters, A);
    assert_eq!(
        counters.reference(B, Access::Read),
        Served::WordAndMoved(&[Move::ReadAway(B)])
    );
    assert_eq!(counters.reference(B, Access::Read), Served::Word);
    let home = [Move::Send(A), Move::Fetch(B)];
    assert_eq!(counters.reference(B, Access::Read), Served::WordAndMoved(&home));
    assert_eq!(counters.reference(B, Access::Read), Served::Local);
    // Who goes away has all of his words again.
    for _ in 0..2 {
        assert_eq!(counters.reference(A, Access::Read), Served::Word);
    }
    assert_eq!(
        counters.reference(A, Access::Read),
        Served::WordAndMoved(&[Move::Send(B), Move::Fetch(A)])
    );
}

#[test]
fn a_copy_spares_the_sending_and_gives_way_to_a_page() {
    let mut ram = Policy::new(Config {
        keep_copies: true,
        ..*policy(Kind::RamDisk, 1, 2).config()
    });
    read(&mut ram, A);
    read(&mut ram, B);
    assert_eq!(read(&mut ram, A), [Move::Send(B), Move::Fetch(A)]);
    assert_eq!(ram.remote(), 2, "A's copy and B");
    assert_eq!(
        read(&mut ram, B),
        [Move::Drop(A), Move::Fetch(B)],
        "A is there already"
    );
    let sent = ram.tally().sent_clean;
    assert_eq!(read(&mut ram, C), [Move::Drop(B), Move::Read(C)]);
    assert_eq!(ram.tally().sent_clean, sent);
    // Remote memory has A and B. C was changed: nobody has room for it.
    write(&mut ram, C);
    assert_eq!(read(&mut ram, A), [Move::Write(C), Move::Fetch(A)]);
    assert_eq!(read(&mut ram, C), [Move::Drop(A), Move::Read(C)]);
}

#[test]
fn a_page_that_was_only_asked_for_is_made_again() {
    let mut disk = Policy::new(Config {
        first_touch: FirstTouch::Zeros,
        ..*policy(Kind::Disk, 1, 0).config()
    });
    assert_eq!(read(&mut disk, A), [Move::Zero(A)]);
    assert_eq!(read(&mut disk, B), [Move::Drop(A), Move::Zero(B)]);
    assert_eq!(disk.place(A), Place::Nowhere);
    assert_eq!(disk.tally().disk_pages(), 0);
}

#[test]
fn quiet_references_may_be_told_of_later() {
    for kind in [
        Kind::Disk,
        Kind::RamDisk,
        Kind::RemoteMain,
        Kind::Counters { initial: 5 },
    ] {
        let (mut single, mut late) = (policy(kind, 2, 3), policy(kind, 2, 3));
        let (mut state, mut now) = (7_u64, 0);
        for _ in 0..4000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let page = Page((state >> 33) as u32 % 8);
            let times = (state >> 40) % 9 + 1;
            let access = match state >> 63 {
                0 => Access::Read,
                _ => Access::Write,
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
                    assert_ne!(served, Served::Local, "it would have been quiet");
                }
            }
            now += times;
            assert_eq!(single.tally(), late.tally());
        }
    }
}
