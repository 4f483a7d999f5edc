//! Notifications for the thread that feeds a replica of the journal: new durable records, and the newest
//! view.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use netram_proto::journal::View;
use netram_transport::Waker;

/// State shared by the journal's threads and the one that feeds the replica.
#[derive(Debug)]
pub(crate) struct CopyState(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    /// The view that is durable here, or about to be.
    newest: View,
    /// Woken when there is something new for the replica.
    waker: Option<Arc<Waker>>,
}

impl CopyState {
    pub(crate) fn new(newest: View) -> CopyState {
        CopyState(Mutex::new(Inner { newest, waker: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the waker that is woken from now on.
    pub(crate) fn watch(&self, waker: Arc<Waker>) {
        self.lock().waker = Some(waker);
    }

    pub(crate) fn newest(&self) -> View {
        self.lock().newest.clone()
    }

    /// Notes that `view` is about to be durable here.
    pub(crate) fn note_view(&self, view: View) {
        let mut inner = self.lock();
        inner.newest = view;
        inner.wake();
    }

    /// Notes that the local disk has more records.
    pub(crate) fn stable(&self) {
        self.lock().wake();
    }
}

impl Inner {
    fn wake(&self) {
        if let Some(waker) = &self.waker
            && let Err(error) = waker.wake()
        {
            // The thread also looks by itself, a little later.
            tracing::debug!(%error, "cannot wake the thread that feeds the replica");
        }
    }
}
