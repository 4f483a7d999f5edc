//! Tests of the signal handler among other handlers, threads and processes. Some run in a process of their
//! own.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;
use crate::memory::Placement;
use crate::sync::STARTING;

const PAGES: usize = 64;
/// Set in the child processes that a test starts from this binary.
const ALONE: &str = "NETRAM_TEST_ALONE";

fn region() -> (tempfile::NamedTempFile, RegionMemory, RegionMemory) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len((PAGES * PAGE) as u64).unwrap();
    let memory = RegionMemory::map_private(file.as_file(), 0, PAGES * PAGE, Placement::ANYWHERE).unwrap();
    (file, memory, RegionMemory::reserve(PAGES * PAGE).unwrap())
}

fn taken(trap: &PageTrap) -> Vec<usize> {
    let mut pages = Vec::new();
    trap.take(&mut pages).unwrap();
    pages
}

/// Runs the named test in a process of its own; returns `None` inside that process.
fn alone(name: &str) -> Option<ExitStatus> {
    if std::env::var_os(ALONE).is_some() {
        return None;
    }
    let name = format!("memory::trap::tests::{name}");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &name, "--test-threads=1"])
        .env(ALONE, "1");
    let _starting = lock(&STARTING);
    Some(command.output().unwrap().status)
}

#[test]
fn each_first_store_is_found_once_after_its_page_is_copied() {
    let (_file, mut memory, twin) = region();
    memory.copy_in(5 * PAGE, b"old");
    let trap = PageTrap::new(&memory, &twin).unwrap();
    assert_eq!(taken(&trap), [0; 0]);
    memory.copy_in(5 * PAGE, b"new");
    memory.copy_in(5 * PAGE + 9, b"more");
    memory.copy_in(8 * PAGE - 1, b"ab");
    assert_eq!(taken(&trap), [5, 7, 8]);
    assert!(trap.has_twin(5) && !trap.has_twin(6));
    let mut old = [0; 3];
    twin.copy_out(5 * PAGE, &mut old);
    assert_eq!(&old, b"old");
    memory.copy_in(5 * PAGE, b"xyz");
    assert_eq!(taken(&trap), [5], "a page that was taken is found again");
    drop(trap);
    memory.copy_in(0, b"free");
}

#[test]
fn no_store_is_lost_between_threads_that_store_and_one_that_takes() {
    let (_file, memory, twin) = region();
    let trap = PageTrap::new(&memory, &twin).unwrap();
    let start = memory.address();
    let mut seen = vec![0u8; PAGES];
    let done = AtomicU32::new(0);
    std::thread::scope(|threads| {
        for thread in 0..2usize {
            let done = &done;
            threads.spawn(move || {
                for round in 1..=200u8 {
                    for page in 0..PAGES {
                        // SAFETY: inside the mapping.
                        let byte = unsafe { start.get().add(page * PAGE + thread) };
                        // SAFETY: only this thread stores there.
                        unsafe { byte.write_volatile(round) };
                    }
                }
                done.fetch_add(1, Ordering::SeqCst);
            });
        }
        while done.load(Ordering::SeqCst) < 2 {
            for page in taken(&trap) {
                memory.copy_out(page * PAGE, &mut seen[page..=page]);
            }
        }
    });
    for page in taken(&trap) {
        seen[page] = memory[page * PAGE];
    }
    assert!(
        seen.iter().all(|last| *last == 200),
        "the last store to each page was found: {seen:?}"
    );
}

#[test]
fn a_slot_is_reusable_after_its_region_is_dropped() {
    if let Some(status) = alone("a_slot_is_reusable_after_its_region_is_dropped") {
        assert!(status.success());
        return;
    }
    let mut traps = Vec::new();
    for _ in 0..TRAPS_MAX {
        let (file, memory, twin) = region();
        traps.push((PageTrap::new(&memory, &twin).unwrap(), memory, twin, file));
    }
    let (_file, memory, twin) = region();
    assert_eq!(PageTrap::new(&memory, &twin).err(), Some(TrapError::TooMany));
    for (trap, memory, ..) in &mut traps {
        memory.copy_in(PAGE, b"x");
        assert_eq!(taken(trap), [1]);
    }
    drop(traps.remove(17));
    PageTrap::new(&memory, &twin).unwrap();
}

/// The address of the page that the program protects for itself, and how often its handler was called.
static OWN_PAGE: AtomicUsize = AtomicUsize::new(0);
static OWN_CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn own_handler(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    OWN_CALLS.fetch_add(1, Ordering::SeqCst);
    let page = std::ptr::without_provenance_mut(OWN_PAGE.load(Ordering::SeqCst));
    // SAFETY: a page of the program's own.
    unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
}

#[test]
fn a_handler_installed_before_still_gets_its_own_faults() {
    if let Some(status) = alone("a_handler_installed_before_still_gets_its_own_faults") {
        assert!(status.success());
        return;
    }
    // SAFETY: as in `install`.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = own_handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: as in `install`.
    let set = unsafe { libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut()) };
    assert_eq!(set, 0);
    let mut own = RegionMemory::reserve(PAGE).unwrap();
    OWN_PAGE.store(own.address().get().expose_provenance(), Ordering::SeqCst);
    // SAFETY: a page of ours.
    unsafe { libc::mprotect(own.address().get().cast(), PAGE, libc::PROT_READ) };
    let (_file, mut memory, twin) = region();
    let trap = PageTrap::new(&memory, &twin).unwrap();
    memory.copy_in(0, b"ours");
    assert_eq!(OWN_CALLS.load(Ordering::SeqCst), 0);
    own.copy_in(0, b"theirs");
    assert_eq!(OWN_CALLS.load(Ordering::SeqCst), 1);
    assert_eq!(taken(&trap), [0]);
}

#[test]
fn a_fault_outside_protected_regions_ends_the_process() {
    let Some(status) = alone("a_fault_outside_protected_regions_ends_the_process") else {
        let (_file, memory, twin) = region();
        let _trap = PageTrap::new(&memory, &twin).unwrap();
        let mut other = RegionMemory::reserve(PAGE).unwrap();
        // SAFETY: a page of ours.
        unsafe { libc::mprotect(other.address().get().cast(), PAGE, libc::PROT_READ) };
        other.copy_in(0, b"x");
        return;
    };
    assert_eq!(status.signal(), Some(libc::SIGSEGV));
}

#[test]
fn stores_of_a_forked_child_are_not_found_in_its_parent() {
    let (_file, mut memory, twin) = region();
    memory.copy_in(3 * PAGE, b"parent");
    let trap = PageTrap::new(&memory, &twin).unwrap();
    let _starting = lock(&STARTING);
    // SAFETY: the child stores, checks bits and exits without running any code of the parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        memory.copy_in(3 * PAGE, b"child!");
        let found = trap.tracker.dirty.has(3) && trap.has_twin(3);
        // SAFETY: ends the child.
        unsafe { libc::_exit(if found { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
    assert_eq!(&memory[3 * PAGE..3 * PAGE + 6], b"parent");
    assert_eq!(taken(&trap), [0; 0], "the parent's page was not stored to");
}
