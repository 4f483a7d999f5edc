//! A thread that serves faults. There are several: one that waits for a lender keeps nobody else from his page.

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

use super::ear::{Ear, Task};
use super::moves::{Core, Fault, ZEROS, offset};
use crate::depot::Meanwhile;
use crate::sys::{SignalsBlocked, signal_thread};

/// Said without an allocation: the allocator may be what waits.
const OURS: &[u8] =
    b"netram: a thread that serves an arena needs memory that lies in that arena; it cannot be served. \
Let the allocator that netram itself uses take its memory elsewhere.\n";

/// How long the process waits with that on its lips.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A thread that serves must not end while the program waits for it: then the process ends, and says so. No handler of the program's signals runs in it, for that could
/// make a fault.
pub(super) struct EndGuard {
    _signals: SignalsBlocked,
}

impl EndGuard {
    pub(super) fn here() -> EndGuard {
        EndGuard {
            _signals: SignalsBlocked::here(),
        }
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("a thread that serves an arena has failed: nobody can wait for its pages");
            std::process::abort();
        }
    }
}

/// Marks the calling thread as one that serves.
pub(super) fn enlist(core: &Core) -> u32 {
    let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
    core.hub.lock().ours.push(thread);
    thread
}

pub(super) fn epoll(core: &Core) -> io::Result<std::os::fd::OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (number, heard) in [core.sight.as_fd(), core.hub.bell.as_fd()]
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

pub(super) fn run(core: &Arc<Core>, epoll: std::os::fd::OwnedFd, policy: WaitPolicy) {
    let _guard = EndGuard::here();
    enlist(core);
    let mut ear = Ear::new(core, epoll, policy);
    while let Some(task) = ear.wait() {
        match task {
            Task::Fault(fault) => serve(core, fault, &mut ear),
            Task::Waiting => serve_those_who_wait(core, &mut ear),
        }
    }
}

fn serve(core: &Core, fault: Fault, meanwhile: &mut dyn Meanwhile) {
    let mut state = core.hub.lock();
    if state.ours.contains(&fault.thread) {
        let copier = state.copier == Some(fault.thread);
        drop(state);
        return serve_ours(core, fault, copier);
    }
    let serve = state.machine.fault(fault.page);
    let area = 0..core.pages();
    state.machine.note(fault.thread, fault.at, serve, &area);
    core.hub.spread(&state);
    drop(state);
    core.serve(fault.page, serve, fault.thread, meanwhile);
}

/// One of each of the faults that no message tells of: those for which there was no frame, and those that somebody read who had no time.
fn serve_those_who_wait(core: &Core, meanwhile: &mut dyn Meanwhile) {
    let mut state = core.hub.lock();
    let (starved, deferred) = (state.machine.next_starved(), state.deferred.pop_front());
    if state.has_waiting() {
        // Another one takes the next.
        core.hub.ring(&state);
    }
    core.hub.spread(&state);
    drop(state);
    if let Some((page, how)) = starved {
        core.serve(page, how, 0, meanwhile);
    }
    if let Some(fault) = deferred {
        serve(core, fault, meanwhile);
    }
}

/// A thread that serves has made a fault.
fn serve_ours(core: &Core, fault: Fault, copier: bool) {
    if copier {
        // What it was about to copy was thrown away by the program meanwhile.
        return zero(core, fault.page);
    }
    netram_log::tell_bytes(io::stderr(), OURS, LAST_WORDS);
    signal_thread(fault.thread, Signal::BUS);
}

fn zero(core: &Core, page: Page) {
    loop {
        match core.sight.copy(&core.memory, offset(page), &ZEROS[..PAGE_BYTES]) {
            Err(Errno::AGAIN) => {
                if let Some(fault) = core.hear() {
                    core.hub.defer(fault);
                }
            }
            Ok(()) => return,
            Err(_) => return core.wake(page),
        }
    }
}

/// Ends eviction and what comes ahead.
pub(super) fn stop(core: &Core) {
    let state = core.hub.lock();
    core.hub.stopping.store(true, Ordering::Release);
    drop(state);
    core.hub.changed.notify_all();
    core.hub.evict.notify_all();
    core.hub.ahead.notify_all();
}

/// Ends the handlers, when nothing else needs them.
pub(super) fn end(core: &Core) {
    let state = core.hub.lock();
    core.hub.ended.store(true, Ordering::Release);
    drop(state);
    core.hub.ring_all();
}
