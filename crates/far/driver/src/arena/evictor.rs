//! The evictor: a thread that frees frames in advance, so that faults need not wait. It deactivates pages,
//! and hands those that no thread missed to the page client.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use netram_far_machine::arena::{ArenaMachine as Machine, EvictionWork, MoveFollowUp, Page, StagingFrame};
use netram_far_machine::limit::PAGE_BYTES;
use rustix::io::Errno;

use super::compressor::Compressor;
use super::handler::{HandlerGuard, enlist};
use super::moves::{ArenaCore, ZEROS, offset, staging_offset};
use crate::compression::PlainPage;
use crate::sys::locked_bytes;

/// Attempts at a page that the kernel is busy with.
const TRIES: usize = 8;
/// Interval of log lines about faults that wait because no lender has room; also the delay before the first
/// line, because lenders may still be connecting.
const NO_ROOM_LOG_INTERVAL: Duration = Duration::from_secs(5);
/// Time for which the evictor waits for frames in flight to arrive before it evicts more.
const DRAIN_WAIT: Duration = Duration::from_millis(5);
/// Time after which the evictor looks for work unasked. In tests it practically never does, so that a missing
/// notification shows as a hang.
const IDLE_WAIT: Duration = match cfg!(test) {
    true => Duration::from_secs(3600),
    false => NO_ROOM_LOG_INTERVAL,
};

/// Result of moving a page to its staging frame.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeactivateOutcome {
    Moved,
    /// The page is in use elsewhere and stays.
    Stays,
    /// The page is gone: the program has discarded it.
    Gone,
}

pub(super) fn run(core: &Arc<ArenaCore>) {
    let _guard = HandlerGuard::here();
    let thread = enlist(core);
    core.monitor.lock().copier = core.move_uffd.is_none().then_some(thread);
    let mut stuck = None;
    let mut compressor = Compressor::default();
    while let Some(work) = next_work(core, &mut stuck) {
        match work {
            EvictionWork::Deactivate(pages) => deactivate(core, &pages),
            EvictionWork::Send(pages) => send(core, &pages, &mut compressor),
            EvictionWork::Pass(pages) => pass(core, &pages),
        }
    }
}

/// Waits for work. `None`: the arena is stopping. `since`: time since when no page can be evicted, or of the
/// last log line about that.
fn next_work(core: &ArenaCore, since: &mut Option<Instant>) -> Option<EvictionWork> {
    let mut state = core.monitor.lock();
    let mut flow: Option<(usize, Instant)> = None;
    loop {
        if core.monitor.is_stopping() {
            return None;
        }
        let aside = core.remote_pages.pending();
        state.machine.stashing(aside as u32);
        if state.has_waiting() {
            core.monitor.notify_handler(&state);
        }
        if flow.is_none_or(|(before, _)| aside < before) {
            flow = Some((aside, Instant::now()));
        }
        let left = flow.map_or(DRAIN_WAIT, |(_, since)| {
            DRAIN_WAIT.saturating_sub(since.elapsed())
        });
        if state.machine.has_enough_in_flight() && !left.is_zero() {
            if state.machine.is_low() {
                core.remote_pages.hasten();
            }
            let waited = core.monitor.evict.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            continue;
        }
        if let Some(work) = state.machine.work() {
            *since = None;
            return Some(work);
        }
        let stuck = state.machine.is_crowded() && state.machine.has_starved();
        let began = since.take().filter(|_| stuck);
        *since = stuck.then(|| began.unwrap_or_else(Instant::now));
        if began.is_some_and(|began| began.elapsed() >= NO_ROOM_LOG_INTERVAL) {
            *since = Some(Instant::now());
            tracing::error!(
                "no lender has room for pages of far memory; threads of the program wait until one has{}",
                core.remote_pages.why_away()
            );
        }
        if state.machine.has_starved() {
            // Pending pages hold the frames.
            core.remote_pages.hasten();
        }
        let waited = core.monitor.evict.wait_timeout(state, IDLE_WAIT);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn deactivate(core: &ArenaCore, pages: &[(Page, StagingFrame)]) {
    for run in pages.chunk_by(|one, next| (one.0.0 + 1, one.1.0 + 1) == (next.0.0, next.1.0)) {
        let (moved, rest) = run.split_at(move_out_run(core, run));
        let moved = moved.iter().map(|(page, _)| *page);
        core.tell_all(moved, |machine, page| machine.deactivated(page, true));
        for (page, berth) in rest {
            let hid = match core.move_uffd.is_some() {
                true => move_out(core, *page, *berth),
                false => copy_out(core, *page, *berth),
            };
            tell_deactivated(core, *page, hid);
        }
    }
}

fn tell_deactivated(core: &ArenaCore, page: Page, hid: DeactivateOutcome) {
    let mut dropped = None;
    if hid == DeactivateOutcome::Gone {
        dropped = core.discard(&mut core.monitor.lock(), page);
    }
    assert!(
        dropped.is_none(),
        "a page being deactivated is in no staging frame yet"
    );
    let next = core.tell(page, |machine| {
        machine.deactivated(page, hid == DeactivateOutcome::Moved)
    });
    core.follow(page, next);
}

/// Moves contiguous pages to contiguous staging frames with one call, since most of a single move's cost is
/// to interrupt other cores. Returns how many were moved.
fn move_out_run(core: &ArenaCore, run: &[(Page, StagingFrame)]) -> usize {
    let (Some(exchange), [(page, berth), _, ..]) = (&core.move_uffd, run) else {
        return 0;
    };
    let bytes = exchange.take_run(
        &core.staging,
        staging_offset(*berth),
        &core.memory,
        offset(*page),
        run.len() * PAGE_BYTES,
    );
    bytes / PAGE_BYTES
}

/// Moves a page to its staging frame atomically, so that no store of the program is lost.
fn move_out(core: &ArenaCore, page: Page, berth: StagingFrame) -> DeactivateOutcome {
    let Some(exchange) = &core.move_uffd else {
        return DeactivateOutcome::Stays;
    };
    let (mut has_looked, mut was_locked) = (false, false);
    for _ in 0..TRIES {
        match exchange.take(
            &core.staging,
            staging_offset(berth),
            &core.memory,
            offset(page),
            PAGE_BYTES,
        ) {
            Ok(()) => {
                if was_locked {
                    tracing::warn!(
                        "the program locked memory that lies in far memory: the lock was removed, because locked \
                         pages cannot leave"
                    );
                }
                return DeactivateOutcome::Moved;
            }
            Err(Errno::NOENT) => return DeactivateOutcome::Gone,
            Err(Errno::AGAIN) => std::thread::yield_now(),
            // The page is pinned: a device or the kernel may write to it.
            Err(Errno::BUSY) => return DeactivateOutcome::Stays,
            // The program may have protected the page: the kernel moves pages only between equal mappings.
            Err(Errno::INVAL) if has_looked => return DeactivateOutcome::Stays,
            // Or the page is locked. Locked pages could never be evicted and would break the cap, so the lock
            // is removed.
            Err(Errno::INVAL) => {
                let locked = locked_bytes();
                if core.memory.unlock().is_err() {
                    return DeactivateOutcome::Stays;
                }
                // Protected memory gives the same error, and may be unprotected by the next attempt.
                (has_looked, was_locked) = (true, locked_bytes() < locked);
            }
            Err(Errno::EXIST) if is_gone(core, page) => return DeactivateOutcome::Moved,
            Err(error) => panic!("page {} of far memory could not be moved out: {error}", page.0),
        }
    }
    DeactivateOutcome::Stays
}

/// Whether a page was moved although the kernel reports that its staging frame is taken.
///
/// Linux 6.18 checks again if a page's entry changed meanwhile because the program wrote to it. It then moves
/// the page, checks a third time for no reason, and reports that the frame is taken. The last page of a run
/// can meet this too and is not counted. Only this thread moves pages into the frame, and no page is mapped
/// at the old place before the machine allows it. A page missing there is therefore in the frame.
fn is_gone(core: &ArenaCore, page: Page) -> bool {
    matches!(core.memory.is_there(page.0 as usize), Ok(false))
}

/// Copies a page out if the kernel cannot move it: writers wait during the copy, and then fault.
fn copy_out(core: &ArenaCore, page: Page, berth: StagingFrame) -> DeactivateOutcome {
    loop {
        match core.uffd.protect(&core.memory, offset(page), PAGE_BYTES) {
            Ok(()) => break,
            Err(Errno::NOENT) => return DeactivateOutcome::Gone,
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(error) => panic!(
                "page {} of far memory could not be write-protected: {error}",
                page.0
            ),
        }
    }
    let mut bytes = ZEROS;
    core.memory.read(offset(page), &mut bytes);
    core.staging.write(staging_offset(berth), &bytes);
    core.monitor.lock().emptying = Some(page);
    if let Err(error) = core.memory.empty(page.0 as usize, 1) {
        panic!("page {} of far memory could not be discarded: {error}", page.0);
    }
    // The kernel's message was read, but may not have been recognized as ours yet.
    while core.monitor.lock().emptying.is_some() {
        std::thread::yield_now();
    }
    DeactivateOutcome::Moved
}

fn send(core: &ArenaCore, pages: &[(Page, StagingFrame)], compressor: &mut Compressor) {
    compressor.begin(core);
    let (mut zeros, mut leaving) = (Vec::new(), Vec::with_capacity(pages.len()));
    let mut packed_berths = Vec::new();
    for (page, berth) in pages {
        let mut bytes = Box::new(ZEROS);
        core.staging.read(staging_offset(*berth), &mut bytes[..]);
        if *bytes == ZEROS {
            core.remote_pages.forget(*page);
            zeros.push(*page);
            continue;
        }
        match compressor.compress(core, &bytes) {
            Some(packed) if compressor.packs() => match stay(core, *page, packed) {
                MoveFollowUp::Drop(berth) | MoveFollowUp::Forget(berth) => packed_berths.push(berth),
                next => core.follow(*page, next),
            },
            Some(packed) => leaving.push((*page, packed)),
            None => leaving.push((*page, PlainPage::Whole(bytes))),
        }
    }
    core.drop_staging(packed_berths);
    core.tell_all(zeros.into_iter(), |machine, page| machine.sent(page, false));
    core.remote_pages.put_changed(&leaving);
    let left = leaving.iter().map(|(page, _)| *page);
    core.tell_all(left, |machine, page| machine.sent(page, true));
}

/// Puts a compressed page into the pack, unless it is wanted or was discarded.
fn stay(core: &ArenaCore, page: Page, packed: PlainPage) -> MoveFollowUp {
    let length = packed.parts().len() as u32;
    // Before the machine reports that it is there.
    core.pack().insert(page, packed);
    core.tell(page, |machine| {
        let next = machine.packed(page, length);
        if !machine.is_packed(page) {
            core.pack().remove(&page);
        }
        next
    })
}

/// Hands the oldest packed pages to the page client, still compressed.
fn pass(core: &ArenaCore, pages: &[Page]) {
    let packed = |page: &Page| {
        let packed = core.pack().get(page).cloned();
        (
            *page,
            packed.expect("only the evictor takes a page that is sent on"),
        )
    };
    let leaving: Vec<(Page, PlainPage)> = pages.iter().map(packed).collect();
    core.remote_pages.put_changed(&leaving);
    let mut pack = core.pack();
    pages.iter().for_each(|page| drop(pack.remove(page)));
    drop(pack);
    core.tell_all(pages.iter().copied(), Machine::passed);
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::arena::tests::setup;
    use crate::sys::UffdFeatures;

    /// Provokes the kernel's mistake, which occurs once in some millions of moves.
    #[test]
    fn a_move_that_the_kernel_wrongly_reports_as_failed_counts() {
        let Some(setup) = setup(UffdFeatures::NONE, |_| ()) else {
            return;
        };
        let core = setup.core();
        let Some(exchange) = &core.move_uffd else {
            crate::arena::tests::skipped("this kernel cannot move pages (UFFDIO_MOVE)");
            return;
        };
        // The last page is blank, so no other thread moves it.
        let (page, berth) = (Page(core.pages() - 1), StagingFrame(0));
        let (at, to) = (offset(page), staging_offset(berth));
        core.uffd.copy(&core.memory, at, &[7; PAGE_BYTES]).unwrap();
        exchange
            .take(&core.staging, to, &core.memory, at, PAGE_BYTES)
            .unwrap();
        assert!(move_out(core, page, berth) == DeactivateOutcome::Moved);
        let mut bytes = ZEROS;
        core.staging.read(to, &mut bytes);
        assert_eq!(bytes, [7; PAGE_BYTES], "the page is in its staging frame");
        // Two pages for one staging frame would be a defect here, and lose one of them.
        core.uffd.copy(&core.memory, at, &[8; PAGE_BYTES]).unwrap();
        let hidden = catch_unwind(AssertUnwindSafe(|| move_out(core, page, berth)));
        assert!(hidden.is_err(), "the staging frame has another page");
        core.staging.empty(berth.0 as usize, 1).unwrap();
        core.memory.empty(page.0 as usize, 1).unwrap();
    }
}
