//! The thread that makes frames free, so that no fault has to: it hides pages, and gives those to the depot that nobody missed.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use netram_far_machine::arena::{Arena as Machine, Berth, Next, Page, Work};
use netram_far_machine::limit::PAGE_BYTES;
use rustix::io::Errno;

use super::compressor::Compressor;
use super::handler::{EndGuard, enlist};
use super::moves::{Core, ZEROS, berth_offset, offset};
use crate::pack::Clear;
use crate::sys::locked_bytes;

/// How often a page is tried that the kernel is busy with.
const TRIES: usize = 8;
/// Between two words of faults for which no lender has room, and before the first: while lenders are being connected there is none either.
const COMPLAINT: Duration = Duration::from_secs(5);
/// How long what is on its way to lenders may take to get less before more leaves.
const FLOW: Duration = Duration::from_millis(5);
/// How long nothing is looked for unless somebody calls. In tests who is not called sleeps for good: else a call that is missing would only make
/// them slow.
const NAP: Duration = match cfg!(test) {
    true => Duration::from_secs(3600),
    false => COMPLAINT,
};

/// What became of a page that was to be hidden.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hid {
    Moved,
    /// Something else uses it.
    Stays,
    /// It is not there: the program has thrown it away.
    Gone,
}

pub(super) fn run(core: &Arc<Core>) {
    let _guard = EndGuard::here();
    let thread = enlist(core);
    core.hub.lock().copier = core.exchange.is_none().then_some(thread);
    let mut stuck = None;
    let mut compressor = Compressor::default();
    while let Some(work) = next_work(core, &mut stuck) {
        match work {
            Work::Hide(pages) => hide(core, &pages),
            Work::Send(pages) => send(core, &pages, &mut compressor),
            Work::Pass(pages) => pass(core, &pages),
        }
    }
}

/// Waits for work. `None`: all is over. `since`: from when on nothing can leave, or when that was said last.
fn next_work(core: &Core, since: &mut Option<Instant>) -> Option<Work> {
    let mut state = core.hub.lock();
    let mut flow: Option<(usize, Instant)> = None;
    loop {
        if core.hub.is_stopping() {
            return None;
        }
        let aside = core.depot.aside();
        state.machine.stashing(aside as u32);
        if state.has_waiting() {
            core.hub.ring(&state);
        }
        if flow.is_none_or(|(before, _)| aside < before) {
            flow = Some((aside, Instant::now()));
        }
        let left = flow.map_or(FLOW, |(_, since)| FLOW.saturating_sub(since.elapsed()));
        if state.machine.flows() && !left.is_zero() {
            if state.machine.is_low() {
                core.depot.hasten();
            }
            let waited = core.hub.evict.wait_timeout(state, left);
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
        if began.is_some_and(|began| began.elapsed() >= COMPLAINT) {
            *since = Some(Instant::now());
            tracing::error!(
                "no lender takes an arena's pages: threads wait for a frame until one does{}",
                core.depot.why_away()
            );
        }
        if state.machine.has_starved() {
            // What is aside has their frames.
            core.depot.hasten();
        }
        let waited = core.hub.evict.wait_timeout(state, NAP);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn hide(core: &Core, pages: &[(Page, Berth)]) {
    for run in pages.chunk_by(|one, next| (one.0.0 + 1, one.1.0 + 1) == (next.0.0, next.1.0)) {
        let (moved, rest) = run.split_at(move_out_run(core, run));
        let moved = moved.iter().map(|(page, _)| *page);
        core.tell_all(moved, |machine, page| machine.hid(page, true));
        for (page, berth) in rest {
            let hid = match core.exchange.is_some() {
                true => move_out(core, *page, *berth),
                false => copy_out(core, *page, *berth),
            };
            tell_hidden(core, *page, hid);
        }
    }
}

fn tell_hidden(core: &Core, page: Page, hid: Hid) {
    let mut dropped = None;
    if hid == Hid::Gone {
        dropped = core.discard(&mut core.hub.lock(), page);
    }
    assert!(
        dropped.is_none(),
        "a page that is being hidden is in no berth yet"
    );
    let next = core.tell(page, |machine| machine.hid(page, hid == Hid::Moved));
    core.follow(page, next);
}

/// Pages and berths that stand one behind the other, in one go: most of what one takes by itself is to tell the other cores. How many of them were moved.
fn move_out_run(core: &Core, run: &[(Page, Berth)]) -> usize {
    let (Some(exchange), [(page, berth), _, ..]) = (&core.exchange, run) else {
        return 0;
    };
    let bytes = exchange.take_run(
        &core.backstage,
        berth_offset(*berth),
        &core.memory,
        offset(*page),
        run.len() * PAGE_BYTES,
    );
    bytes / PAGE_BYTES
}

/// The page is in its berth at once: no store of the program is lost on the way.
fn move_out(core: &Core, page: Page, berth: Berth) -> Hid {
    let Some(exchange) = &core.exchange else {
        return Hid::Stays;
    };
    let (mut has_looked, mut was_locked) = (false, false);
    for _ in 0..TRIES {
        match exchange.take(
            &core.backstage,
            berth_offset(berth),
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
                return Hid::Moved;
            }
            Err(Errno::NOENT) => return Hid::Gone,
            Err(Errno::AGAIN) => std::thread::yield_now(),
            // It is pinned: something outside of this process's instructions writes it.
            Err(Errno::BUSY) => return Hid::Stays,
            // The program has protected it: the kernel moves pages between memories of one kind only.
            Err(Errno::INVAL) if has_looked => return Hid::Stays,
            // Or locked it. What is locked could never leave, and the cap was promised.
            Err(Errno::INVAL) => {
                let locked = locked_bytes();
                if core.memory.unlock().is_err() {
                    return Hid::Stays;
                }
                // Protected memory looks the same, and may be unprotected by the next try.
                (has_looked, was_locked) = (true, locked_bytes() < locked);
            }
            Err(Errno::EXIST) if is_gone(core, page) => return Hid::Moved,
            Err(error) => panic!("page {} could not be hidden: {error}", page.0),
        }
    }
    Hid::Stays
}

/// Whether a page has been moved although the kernel says that its berth is taken.
///
/// Linux 6.18 looks again at a page whose entry changed while it looked: the program has just written there. It
/// moves the page then, looks a third time for no reason, and says that the berth is taken. The last page of a run
/// can meet this, too, and is not counted. This thread alone moves pages into the berth, and nobody puts a page
/// where this one was before the machine says so: what is not there is in the berth.
fn is_gone(core: &Core, page: Page) -> bool {
    matches!(core.memory.is_there(page.0 as usize), Ok(false))
}

/// Where the kernel cannot move pages: writes wait while the page is copied, and then find it gone.
fn copy_out(core: &Core, page: Page, berth: Berth) -> Hid {
    loop {
        match core.sight.protect(&core.memory, offset(page), PAGE_BYTES) {
            Ok(()) => break,
            Err(Errno::NOENT) => return Hid::Gone,
            Err(Errno::AGAIN) => std::thread::yield_now(),
            Err(error) => panic!("page {} could not be protected: {error}", page.0),
        }
    }
    let mut bytes = ZEROS;
    core.memory.read(offset(page), &mut bytes);
    core.backstage.write(berth_offset(berth), &bytes);
    core.hub.lock().emptying = Some(page);
    if let Err(error) = core.memory.empty(page.0 as usize, 1) {
        panic!("page {} could not be emptied: {error}", page.0);
    }
    // The word of it has been read, but perhaps not been taken for ours yet.
    while core.hub.lock().emptying.is_some() {
        std::thread::yield_now();
    }
    Hid::Moved
}

fn send(core: &Core, pages: &[(Page, Berth)], compressor: &mut Compressor) {
    compressor.begin(core);
    let (mut zeros, mut leaving) = (Vec::new(), Vec::with_capacity(pages.len()));
    let mut packed_berths = Vec::new();
    for (page, berth) in pages {
        let mut bytes = Box::new(ZEROS);
        core.backstage.read(berth_offset(*berth), &mut bytes[..]);
        if *bytes == ZEROS {
            core.depot.forget(*page);
            zeros.push(*page);
            continue;
        }
        match compressor.compress(core, &bytes) {
            Some(packed) if compressor.packs() => match stay(core, *page, packed) {
                Next::Drop(berth) | Next::Forget(berth) => packed_berths.push(berth),
                next => core.follow(*page, next),
            },
            Some(packed) => leaving.push((*page, packed)),
            None => leaving.push((*page, Clear::Whole(bytes))),
        }
    }
    core.drop_berths(packed_berths);
    core.tell_all(zeros.into_iter(), |machine, page| machine.sent(page, false));
    core.depot.keep(&leaving);
    let left = leaving.iter().map(|(page, _)| *page);
    core.tell_all(left, |machine, page| machine.sent(page, true));
}

/// The page goes into the pack, unless somebody wants it, or has thrown it away.
fn stay(core: &Core, page: Page, packed: Clear) -> Next {
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
fn pass(core: &Core, pages: &[Page]) {
    let packed = |page: &Page| {
        let packed = core.pack().get(page).cloned();
        (*page, packed.expect("nobody else takes a page that is passed on"))
    };
    let leaving: Vec<(Page, Clear)> = pages.iter().map(packed).collect();
    core.depot.keep(&leaving);
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
    use crate::sys::Features;

    /// What the kernel does by mistake once in some millions of moves, done on purpose.
    #[test]
    fn a_page_that_was_moved_although_the_kernel_says_no_is_hidden() {
        let Some(setup) = setup(Features::NONE, |_| ()) else {
            return;
        };
        let core = setup.core();
        let Some(exchange) = &core.exchange else {
            crate::arena::tests::skipped("this kernel moves no pages");
            return;
        };
        // No program has anything there, so that no other thread takes either.
        let (page, berth) = (Page(core.pages() - 1), Berth(0));
        let (at, to) = (offset(page), berth_offset(berth));
        core.sight.copy(&core.memory, at, &[7; PAGE_BYTES]).unwrap();
        exchange
            .take(&core.backstage, to, &core.memory, at, PAGE_BYTES)
            .unwrap();
        assert!(move_out(core, page, berth) == Hid::Moved);
        let mut bytes = ZEROS;
        core.backstage.read(to, &mut bytes);
        assert_eq!(bytes, [7; PAGE_BYTES], "it is in its berth");
        // Two pages in one berth are a mistake of ours, by which one would be lost.
        core.sight.copy(&core.memory, at, &[8; PAGE_BYTES]).unwrap();
        let hidden = catch_unwind(AssertUnwindSafe(|| move_out(core, page, berth)));
        assert!(hidden.is_err(), "the berth has another page");
        core.backstage.empty(berth.0 as usize, 1).unwrap();
        core.memory.empty(page.0 as usize, 1).unwrap();
    }
}
