//! The thread that looks at a service once a second and tells the service manager.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use super::schedule::{NotifySchedule, ServiceLook, ServiceNotice, StopPatience};
use super::socket::{is_wanted, monotonic_micros, send, watchdog};
use crate::log;

/// How long a stop waits until the service is not looked at any more.
const LAST_LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// A look at a service. It may wait for what a request waits for, other than disks and other machines.
type Looker = Box<dyn FnMut() -> ServiceLook + Send>;

/// The beginning of a service's stop.
struct ServiceStop {
    sentence: String,
    patience: StopPatience,
    /// Dropped when the service is not looked at any more.
    _looked: SyncSender<()>,
}

/// Tells the service manager of a service until it is dropped. Costs nothing if there is no manager.
#[derive(Debug)]
pub(crate) struct ServiceNotifier {
    stop: Option<Sender<ServiceStop>>,
}

impl ServiceNotifier {
    /// Says that this process is ready, and from now on what `look` finds.
    pub(crate) fn ready(look: impl FnMut() -> ServiceLook + Send + 'static) -> ServiceNotifier {
        log::serve();
        send("READY=1");
        if !is_wanted() {
            return ServiceNotifier { stop: None };
        }
        let (stop, stops) = channel();
        let schedule = NotifySchedule::new(Instant::now(), watchdog());
        let started = std::thread::Builder::new()
            .name("netram-notify".to_owned())
            .spawn(move || run(Box::new(look), schedule, &stops));
        if let Err(error) = started {
            tracing::error!(%error, "systemd is not told that this service lives");
            return ServiceNotifier { stop: None };
        }
        ServiceNotifier { stop: Some(stop) }
    }

    /// Reads settings again, between the two messages that let the manager wait for it.
    pub(crate) fn reload<T>(&self, work: impl FnOnce() -> T) -> T {
        send(&format!("RELOADING=1\nMONOTONIC_USEC={}", monotonic_micros()));
        let done = work();
        send("READY=1");
        done
    }

    /// Says that the service stops, and what it does until its end. The service is not looked at any more.
    pub(crate) fn stopping(&self, sentence: &str, patience: StopPatience) {
        send("STOPPING=1");
        let Some(stop) = &self.stop else { return };
        let (looked, was_looked) = sync_channel(0);
        let order = ServiceStop {
            sentence: sentence.to_owned(),
            patience,
            _looked: looked,
        };
        if stop.send(order).is_ok() {
            // A look that does not return must not keep the service from stopping.
            let _ = was_looked.recv_timeout(LAST_LOOK_TIMEOUT);
        }
    }
}

fn run(look: Looker, mut schedule: NotifySchedule, stops: &Receiver<ServiceStop>) {
    let mut look = Some(look);
    loop {
        if let Some(look) = &mut look {
            schedule.handle_look(look());
        }
        while let Some(notice) = schedule.poll(Instant::now()) {
            send(&message(&notice));
        }
        match stops.recv_timeout(schedule.pause()) {
            Ok(stop) => {
                look = None;
                schedule.handle_stop(Instant::now(), &stop.sentence, stop.patience);
            }
            Err(RecvTimeoutError::Timeout) => (),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn message(notice: &ServiceNotice) -> String {
    match notice {
        ServiceNotice::Ping => "WATCHDOG=1".to_owned(),
        ServiceNotice::Status(sentence) => format!("STATUS={sentence}"),
        ServiceNotice::Extend(time) => format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()),
    }
}
