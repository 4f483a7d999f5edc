//! A handler: a thread that serves faults. An arena has several, so that one that waits for a lender does not
//! delay other pages.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use netram_far_machine::arena::Page;
use netram_far_machine::limit::PAGE_BYTES;
use netram_transport::WaitPolicy;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::Signal;

use super::fault_listener::{FaultListener, HandlerTask};
use super::moves::{ArenaCore, PageFault, ZEROS, offset};
use crate::remote_pages::IdleWork;
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
    while let Some(task) = ear.wait() {
        match task {
            HandlerTask::Fault(fault) => serve(core, fault, &mut ear),
            HandlerTask::Waiting => serve_waiting(core, &mut ear),
        }
    }
}

fn serve(core: &ArenaCore, fault: PageFault, meanwhile: &mut dyn IdleWork) {
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
    core.serve(fault.page, serve, fault.thread, meanwhile);
}

/// Serves one fault of each kind without a message: one that waited for a frame, and one that was read by a
/// busy handler.
fn serve_waiting(core: &ArenaCore, meanwhile: &mut dyn IdleWork) {
    let mut state = core.monitor.lock();
    let (starved, deferred) = (state.machine.next_starved(), state.deferred.pop_front());
    if state.has_waiting() {
        // Another handler takes the next one.
        core.monitor.notify_handler(&state);
    }
    core.monitor.notify_waiting(&state);
    drop(state);
    if let Some((page, how)) = starved {
        core.serve(page, how, 0, meanwhile);
    }
    if let Some(fault) = deferred {
        serve(core, fault, meanwhile);
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
