//! Remote pages with real lenders that die.

use std::time::Duration;

use crate::common::content::{check, content};
use crate::common::{PATIENCE, address, dir, lender, lender_config, until};
use netram_far::{Page, PageContent, PageGetError, RemotePages, RemotePagesConfig, RemotePagesOpenError};
use netram_lender::Lender;
use tempfile::TempDir;

fn open(dir: &TempDir, lenders: usize, copies: usize) -> RemotePages {
    let depot = RemotePages::open(RemotePagesConfig {
        lenders: (0..lenders).map(|index| address(dir, index)).collect(),
        copies,
        pages_max: 1024,
        grow: 128,
        ..RemotePagesConfig::default()
    })
    .unwrap();
    until("all lenders are linked", || {
        depot.status().lenders.iter().all(|lender| lender.linked)
    });
    depot
}

#[test]
fn pending_and_remote_pages_are_fetched() {
    let dir = dir();
    let lenders = [lender(&dir, 0, 8 << 20), lender(&dir, 1, 8 << 20)];
    let depot = open(&dir, 2, 2);
    for round in 0..3 {
        (0..500).for_each(|page| depot.put(Page(page), &content(page, round)));
        check(&depot, 400..500, round);
        assert!(depot.flush(PATIENCE));
        depot.prefetch((0..64).map(Page));
        check(&depot, 0..500, round);
    }
    depot.forget(Page(7));
    let mut bytes = [1; 4096];
    assert_eq!(depot.get(Page(7), &mut bytes), Ok(PageContent::Zeros));
    assert_eq!(bytes, [0; 4096]);
    assert_eq!(depot.get(Page(9999), &mut bytes), Ok(PageContent::Zeros));
    assert!(depot.status().lenders.iter().all(|lender| lender.used == 499));
    drop(depot);
    until("lenders are empty", || {
        lenders.iter().all(|lender| lender.report().memory.deposits == 0)
    });
}

#[test]
fn a_dead_lenders_pages_get_another_copy() {
    let dir = dir();
    let mut lenders: Vec<Lender> = (0..3).map(|index| lender(&dir, index, 8 << 20)).collect();
    let depot = open(&dir, 3, 2);
    (0..300).for_each(|page| depot.put(Page(page), &content(page, 1)));
    assert!(depot.flush(PATIENCE));
    for dead in 0..3 {
        let stopped = lenders.remove(dead);
        stopped.stop_and_forget(Duration::ZERO);
        check(&depot, 0..300, 1);
        lenders.insert(dead, lender(&dir, dead, 8 << 20));
        // It comes back empty. Its copies are repaired before the next one dies.
        until("every page has two copies again", || {
            let status = depot.status();
            status.short == 0 && status.pending == 0 && status.lenders.iter().all(|lender| lender.linked)
        });
    }
    check(&depot, 0..300, 1);
}

#[test]
fn a_page_lost_by_its_only_lender_is_reported_by_number() {
    let dir = dir();
    let first = lender(&dir, 0, 8 << 20);
    let depot = open(&dir, 1, 1);
    depot.put(Page(3), &content(3, 1));
    assert!(depot.flush(PATIENCE));
    first.stop_and_forget(Duration::ZERO);
    drop(first);
    let _second = lender(&dir, 0, 8 << 20);
    let lost = PageGetError::Lost {
        page: Page(3),
        lenders: vec![address(&dir, 0)],
        spilled: false,
    };
    let mut bytes = [1; 4096];
    assert_eq!(depot.get(Page(3), &mut bytes), Err(lost));
    depot.put(Page(3), &content(3, 2));
    assert!(depot.flush(PATIENCE));
    check(&depot, 3..4, 2);
}

/// Waiters were not told when the page was put anew, and slept until the lease of an absent lender ended.
#[test]
fn all_waiters_get_a_page_that_is_put_anew() {
    let dir = dir();
    let first = lender(&dir, 0, 8 << 20);
    let depot = open(&dir, 1, 1);
    depot.put(Page(3), &content(3, 1));
    assert!(depot.flush(PATIENCE));
    first.stop(Duration::ZERO);
    until("the lender is gone", || !depot.status().lenders[0].linked);
    std::thread::scope(|scope| {
        let (sender, came) = std::sync::mpsc::channel();
        let depot = &depot;
        for _ in 0..3 {
            let sender = sender.clone();
            scope.spawn(move || {
                let mut bytes = [0; 4096];
                let got = depot.get(Page(3), &mut bytes);
                sender.send((got, bytes)).unwrap();
            });
        }
        // By now they probably wait; otherwise the test still holds.
        assert!(came.recv_timeout(Duration::from_millis(100)).is_err());
        depot.put(Page(3), &content(3, 2));
        for _ in 0..3 {
            assert_eq!(
                came.recv_timeout(PATIENCE),
                Ok((Ok(PageContent::Page), content(3, 2)))
            );
        }
    });
}

/// Waiting threads take the links from each other, and from the maintenance thread, which takes them after
/// some milliseconds.
#[test]
fn changing_leaders_lose_no_page() {
    const THREADS: u32 = 6;
    const PAGES: u32 = 24;
    let dir = dir();
    let mut lenders: Vec<Lender> = (0..2).map(|index| lender(&dir, index, 8 << 20)).collect();
    let depot = open(&dir, 2, 2);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let depot = &depot;
            scope.spawn(move || {
                let mine = thread * PAGES..(thread + 1) * PAGES;
                for round in 0..60 {
                    { mine.clone() }.for_each(|page| depot.put(Page(page), &content(page, round)));
                    match (round + u64::from(thread)) % 4 {
                        0 => assert!(depot.flush(PATIENCE)),
                        1 => depot.prefetch(mine.clone().map(Page)),
                        rest => std::thread::sleep(Duration::from_millis(rest)),
                    }
                    check(depot, mine.clone(), round);
                }
            });
        }
        for dead in [0, 1] {
            lenders.remove(dead).stop_and_forget(Duration::ZERO);
            std::thread::sleep(Duration::from_millis(20));
            lenders.insert(dead, lender(&dir, dead, 8 << 20));
            until("every page has two copies again", || {
                let status = depot.status();
                status.short == 0 && status.pending == 0 && status.lenders.iter().all(|lender| lender.linked)
            });
        }
    });
    assert!(depot.flush(PATIENCE));
    check(&depot, 0..THREADS * PAGES, 59);
}

#[test]
fn a_lender_under_two_names_holds_one_copy() {
    let dir = dir();
    let twice = RemotePagesConfig {
        lenders: vec![address(&dir, 0), address(&dir, 1), address(&dir, 0)],
        ..RemotePagesConfig::default()
    };
    assert!(matches!(
        RemotePages::open(twice),
        Err(RemotePagesOpenError::NamedTwice { address: named }) if named == address(&dir, 0)
    ));
    let _lender = Lender::start(netram_lender::LenderConfig {
        listen: vec![address(&dir, 0), address(&dir, 1)],
        ..lender_config(&dir, 0, 8 << 20)
    })
    .unwrap();
    let depot = RemotePages::open(RemotePagesConfig {
        lenders: vec![address(&dir, 0), address(&dir, 1)],
        copies: 2,
        ..RemotePagesConfig::default()
    })
    .unwrap();
    (0..20).for_each(|page| depot.put(Page(page), &content(page, 1)));
    assert!(depot.flush(PATIENCE));
    let status = depot.status();
    assert_eq!(status.short, 20);
    assert_eq!(status.lenders.iter().map(|lender| lender.used).sum::<u32>(), 20);
    check(&depot, 0..20, 1);
}

#[test]
fn without_room_pages_stay_pending() {
    let dir = dir();
    let _lender = lender(&dir, 0, 1 << 20);
    let depot = open(&dir, 1, 1);
    (0..300).for_each(|page| depot.put(Page(page), &content(page, 1)));
    until("the lender is full", || depot.status().lenders[0].used == 256);
    assert!(!depot.flush(Duration::from_millis(50)));
    check(&depot, 0..300, 1);
    (0..100).for_each(|page| depot.forget(Page(page)));
    assert!(depot.flush(PATIENCE), "a forgotten page frees a slot");
    check(&depot, 100..300, 1);
}
