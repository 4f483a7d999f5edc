//! Events from other threads for the serving thread, and its waker.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use netram_journal::FencedJournalError;
use netram_journal::fenced_journal::FencedRecords;
use netram_shared_machine::NodeId;

use super::loss::NotStuck;
use super::report::{ServerReport, StuckReport};
use crate::channel::{AcceptedSession, SessionHandler, ThreadWaker};

/// An event from another thread.
pub(super) enum DriverEvent {
    /// The acceptor has accepted a session.
    Arrived(Box<AcceptedSession>),
    /// An attempt to read a dead node's journal has ended.
    JournalRead(NodeId, Result<FencedRecords, FencedJournalError>),
    /// An attempt to tell a gone node's lenders has ended. These lenders could not be reached.
    ForgetTried(NodeId, Vec<String>),
    /// The operator gives up a node's records that cannot be proven.
    AcceptLoss(NodeId, SyncSender<Result<StuckReport, NotStuck>>),
    /// A client asks for the status.
    StatusRequested(SyncSender<ServerReport>),
}

/// Queue of events, with the waker of the serving thread.
pub(super) struct DriverMailbox {
    pub(super) waker: ThreadWaker,
    /// Whether there may be events, or more is durable.
    any: AtomicBool,
    stopping: AtomicBool,
    events: Mutex<Vec<DriverEvent>>,
}

impl DriverMailbox {
    pub(super) fn new() -> io::Result<DriverMailbox> {
        Ok(DriverMailbox {
            waker: ThreadWaker::new()?,
            any: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            events: Mutex::default(),
        })
    }

    pub(super) fn send(&self, news: DriverEvent) {
        self.lock().push(news);
        self.wake();
    }

    /// Wakes the serving thread to check the disk and the mailbox.
    pub(super) fn wake(&self) {
        self.any.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn has_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Moves all events into `all`, which is empty. Returns `false` if nothing has happened.
    pub(super) fn collect(&self, all: &mut Vec<DriverEvent>) -> bool {
        // Later events set the flag again; earlier ones are visible to every check from here on.
        if !self.has_any() || !self.any.swap(false, Ordering::AcqRel) {
            return false;
        }
        std::mem::swap(all, &mut *self.lock());
        true
    }

    fn lock(&self) -> MutexGuard<'_, Vec<DriverEvent>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionHandler for DriverMailbox {
    fn take(&self, arrival: AcceptedSession) {
        self.send(DriverEvent::Arrived(Box::new(arrival)));
    }
}
