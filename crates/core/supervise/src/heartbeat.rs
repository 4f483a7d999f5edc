//! Heartbeats of the server, one every [`HEARTBEAT_INTERVAL`]: it gets processor time, and the locks that
//! requests take are free.
//!
//! After a deadlock, a lock that is never released, or a stop of the process, no heartbeat is sent. A slow
//! disk or absent lenders must not stop it: a probe takes no lock that is held while they are waited for.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;

use crate::handover::{HandoverMessage, try_send_message};
use crate::watchdog::HEARTBEAT_INTERVAL;

/// A look at what is served, on the heartbeat's thread.
type HealthProbe = Box<dyn FnMut() + Send>;

/// The heartbeat thread, running from the start of the process, because opening may take long. Dropping it
/// announces the server's end, and stops the heartbeats.
pub struct Heartbeat {
    given: Option<Sender<HealthProbe>>,
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

    /// From now on `probe` runs before each heartbeat. It takes the locks that requests take, and returns at
    /// once if they are free.
    pub fn watch(&self, probe: impl FnMut() + Send + 'static) {
        if let Some(given) = &self.given {
            // The thread has ended if the supervisor is gone.
            let _ = given.send(Box::new(probe));
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

fn send_heartbeats(given: &Receiver<HealthProbe>) {
    let mut probe: Option<HealthProbe> = None;
    loop {
        if let Some(probe) = &mut probe {
            probe();
        }
        if try_send_message(io::stdin(), &HandoverMessage::Alive).is_err() {
            // The supervisor is gone.
            return;
        }
        match given.recv_timeout(HEARTBEAT_INTERVAL) {
            Ok(opened) => probe = Some(opened),
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
