//! Heartbeats of the server, one every [`HEARTBEAT_INTERVAL`]: it gets processor time, and the locks that
//! requests take are free.
//!
//! After a deadlock, a lock that is never released, or a stop of the process, no heartbeat is sent. A slow
//! disk or absent lenders do not stop it: no such lock is held while they are waited for
//! ([`BlockDevice::probe`]).

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use netram_block::BlockDevice;

use crate::handover::{HandoverMessage, try_send_message};
use crate::watchdog::HEARTBEAT_INTERVAL;

/// The heartbeat thread, running from the start of the process, because opening a volume may take long.
/// Dropping it announces the server's end, and stops the heartbeats.
pub(crate) struct Heartbeat {
    given: Option<Sender<Arc<dyn BlockDevice>>>,
    thread: Option<JoinHandle<()>>,
}

impl Heartbeat {
    pub(crate) fn start() -> io::Result<Heartbeat> {
        let (given, taken) = channel();
        let thread = std::thread::Builder::new()
            .name("netram-beat".into())
            .spawn(move || send_heartbeats(&taken))?;
        Ok(Heartbeat {
            given: Some(given),
            thread: Some(thread),
        })
    }

    /// From now on this device is probed before each heartbeat.
    pub(crate) fn watch(&self, device: &Arc<dyn BlockDevice>) {
        if let Some(given) = &self.given {
            // The thread has ended if the supervisor is gone.
            let _ = given.send(Arc::clone(device));
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        drop(self.given.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_ok()) {
            // A supervisor that was killed, or stopped for long, does not receive it.
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
            // The supervisor is gone.
            return;
        }
        match given.recv_timeout(HEARTBEAT_INTERVAL) {
            Ok(opened) => device = Some(opened),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
