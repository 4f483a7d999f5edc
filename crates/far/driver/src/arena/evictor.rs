//! The thread that makes frames free, so that no fault has to: it hides pages, and gives those to the depot
//! that nobody missed.

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

/// How often a page is tried that the kernel is busy with.
const TRIES: usize = 8;
/// Between two words of faults for which no lender has room, and before the first: while lenders are being
/// connected there is none either.
const NO_ROOM_LOG_INTERVAL: Duration = Duration::from_secs(5);
/// How long what is on its way to lenders may take to get less before more leaves.
const DRAIN_WAIT: Duration = Duration::from_millis(5);
/// How long nothing is looked for unless somebody calls. In tests who is not called sleeps for good: else a
/// call that is missing would only make them slow.
const IDLE_WAIT: Duration = match cfg!(test) {
    true => Duration::from_secs(3600),
    false => NO_ROOM_LOG_INTERVAL,
};

/// What became of a page that was to be hidden.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DeactivateOutcome {
    Moved,
    /// Something else uses it.
    Stays,
    /// It is not there: the program has thrown it away.
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

/// Waits for work. `None`: all is over. `since`: from when on nothing can leave, or when that was said last.
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
                "no lender takes an arena's pages: threads wait for a frame until one does{}",
                core.remote_pages.why_away()
            );
        }
        if state.machine.has_starved() {
            // What is aside has their frames.
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
        "a page that is being hidden is in no berth yet"
    );
    let next = core.tell(page, |machine| {
        machine.deactivated(page, hid == DeactivateOutcome::Moved)
    });
    core.follow(page, next);
}

/// Pages and berths that stand one behind the other, in one go: most of what one takes by itself is to tell
/// the other cores. How many of them were moved.
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

/// The page is in its berth at once: no store of the program is lost on the way.
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
            // It is pinned: something outside of this process's instructions writes it.
            Err(Errno::BUSY) => return DeactivateOutcome::Stays,
            // The program has protected it: the kernel moves pages between memories of one kind only.
            Err(Errno::INVAL) if has_looked => return DeactivateOutcome::Stays,
            // Or locked it. What is locked could never leave, and the cap was promised.
            Err(Errno::INVAL) => {
                let locked = locked_bytes();
                if core.memory.unlock().is_err() {
                    return DeactivateOutcome::Stays;
                }
                // Protected memory looks the same, and may be unprotected by the next try.
                (has_looked, was_locked) = (true, locked_bytes() < locked);
            }
            Err(Errno::EXIST) if is_gone(core, page) => return DeactivateOutcome::Moved,
            Err(error) => panic!("page {} could not be hidden: {error}", page.0),
        }
    }
    DeactivateOutcome::Stays
}

/// Whether a page has been moved although the kernel says that its berth is taken.
///
/// Linux 6.18 looks again at a page whose entry changed while it looked: the program has just written there.
/// It moves the page then, looks a third time for no reason, and says that the berth is taken. The last page
/// of a run can meet this, too, and is not counted. This thread alone moves pages into the berth, and nobody
/// puts a page where this one was before the machine says so: what is not there is in the berth.
fn is_gone(core: &ArenaCore, page: Page) -> bool {
    matches!(core.memory.is_there(page.0 as usize), Ok(false))
}

/// Where the kernel cannot move pages: writes wait while the page is copied, and then find it gone.
fn copy_out(core: &ArenaCore, page: Page, berth: StagingFrame) -> DeactivateOutcome {
    loop {
        match core.uffd.protect(&core.memory, offset(page), PAGE_BYTES) {
            Ok(()) => break,
            Err(Errno::NOENT) => return DeactivateOutcome::Gone,
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(error) => panic!("page {} could not be protected: {error}", page.0),
        }
    }
    let mut bytes = ZEROS;
    core.memory.read(offset(page), &mut bytes);
    core.staging.write(staging_offset(berth), &bytes);
    core.monitor.lock().emptying = Some(page);
    if let Err(error) = core.memory.empty(page.0 as usize, 1) {
        panic!("page {} could not be emptied: {error}", page.0);
    }
    // The word of it has been read, but perhaps not been taken for ours yet.
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

/// The page goes into the pack, unless somebody wants it, or has thrown it away.
fn stay(core: &ArenaCore, page: Page, packed: PlainPage) -> MoveFollowUp {
    let length = packed.parts().len() as u32;
    // Before the machine says that it is there.
    core.pack().insert(page, packed);
    core.tell(page, |machine| {
        let next = machine.packed(page, length);
        if !machine.is_packed(page) {
            core.pack().remove(&page);
        }
        next
    })
}

/// The oldest of the pack go on, as they are.
fn pass(core: &ArenaCore, pages: &[Page]) {
    let packed = |page: &Page| {
        let packed = core.pack().get(page).cloned();
        (*page, packed.expect("nobody else takes a page that is passed on"))
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

    /// What the kernel does by mistake once in some millions of moves, done on purpose.
    #[test]
    fn a_page_that_was_moved_although_the_kernel_says_no_is_hidden() {
        let Some(setup) = setup(UffdFeatures::NONE, |_| ()) else {
            return;
        };
        let core = setup.core();
        let Some(exchange) = &core.move_uffd else {
            crate::arena::tests::skipped("this kernel moves no pages");
            return;
        };
        // No program has anything there, so that no other thread takes either.
        let (page, berth) = (Page(core.pages() - 1), StagingFrame(0));
        let (at, to) = (offset(page), staging_offset(berth));
        core.uffd.copy(&core.memory, at, &[7; PAGE_BYTES]).unwrap();
        exchange
            .take(&core.staging, to, &core.memory, at, PAGE_BYTES)
            .unwrap();
        assert!(move_out(core, page, berth) == DeactivateOutcome::Moved);
        let mut bytes = ZEROS;
        core.staging.read(to, &mut bytes);
        assert_eq!(bytes, [7; PAGE_BYTES], "it is in its berth");
        // Two pages in one berth are a mistake of ours, by which one would be lost.
        core.uffd.copy(&core.memory, at, &[8; PAGE_BYTES]).unwrap();
        let hidden = catch_unwind(AssertUnwindSafe(|| move_out(core, page, berth)));
        assert!(hidden.is_err(), "the berth has another page");
        core.staging.empty(berth.0 as usize, 1).unwrap();
        core.memory.empty(page.0 as usize, 1).unwrap();
    }
}
