//! What other threads tell the one that serves, and how they wake it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Mutex, MutexGuard, PoisonError};

use netram_journal::RemainsError;
use netram_journal::remains::Found;
use netram_shared_machine::NodeId;

use super::loss::NotStuck;
use super::report::{Report, StuckReport};
use crate::channel::{Arrival, Bell, Service};

/// Something that happened elsewhere.
pub(super) enum News {
    /// Somebody came in at the door.
    Arrived(Box<Arrival>),
    /// A reading of a dead node's journal has ended.
    Read(NodeId, Result<Found, RemainsError>),
    /// The lenders of a node that is gone know that they may forget it, but for these, which could not be reached.
    Told(NodeId, Vec<String>),
    /// Whoever looks after the region gives up what cannot be proven of a node.
    AcceptLoss(NodeId, SyncSender<Result<StuckReport, NotStuck>>),
    /// Somebody wants the status.
    Asked(SyncSender<Report>),
}

/// Where it is left.
pub(super) struct Post {
    pub(super) bell: Bell,
    /// There may be something to look at: news, or more that is durable.
    any: AtomicBool,
    stopping: AtomicBool,
    news: Mutex<Vec<News>>,
}

impl Post {
    pub(super) fn new() -> io::Result<Post> {
        Ok(Post {
            bell: Bell::new()?,
            any: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            news: Mutex::default(),
        })
    }

    pub(super) fn send(&self, news: News) {
        self.lock().push(news);
        self.look();
    }

    /// Has the thread look at the disk and the post.
    pub(super) fn look(&self) {
        self.any.store(true, Ordering::Release);
        self.bell.ring();
    }

    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.look();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn has_any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes what there is into `all`, which is empty. `false`: nothing has happened.
    pub(super) fn collect(&self, all: &mut Vec<News>) -> bool {
        // What comes from here on sets it again; what had come before is seen by whoever looks from here on.
        if !self.has_any() || !self.any.swap(false, Ordering::AcqRel) {
            return false;
        }
        std::mem::swap(all, &mut *self.lock());
        true
    }

    fn lock(&self) -> MutexGuard<'_, Vec<News>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Service for Post {
    fn take(&self, arrival: Arrival) {
        self.send(News::Arrived(Box::new(arrival)));
    }
}
