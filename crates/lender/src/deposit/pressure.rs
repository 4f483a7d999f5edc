//! Measures how short of memory the machine is, and adjusts what is lent, as
//! `netram_far_machine::deposit::MemoryPressure` decides: the offer first, from which follow what deposits
//! may have, which windows are asked back, and what is released to the machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_far_machine::deposit::{MemoryPressure, MemoryReading, PressureSettings, deposits_limit};
use netram_proto::failure::RetryBackoff;
use netram_proto::port::IoError;
use netram_proto::time::{Nanos, Time};
use netram_transport::{Interest, Poller};

use super::stalls::StallTrigger;
use crate::file::bytes_of;
use crate::limit::{HOUSEKEEPING, IDLE_HOUSEKEEPING};
use crate::reclaim::WindowReclaimer;
use crate::state::DaemonState;

/// The monitor of the machine's memory.
pub(super) struct PressureWatch {
    shared: Arc<DaemonState>,
    pressure: MemoryPressure,
    windows: WindowReclaimer,
    meminfo: PathBuf,
    /// The kernel's file of memory stalls; `None` if that check is disabled or not supported.
    waits: Option<PathBuf>,
    /// The kernel's reports of stalls; without it the file is only read.
    stalls: Option<StallTrigger>,
    /// Whether the kernel has reported a stall since the last reading.
    stalled: bool,
    /// The most that the operator lets it lend.
    most: u64,
    /// Time of the next reading.
    read_at: Instant,
    /// Time of the next look: a reading, or a further part of what is released or reserved.
    next: Instant,
    /// The back-off after the system refused to release memory.
    refusals: RetryBackoff,
    /// Time of the next attempt after a refusal.
    refused_until: Option<Instant>,
}

impl PressureWatch {
    pub(super) fn new(shared: Arc<DaemonState>, now: Instant) -> PressureWatch {
        let config = &shared.config.watch;
        let (most, meminfo) = (shared.store.memory(), config.proc.join("meminfo"));
        let mut settings = PressureSettings {
            most,
            least: config.least.min(most),
            keep_free: config.keep_free,
            waits: config.waits,
            calm: Nanos::from_ms(config.calm.as_millis() as u64),
        };
        if !shared.store.can_give_back() {
            if settings.keep_free > 0 || settings.waits > 0 {
                tracing::info!(
                    "the lent memory lies in preallocated huge pages, which no other program can use, so the lender keeps it"
                );
            }
            (settings.keep_free, settings.waits) = (0, 0);
        }
        let file = config.proc.join("pressure/memory");
        let waits = (settings.waits > 0).then_some(file).filter(|file| {
            let says = waited(file).is_some();
            if !says {
                tracing::info!(
                    file = %file.display(),
                    "this kernel does not report memory stalls (/proc/pressure/memory); only available memory is checked"
                );
            }
            says
        });
        let open = |file: &Path| StallTrigger::open(file, settings.waits);
        let stalls = waits.as_deref().and_then(|file| {
            open(file)
                .inspect_err(|error| tracing::debug!(%error, "no reports of memory stalls; they are read"))
                .ok()
        });
        let pressure = MemoryPressure::new(settings, most.saturating_sub(shared.store.given_back()));
        let watch = PressureWatch {
            windows: WindowReclaimer::new(Arc::clone(&shared)),
            shared,
            pressure,
            meminfo,
            waits,
            stalls,
            stalled: false,
            most,
            read_at: now,
            next: now,
            refusals: RetryBackoff::new(),
            refused_until: None,
        };
        watch.apply();
        watch
    }

    /// Has the poller report stalls.
    pub(super) fn add_to(&self, poller: &Poller, token: u64) -> std::io::Result<()> {
        match &self.stalls {
            Some(stalls) => poller.add(stalls, token, Interest::Exception),
            None => Ok(()),
        }
    }

    /// Notes that the kernel reports a stall.
    pub(super) fn on_stall(&mut self, now: Instant) {
        self.stalled = true;
        (self.read_at, self.next) = (now, now);
    }

    /// Has it look soon: memory has come back, or an order was given.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.next = now;
    }

    /// Time of its next look.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Maximum bytes that deposits may have now; `None`: all that is configured for them.
    pub(super) fn deposits_limit(&self) -> Option<u64> {
        let limit = self.shared.deposits.limit();
        (limit < self.shared.config.deposits_bytes()).then_some(limit)
    }

    /// Checks the machine's memory if it is time, and adjusts what is lent. Returns whether deposits have to
    /// be told.
    pub(super) fn look(&mut self, now: Instant, time: Time) -> bool {
        let was = (self.pressure.limit(), self.pressure.is_short());
        let had = self.deposits_limit();
        let most = self.shared.offer_ordered();
        if most != self.most {
            self.most = most;
            self.pressure.resize(most, self.shared.config.watch.least);
            tracing::info!(most, "this lender lends at most as much, by its operator's order");
        }
        if now >= self.read_at {
            let reading = MemoryReading {
                available: { std::fs::read_to_string(&self.meminfo).ok() }
                    .and_then(|meminfo| bytes_of(&meminfo, "MemAvailable:")),
                waited: self.waits.as_deref().and_then(waited),
                stalled: std::mem::take(&mut self.stalled),
            };
            let store = &self.shared.store;
            self.pressure
                .read(time, reading, store.memory().saturating_sub(store.given_back()));
            self.tell(was, reading);
            self.read_at = match self.pressure.is_on() {
                true => now + Duration::from_nanos(self.pressure.pace(reading, self.stalls.is_some()).0),
                false => now + IDLE_HOUSEKEEPING,
            };
        }
        self.apply();
        let leaving = self
            .windows
            .settle(time, self.pressure.limit(), self.pressure.is_short());
        let more = self.follow(now);
        self.next = match (more, leaving) {
            (true, _) => now,
            (false, true) => self.read_at.min(now + HOUSEKEEPING),
            (false, false) => self.read_at,
        };
        had != self.deposits_limit() || self.deposits_limit().is_some()
    }

    /// Bounds what is lent by the offer.
    fn apply(&self) {
        let (store, offer) = (&self.shared.store, self.pressure.limit());
        store.offer(offer);
        let most = self.shared.config.deposits_bytes();
        self.shared.deposits.set_limit(match offer < store.memory() {
            true => deposits_limit(offer, store.windows_bytes(), most),
            false => most,
        });
    }

    fn tell(&self, (had, was_short): (u64, bool), reading: MemoryReading) {
        let (offer, short) = (self.pressure.limit(), self.pressure.is_short());
        let (available, waited) = (reading.available, reading.waited);
        match (was_short, short) {
            (false, true) => tracing::warn!(
                offer,
                available,
                waited,
                "the machine is short of memory: the lender gives some back, and lends no more than the rest"
            ),
            (true, false) => tracing::info!(
                offer,
                available,
                "the machine has enough memory again: the lender takes back what is idle"
            ),
            _ if had != offer => tracing::debug!(offer, available, waited, "the offer has changed"),
            _ => (),
        }
    }

    /// Releases memory that is not offered to the machine as soon as it is free, and reserves what is offered
    /// again. Returns whether there is more to do at once.
    fn follow(&mut self, now: Instant) -> bool {
        if self.refused_until.is_some_and(|until| now < until) {
            return false;
        }
        let store = &self.shared.store;
        let error = match store.give_back(store.memory().saturating_sub(self.pressure.limit())) {
            Ok(more) => {
                self.refused_until = None;
                if self.refusals.succeeded() > 0 {
                    tracing::info!("memory can be released to the machine again");
                }
                return more;
            }
            Err(error) => error,
        };
        let errno = error.raw_os_error().unwrap_or(IoError::EIO.errno);
        let pause = self.refusals.failed(IoError { errno });
        if pause.should_log {
            tracing::error!(%error, "cannot release memory to the machine, or reserve it again; retrying");
        }
        self.refused_until = Some(now + Duration::from_nanos(pause.pause.0));
        false
    }
}

/// The share of the last ten seconds for which some program waited for memory, in hundredths of a percent.
fn waited(file: &Path) -> Option<u32> {
    let text = std::fs::read_to_string(file).ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some avg10="))?;
    let percent: f64 = some.split(' ').next()?.parse().ok()?;
    (0.0..=100.0)
        .contains(&percent)
        .then_some((percent * 100.0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_ten_second_average_of_memory_stalls_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("memory");
        assert_eq!(waited(&file), None);
        for (text, means) in [
            (
                "some avg10=12.34 avg60=1.00 avg300=0.50 total=9\nfull avg10=99.00 avg60=0 avg300=0 total=1\n",
                Some(1234),
            ),
            ("full avg10=99.00 avg60=0.00 avg300=0.00 total=1\n", None),
            ("some avg10=much\n", None),
            ("some avg10=101.00 avg60=0\n", None),
            ("", None),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(waited(&file), means, "{text}");
        }
    }

    #[test]
    fn available_memory_is_read_in_bytes() {
        let meminfo = "MemTotal:       8000 kB\nMemFree:  1 kB\nMemAvailable:    4000 kB\n";
        assert_eq!(bytes_of(meminfo, "MemAvailable:"), Some(4000 * 1024));
        assert_eq!(bytes_of("MemTotal: 8 kB\n", "MemAvailable:"), None);
        assert_eq!(bytes_of("MemAvailable: 8 MB\n", "MemAvailable:"), None);
    }
}
