//! A thread that serves faults. There are several: one that waits for a lender keeps nobody else from his
//! page.

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

/// Said without an allocation: the allocator may be what waits.
const OURS: &[u8] =
    b"netram: a thread that serves an arena needs memory that lies in that arena; it cannot be served. \
Let the allocator that netram itself uses take its memory elsewhere.\n";

/// How long the process waits with that on its lips.
const EXIT_MESSAGE_TIMEOUT: Duration = Duration::from_millis(200);

/// A thread that serves must not end while the program waits for it: then the process ends, and says so. No
/// handler of the program's signals runs in it, for that could make a fault.
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
            tracing::error!("a thread that serves an arena has failed: nobody can wait for its pages");
            std::process::abort();
        }
    }
}

/// Marks the calling thread as one that serves.
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

/// One of each of the faults that no message tells of: those for which there was no frame, and those that
/// somebody read who had no time.
fn serve_waiting(core: &ArenaCore, meanwhile: &mut dyn IdleWork) {
    let mut state = core.monitor.lock();
    let (starved, deferred) = (state.machine.next_starved(), state.deferred.pop_front());
    if state.has_waiting() {
        // Another one takes the next.
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

/// A thread that serves has made a fault.
fn serve_ours(core: &ArenaCore, fault: PageFault, copier: bool) {
    if copier {
        // What it was about to copy was thrown away by the program meanwhile.
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

/// Ends eviction and what comes ahead.
pub(super) fn stop(core: &ArenaCore) {
    let state = core.monitor.lock();
    core.monitor.stopping.store(true, Ordering::Release);
    drop(state);
    core.monitor.changed.notify_all();
    core.monitor.evict.notify_all();
    core.monitor.ahead.notify_all();
}

/// Ends the handlers, when nothing else needs them.
pub(super) fn end(core: &ArenaCore) {
    let state = core.monitor.lock();
    core.monitor.ended.store(true, Ordering::Release);
    drop(state);
    core.monitor.notify_all_handlers();
}
