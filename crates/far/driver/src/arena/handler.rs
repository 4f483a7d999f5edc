//! A handler: a thread that serves faults, several at a time. An arena has several, so that one that waits
//! for an absent lender does not delay other pages.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netram_far_machine::arena::{FaultAction, Page};
use netram_far_machine::limit::{HANDLER_FETCHES_MAX, PAGE_BYTES};
use netram_transport::WaitPolicy;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::Signal;

use super::fault_listener::{FaultListener, HandlerTask, PageFault};
use super::fetch::PageFetch;
use super::moves::{ArenaCore, ZEROS, offset};
use crate::remote_pages::{FetchStart, FetchedPage};
use crate::sys::{SignalsBlocked, signal_thread};

/// Written without an allocation, because the allocator may be what waits.
const OURS: &[u8] =
    b"netram: a thread that serves far memory needs memory that is itself far; the program cannot continue. \
Keep the allocator used by netram's own threads out of far memory.\n";

/// Time for which the process waits for standard error to accept that message.
const EXIT_MESSAGE_TIMEOUT: Duration = Duration::from_millis(200);

/// Ends the process if a serving thread fails, since the program would wait for it forever. Signal handlers
/// of the program do not run in the thread, because they could fault.
pub(super) struct HandlerGuard {
    _signals: SignalsBlocked,
}

impl HandlerGuard {
    pub(super) fn here() -> HandlerGuard {
        HandlerGuard {
            _signals: SignalsBlocked::here(),
        }
    }
}

impl Drop for HandlerGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                "a thread that serves far memory has failed, so its pages can no longer be fetched; ending the process"
            );
            std::process::abort();
        }
    }
}

/// Registers the calling thread as one that serves the arena.
pub(super) fn enlist(core: &ArenaCore) -> u32 {
    let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    core.monitor.lock().own_threads.push(thread);
    thread
}

pub(super) fn epoll(core: &ArenaCore) -> io::Result<std::os::fd::OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, heard) in [core.uffd.as_fd(), core.monitor.waker.as_fd()]
        .into_iter()
        .enumerate()
    {
        epoll::add(
            &epoll,
            heard,
            epoll::EventData::new_u64(number as u64),
            epoll::EventFlags::IN,
        )?;
    }
    Ok(epoll)
}

pub(super) fn run(core: &Arc<ArenaCore>, epoll: std::os::fd::OwnedFd, policy: WaitPolicy) {
    let _guard = HandlerGuard::here();
    enlist(core);
    let mut ear = FaultListener::new(core, epoll, policy);
    let mut handler = Handler::new(core);
    loop {
        if handler.fetches.is_empty() {
            match ear.wait() {
                Some(HandlerTask::Fault(fault)) => handler.serve(fault),
                Some(HandlerTask::Waiting) => handler.serve_waiting(),
                None => return,
            }
            continue;
        }
        handler.collect(&mut ear);
        while let Some(fault) = ear.next_heard() {
            handler.serve(fault);
        }
        if handler.has_room() {
            handler.serve_waiting();
        }
    }
}

/// Serves faults. A fault that needs a lender does not keep it from the next one: it fetches up to
/// [`HANDLER_FETCHES_MAX`] pages at a time, so that threads that fault together share system calls, frames
/// and wake-ups.
struct Handler<'a> {
    core: &'a ArenaCore,
    fetches: Vec<PageFetch<'a>>,
}

impl<'a> Handler<'a> {
    fn new(core: &'a ArenaCore) -> Handler<'a> {
        Handler {
            core,
            fetches: Vec::with_capacity(HANDLER_FETCHES_MAX),
        }
    }

    fn has_room(&self) -> bool {
        self.fetches.len() < HANDLER_FETCHES_MAX
    }

    fn serve(&mut self, fault: PageFault) {
        let core = self.core;
        let mut state = core.monitor.lock();
        if state.own_threads.contains(&fault.thread) {
            let copier = state.copier == Some(fault.thread);
            drop(state);
            return serve_ours(core, fault, copier);
        }
        let serve = state.machine.fault(fault.page);
        let area = 0..core.pages();
        state.machine.note(fault.thread, fault.at, serve, &area);
        core.monitor.notify_waiting(&state);
        drop(state);
        self.bring(fault.page, serve, fault.thread);
    }

    /// Serves one fault of each kind without a message: one that waited for a frame, and one that was read by
    /// a busy handler.
    fn serve_waiting(&mut self) {
        let core = self.core;
        let mut state = core.monitor.lock();
        if !state.has_waiting() {
            return;
        }
        let (starved, deferred) = (state.machine.next_starved(), state.deferred.pop_front());
        if state.has_waiting() {
            // Another handler takes the next one.
            core.monitor.notify_handler(&state);
        }
        core.monitor.notify_waiting(&state);
        drop(state);
        if let Some((page, how)) = starved {
            self.bring(page, how, 0);
        }
        if let Some(fault) = deferred {
            self.serve(fault);
        }
    }

    /// Carries out the machine's action. A page at a lender is only requested.
    fn bring(&mut self, page: Page, how: FaultAction, thread: u32) {
        if how != FaultAction::Fetch {
            return self.core.serve(page, how, thread);
        }
        let fetch = PageFetch::new(self.core, page);
        match self.core.remote_pages.begin_get(page) {
            FetchStart::Waits => self.fetches.push(fetch),
            FetchStart::Zeros => self.core.fetched(fetch, Ok(ZEROS)),
            FetchStart::Came(came) => self.map(fetch, came),
        }
    }

    /// Waits until a requested page has come or a fault was heard, and maps what has come.
    fn collect(&mut self, ear: &mut FaultListener<'_>) {
        ear.room = HANDLER_FETCHES_MAX.saturating_sub(self.fetches.len());
        let pages: Vec<Page> = self.fetches.iter().map(|fetch| fetch.page).collect();
        for (page, came) in self.core.remote_pages.take_any(&pages, ear) {
            let index = self.fetches.iter().position(|fetch| fetch.page == page);
            let index = index.expect("only requested pages are returned");
            let fetch = self.fetches.swap_remove(index);
            self.map(fetch, came);
        }
    }

    fn map(&self, fetch: PageFetch<'_>, came: FetchedPage) {
        let unpacked = came.map(|clear| {
            let mut bytes = ZEROS;
            clear.unpack(&mut bytes);
            bytes
        });
        self.core.fetched(fetch, unpacked);
    }
}

/// Handles a fault made by a serving thread.
fn serve_ours(core: &ArenaCore, fault: PageFault, copier: bool) {
    if copier {
        // The page it was about to copy was discarded by the program meanwhile.
        return zero(core, fault.page);
    }
    netram_log::try_write_bytes(io::stderr(), OURS, EXIT_MESSAGE_TIMEOUT);
    signal_thread(fault.thread, Signal::BUS);
}

fn zero(core: &ArenaCore, page: Page) {
    loop {
        match core.uffd.copy(&core.memory, offset(page), &ZEROS[..PAGE_BYTES]) {
            Err(Errno::AGAIN) => {
                if let Some(fault) = core.next_fault() {
                    core.monitor.defer(fault);
                }
            }
            Ok(()) => return,
            Err(_) => return core.wake(page),
        }
    }
}

/// Stops the evictor and the prefetcher.
pub(super) fn stop(core: &ArenaCore) {
    let state = core.monitor.lock();
    core.monitor.stopping.store(true, Ordering::Release);
    drop(state);
    core.monitor.changed.notify_all();
    core.monitor.evict.notify_all();
    core.monitor.ahead.notify_all();
}

/// Stops the handlers, after everything that needs them.
pub(super) fn end(core: &ArenaCore) {
    let state = core.monitor.lock();
    core.monitor.ended.store(true, Ordering::Release);
    drop(state);
    core.monitor.notify_all_handlers();
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::FarVec;
    use crate::arena::tests::{check, fill, setup};
    use crate::sys::UffdFeatures;

    /// A handler waited for the page of one fault before it served the next.
    #[test]
    fn one_handler_fetches_the_pages_of_several_faults_at_a_time() {
        let without_packing = |config: &mut crate::ArenaConfig| config.packed_bytes = Some(0);
        let Some(setup) = setup(UffdFeatures::NONE, without_packing) else {
            return;
        };
        let (core, arena) = (setup.core(), setup.arena());
        let pages = (core.pages() / 2) as usize;
        let mut vec = FarVec::zeros(arena, pages * PAGE_BYTES / 8).unwrap();
        fill(&mut vec, 1);
        let mut ear = FaultListener::new(core, epoll(core).unwrap(), WaitPolicy::default());
        let mut handler = Handler::new(core);
        let deadline = Instant::now() + Duration::from_secs(60);
        // Some are resident, inactive, or find no free frame.
        for page in (0..pages as u32).map(Page).cycle() {
            let mut state = core.monitor.lock();
            let how = state.machine.want(page);
            core.monitor.notify_waiting(&state);
            drop(state);
            handler.bring(page, how, 0);
            if handler.fetches.len() == 2 || Instant::now() > deadline {
                break;
            }
        }
        assert_eq!(
            handler.fetches.len(),
            2,
            "both are requested, and neither has been waited for"
        );
        while !handler.fetches.is_empty() {
            handler.collect(&mut ear);
        }
        check(&vec, 1);
    }
}
