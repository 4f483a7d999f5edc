//! The server's word that it is well, once a [`HEARTBEAT_INTERVAL`]: it gets its processor, and the locks
//! that requests take are free.
//!
//! A deadlock, a lock's owner that never comes back, or a process that was stopped stays silent. A slow disk
//! or absent lenders do not: no such lock is held while they are waited for ([`Device::probe`]).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use netram_block::BlockDevice;

use crate::handover::{HandoverMessage, try_send_message};
use crate::watchdog::HEARTBEAT_INTERVAL;

/// A thread that says it, from the process's first moment: opening a volume may take long. Dropped, it says
/// that the server is about to end, and is silent from then on.
pub(crate) struct Heartbeat {
    given: Option<Sender<Arc<dyn BlockDevice>>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    pub(crate) fn start() -> io::Result<Heartbeat> {
        let (given, taken) = channel();
        let thread = std::thread::Builder::new()
            .name("netram-pulse".into())
            .spawn(move || send_heartbeats(&taken))?;
        Ok(Heartbeat {
            given: Some(given),
            thread: Some(thread),
        })
    }

    /// From now on this device must be well too.
    pub(crate) fn watch(&self, device: &Arc<dyn BlockDevice>) {
        if let Some(given) = &self.given {
            // The thread is gone if the supervisor is.
            let _ = given.send(Arc::clone(device));
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        drop(self.given.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_ok()) {
            // A supervisor that was killed, or stopped for long, hears nothing.
            let _ = try_send_message(io::stdin(), &HandoverMessage::Ending);
        }
    }
}

fn send_heartbeats(given: &Receiver<Arc<dyn BlockDevice>>) {
    let mut device: Option<Arc<dyn BlockDevice>> = None;
    loop {
        if let Some(device) = &device {
            device.probe();
        }
        if try_send_message(io::stdin(), &HandoverMessage::Alive).is_err() {
            // Nobody listens any more.
            return;
        }
        match given.recv_timeout(HEARTBEAT_INTERVAL) {
            Ok(opened) => device = Some(opened),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
