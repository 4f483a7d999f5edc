//! Releasing a device in threads of its own: the thread that may wait for the device's server must not be the
//! one that replaces the server.
//!
//! 1. `netram-release` opens the device exclusively, and flushes written data to the server. The server may
//!    die and be replaced during that.
//! 2. When that is reported and the supervisor still wants it, `netram-detach` closes everything else that
//!    this process has of the device.
//! 3. `netram-release` ends the device: it closes it for the last time, or stops it.
//!
//! A killed process goes when its last thread does, and until then the kernel keeps every descriptor of such
//! a thread. So `netram-release`, which may wait for a server that is not replaced any more, has only the
//! device. If it also had the kernel's end of the session, neither would ever end.

use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, JoinHandle};

use netram_supervise::without_descriptors;

/// A device that is being released and is not gone yet.
#[derive(Debug)]
pub(crate) struct ReleaseTask {
    /// Reports that the device was acquired and synced, or that another user has it.
    acquired: Receiver<io::Result<()>>,
    /// Objects to close before the device ends.
    rest: Sender<Box<dyn Send>>,
    ending: JoinHandle<()>,
}

impl ReleaseTask {
    /// Begins the release. `have` opens the device exclusively, or returns who prevents that; `end` ends it.
    /// Both may block. Dropping the task before [`ReleaseTask::close`] keeps the device.
    pub(crate) fn begin(
        have: impl FnOnce() -> io::Result<File> + Send + 'static,
        end: impl FnOnce(File) + Send + 'static,
    ) -> io::Result<ReleaseTask> {
        let (tell, had) = channel();
        let (rest, to_close) = channel::<Box<dyn Send>>();
        let (go, going) = channel();
        let ending = Builder::new().name("netram-release".into()).spawn(move || {
            let mine = without_descriptors().and_then(|()| have());
            let device = match mine {
                Ok(device) => device,
                // The supervisor may not wait for it any more.
                Err(error) => return drop(tell.send(Err(error))),
            };
            sync(&device);
            if tell.send(Ok(())).is_ok() && going.recv().is_ok() {
                end(device);
            }
        })?;
        Builder::new().name("netram-detach".into()).spawn(move || {
            if let Ok(rest) = to_close.recv() {
                drop(rest);
                // If that close panicked, the device is not ended.
                let _ = go.send(());
            }
        })?;
        Ok(ReleaseTask {
            acquired: had,
            rest,
            ending,
        })
    }

    /// Whether the device was acquired, with all data flushed; `None`: not yet.
    pub(crate) fn acquired(&self) -> Option<io::Result<()>> {
        match self.acquired.try_recv() {
            Ok(had) => Some(had),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(io::Error::other(
                "the thread that releases the device panicked",
            ))),
        }
    }

    /// Ends the acquired device, once `rest` is closed.
    pub(crate) fn close(&self, rest: Box<dyn Send>) {
        let sent = self.rest.send(rest);
        assert!(sent.is_ok(), "the thread waits until this is sent or dropped");
    }

    /// Whether the device has ended, after [`ReleaseTask::close`].
    pub(crate) fn is_over(&self) -> bool {
        self.ending.is_finished()
    }
}

fn sync(device: &File) {
    if let Err(error) = device.sync_all() {
        tracing::warn!(%error, "data that a program wrote to the device without syncing is lost");
    }
}
