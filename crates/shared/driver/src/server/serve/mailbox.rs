//! What other threads tell the one that serves, and how they wake it.

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

/// Something that happened elsewhere.
pub(super) enum DriverEvent {
    /// Somebody came in at the door.
    Arrived(Box<AcceptedSession>),
    /// A reading of a dead node's journal has ended.
    JournalRead(NodeId, Result<FencedRecords, FencedJournalError>),
    /// The lenders of a node that is gone know that they may forget it, but for these, which could not be
    /// reached.
    ForgetTried(NodeId, Vec<String>),
    /// Whoever looks after the region gives up what cannot be proven of a node.
    AcceptLoss(NodeId, SyncSender<Result<StuckReport, NotStuck>>),
    /// Somebody wants the status.
    StatusRequested(SyncSender<ServerReport>),
}

/// Where it is left.
pub(super) struct DriverMailbox {
    pub(super) waker: ThreadWaker,
    /// There may be something to look at: news, or more that is durable.
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

    /// Has the thread look at the disk and the post.
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

    /// Takes what there is into `all`, which is empty. `false`: nothing has happened.
    pub(super) fn collect(&self, all: &mut Vec<DriverEvent>) -> bool {
        // What comes from here on sets it again; what had come before is seen by whoever looks from here on.
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
