//! A device on its way out, in threads of its own: what waits for the device's server must not be the thread
//! that replaces it.
//!
//! 1. `netram-release` has the device for itself, and brings what was written to it to the server. The server
//!    may die and be replaced meanwhile.
//! 2. When it says so, and the supervisor still wants it, `netram-let-go` closes what else this process has
//!    of the device.
//! 3. `netram-release` ends the device: it closes it for the last time, or stops it.
//!
//! Killed, a process goes when its last thread does, and until then the kernel keeps every descriptor that
//! such a thread has. So `netram-release`, which may wait for a server that nobody replaces any more, has the
//! device and nothing else: were it the end of a conversation with the kernel too, neither would ever end.

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};

use crate::sys;

/// A device that is being let go, and is not gone.
#[derive(Debug)]
pub(crate) struct ReleaseTask {
    /// It is had and synced, or somebody else has it.
    acquired: Receiver<io::Result<()>>,
    /// To be closed before the device ends.
    rest: Sender<Box<dyn Send>>,
    ending: JoinHandle<()>,
}

impl ReleaseTask {
    /// Begins. `have` opens the device for itself, or says who prevents that; `end` ends it. Both may wait.
    /// Dropped before [`ReleaseTask::close`], it lets the device be.
    pub(crate) fn begin(
        have: impl FnOnce() -> io::Result<File> + Send + 'static,
        end: impl FnOnce(File) + Send + 'static,
    ) -> io::Result<ReleaseTask> {
        let (tell, had) = channel();
        let (rest, to_close) = channel::<Box<dyn Send>>();
        let (go, going) = channel();
        let ending = Builder::new().name("netram-release".into()).spawn(move || {
            let mine = sys::without_descriptors().and_then(|()| have());
            let device = match mine {
                Ok(device) => device,
                // Whoever asked may not care any more.
                Err(error) => return drop(tell.send(Err(error))),
            };
            sync(&device);
            if tell.send(Ok(())).is_ok() && going.recv().is_ok() {
                end(device);
            }
        })?;
        Builder::new().name("netram-let-go".into()).spawn(move || {
            if let Ok(rest) = to_close.recv() {
                drop(rest);
                // One that panicked ends nothing.
                let _ = go.send(());
            }
        })?;
        Ok(ReleaseTask {
            acquired: had,
            rest,
            ending,
        })
    }

    /// Whether the device is had, with nothing left to be written; `None`: not yet.
    pub(crate) fn acquired(&self) -> Option<io::Result<()>> {
        match self.acquired.try_recv() {
            Ok(had) => Some(had),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => {
                Some(Err(io::Error::other("the thread that closes it panicked")))
            }
        }
    }

    /// Ends the device that is had, once `rest` is closed.
    pub(crate) fn close(&self, rest: Box<dyn Send>) {
        let sent = self.rest.send(rest);
        assert!(sent.is_ok(), "that thread waits until this is said, or dropped");
    }

    /// Whether the device has ended, after [`ReleaseTask::close`].
    pub(crate) fn is_over(&self) -> bool {
        self.ending.is_finished()
    }
}

fn sync(device: &File) {
    if let Err(error) = device.sync_all() {
        tracing::warn!(%error, "what a program has written to the device without syncing it is lost");
    }
}
