//! Remote pages and an arena with a spill file: without a lender, with one that dies, and on a full disk.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::common::content::{check, content};
use crate::common::{PATIENCE, address, dir, lender, until};
use netram_far::{
    Arena, ArenaConfig, ArenaError, FarVec, Page, PageContent, PageGetError, RemotePages, RemotePagesConfig,
    RemotePagesOpenError,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

fn config(dir: &TempDir, lenders: usize, copies: usize) -> RemotePagesConfig {
    RemotePagesConfig {
        lenders: (0..lenders).map(|index| address(dir, index)).collect(),
        copies,
        pages_max: 1024,
        grow: 128,
        spill: Some(dir.path().to_owned()),
        ..RemotePagesConfig::default()
    }
}

fn open(config: RemotePagesConfig, linked: usize) -> RemotePages {
    let depot = RemotePages::open(config).unwrap();
    until("lenders and the file are there", || {
        let status = depot.status();
        let lenders = status.lenders.iter().filter(|lender| lender.linked).count();
        lenders == linked && status.spill.is_some_and(|file| file.linked)
    });
    depot
}

fn put(depot: &RemotePages, pages: std::ops::Range<u32>, round: u64) {
    pages.for_each(|page| depot.put(Page(page), &content(page, round)));
}

fn spilled(depot: &RemotePages) -> u32 {
    depot.status().spill.unwrap().used
}

fn skipped(missing: &str) {
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    // If this cannot be written, there is no other way to report it.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}

#[test]
fn without_a_lender_pages_are_read_from_the_file() {
    let dir = dir();
    let depot = open(config(&dir, 0, 2), 0);
    for round in 0..3 {
        put(&depot, 0..500, round);
        assert!(depot.flush(PATIENCE));
        depot.prefetch((0..64).map(Page));
        check(&depot, 0..500, round);
    }
    let status = depot.status();
    assert_eq!((spilled(&depot), status.short, status.lost), (500, 500, 0));
    depot.forget(Page(7));
    let mut bytes = [1; 4096];
    assert_eq!(depot.get(Page(7), &mut bytes), Ok(PageContent::Zeros));
    assert_eq!(spilled(&depot), 499);
}

#[test]
fn the_file_has_every_page_when_the_only_lender_dies() {
    let dir = dir();
    let first = lender(&dir, 0, 8 << 20);
    let depot = open(config(&dir, 1, 2), 1);
    put(&depot, 0..300, 1);
    assert!(depot.flush(PATIENCE));
    let status = depot.status();
    assert_eq!(
        (status.lenders[0].used, spilled(&depot), status.short),
        (300, 300, 0)
    );
    first.stop_and_forget(Duration::ZERO);
    check(&depot, 0..300, 1);
    put(&depot, 0..100, 2);
    assert!(depot.flush(PATIENCE));
    check(&depot, 0..100, 2);
    drop(first);
    let _second = lender(&dir, 0, 8 << 20);
    until("every page has both copies again", || {
        let status = depot.status();
        status.short == 0 && status.lenders[0].used == 300 && status.pending == 0
    });
    check(&depot, 0..100, 2);
    check(&depot, 100..300, 1);
}

#[test]
fn pages_move_from_the_file_to_new_lenders() {
    let dir = dir();
    let depot = open(config(&dir, 2, 2), 0);
    put(&depot, 0..300, 1);
    assert!(depot.flush(PATIENCE));
    assert_eq!(spilled(&depot), 300);
    let mut lenders = vec![lender(&dir, 0, 8 << 20)];
    until("one lender has all, and the file still", || {
        let status = depot.status();
        status.short == 0 && status.lenders[0].used == 300 && spilled(&depot) == 300
    });
    lenders.push(lender(&dir, 1, 8 << 20));
    until("lenders have both copies", || {
        let status = depot.status();
        spilled(&depot) == 0 && status.short == 0 && status.pending == 0
    });
    check(&depot, 0..300, 1);
    lenders[0].stop_and_forget(Duration::ZERO);
    until("what it had is in the file", || {
        let status = depot.status();
        spilled(&depot) == 300 && status.short == 0 && status.pending == 0
    });
    lenders[1].stop_and_forget(Duration::ZERO);
    check(&depot, 0..300, 1);
}

/// A file system of a megabyte in memory. `None`: this process may not mount one, which is reported.
struct Small(TempDir);

impl Small {
    fn mount(dir: TempDir) -> Option<Small> {
        let mounted = mount(
            "netram-test",
            dir.path(),
            "tmpfs",
            MountFlags::empty(),
            c"size=1m",
        );
        match mounted {
            Ok(()) => Some(Small(dir)),
            Err(error) => {
                skipped(&format!("no file system can be mounted: {error}"));
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        unmount(self.path(), UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn on_a_full_disk_pages_stay_pending() {
    let (dir, Some(small)) = (dir(), Small::mount(dir())) else {
        return;
    };
    std::fs::write(small.path().join("other"), vec![1; 600 << 10]).unwrap();
    let depot = open(
        RemotePagesConfig {
            spill: Some(small.path().to_owned()),
            ..config(&dir, 0, 1)
        },
        0,
    );
    put(&depot, 0..200, 1);
    until("the disk is full", || depot.status().spill.unwrap().full);
    assert!(!depot.flush(Duration::from_millis(50)));
    let used = spilled(&depot);
    assert!(
        (50..=106).contains(&used),
        "424 KiB were free, and {used} pages are used"
    );
    check(&depot, 0..200, 1);
    std::fs::remove_file(small.path().join("other")).unwrap();
    assert!(depot.flush(PATIENCE), "room is used when there is some");
    assert_eq!(spilled(&depot), 200);
    check(&depot, 0..200, 1);
    drop(depot);
    until("nothing of it is left", || {
        let stat = rustix::fs::statvfs(small.path()).unwrap();
        stat.f_bfree >= stat.f_blocks - 1
    });
}

#[test]
fn the_file_respects_its_maximum_size() {
    let dir = dir();
    let depot = open(
        RemotePagesConfig {
            spill_bytes: 100 * 4096 + 5,
            ..config(&dir, 0, 1)
        },
        0,
    );
    put(&depot, 0..150, 1);
    until("it is used up", || spilled(&depot) == 100);
    assert!(!depot.flush(Duration::from_millis(50)));
    assert_eq!(depot.status().spill.unwrap().slots, 100);
    check(&depot, 0..150, 1);
}

#[test]
fn a_directory_that_does_not_exist_is_refused() {
    let nobody = RemotePages::open(RemotePagesConfig::default()).err();
    assert!(
        matches!(nobody, Some(RemotePagesOpenError::BadConfig { .. })),
        "{nobody:?}"
    );
    let dir = dir();
    let nowhere = RemotePagesConfig {
        spill: Some(dir.path().join("absent")),
        ..config(&dir, 0, 1)
    };
    assert!(matches!(
        RemotePages::open(nowhere).err(),
        Some(RemotePagesOpenError::Spill { .. })
    ));
    let nothing = RemotePagesConfig {
        spill_bytes: 4095,
        ..config(&dir, 0, 1)
    };
    assert!(matches!(
        RemotePages::open(nothing).err(),
        Some(RemotePagesOpenError::BadConfig { .. })
    ));
}

#[test]
fn a_vector_larger_than_memory_needs_no_lender() {
    let dir = dir();
    let arena = Arena::open(ArenaConfig {
        bytes: 16 << 20,
        local_bytes: 64 * 4096,
        remote_pages: config(&dir, 0, 1),
        ..ArenaConfig::default()
    });
    let arena = match arena {
        Ok(arena) => arena,
        Err(error @ (ArenaError::Refused { .. } | ArenaError::Kernel { .. })) => {
            return skipped(&error.to_string());
        }
        Err(error) => panic!("{error}"),
    };
    let mut vec = FarVec::<u64>::zeros(&arena, 256 * 512).unwrap();
    for round in 1..4 {
        for (index, value) in vec.as_mut_slice().iter_mut().enumerate() {
            *value = index as u64 * round;
        }
        assert!(
            vec.iter()
                .enumerate()
                .all(|(index, value)| value == index as u64 * round)
        );
    }
    assert!(spilled(arena.remote_pages()) > 100);
}

#[test]
fn a_page_lost_by_the_file_is_reported_by_number() {
    let lost = PageGetError::Lost {
        page: Page(3),
        lenders: Vec::new(),
        spilled: true,
    };
    assert_eq!(
        lost.to_string(),
        "page 3 is lost: the spill file had a copy and lost it"
    );
}
