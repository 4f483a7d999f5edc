//! Measures how short of memory the machine is, and adjusts the store to what may be lent, as
//! `netram_far_machine::deposit::MemoryPressure` decides.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_far_machine::deposit::{MemoryPressure, MemoryReading, PressureSettings};
use netram_proto::failure::RetryBackoff;
use netram_proto::port::IoError;
use netram_proto::time::{Nanos, Time};

use crate::file::bytes_of;
use crate::limit::PRESSURE_LOOK;
use crate::state::DaemonState;

/// The monitor of the machine's memory.
pub(super) struct PressureWatch {
    shared: Arc<DaemonState>,
    pressure: MemoryPressure,
    meminfo: PathBuf,
    /// The kernel's file of memory stalls; `None` if that check is disabled or not supported.
    waits: Option<PathBuf>,
    next: Instant,
    /// The back-off after the system refused to release memory.
    refusals: RetryBackoff,
    /// Time of the next attempt after a refusal.
    refused_until: Option<Instant>,
}

impl PressureWatch {
    pub(super) fn new(shared: Arc<DaemonState>, now: Instant) -> PressureWatch {
        let config = &shared.config.watch;
        let (most, meminfo) = (shared.config.deposits_bytes(), config.proc.join("meminfo"));
        let mut settings = PressureSettings {
            most,
            keep_free: config.keep_free,
            waits: config.waits,
            calm: Nanos::from_ms(config.calm.as_millis() as u64),
        };
        if !shared.store.can_give_back() {
            if settings.keep_free > 0 || settings.waits > 0 {
                tracing::info!(
                    "the lent memory lies in preallocated huge pages, which no other program can use, so deposits keep it"
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
        let pressure = MemoryPressure::new(settings, most.saturating_sub(shared.store.given_back()));
        shared.deposits.set_limit(pressure.limit());
        PressureWatch {
            shared,
            pressure,
            meminfo,
            waits,
            next: now,
            refusals: RetryBackoff::new(),
            refused_until: None,
        }
    }

    /// Whether deposits are asked for slots, or not all memory is lent again yet.
    pub(super) fn is_pressed(&self) -> bool {
        self.pressure.is_pressed()
    }

    /// Maximum bytes that deposits may have now.
    pub(super) fn limit(&self) -> u64 {
        self.pressure.limit()
    }

    /// Checks the machine's memory if it is time. Returns whether the limit has changed.
    pub(super) fn look(&mut self, now: Instant, time: Time) -> bool {
        let (was, most) = (self.limit(), self.shared.config.deposits_bytes());
        if now >= self.next && self.pressure.is_on() {
            self.next = now + PRESSURE_LOOK;
            let reading = MemoryReading {
                available: { std::fs::read_to_string(&self.meminfo).ok() }
                    .and_then(|meminfo| bytes_of(&meminfo, "MemAvailable:")),
                waited: self.waits.as_deref().and_then(waited),
            };
            let taken = most.saturating_sub(self.shared.store.given_back());
            self.pressure.read(time, reading, taken);
            self.tell(was, most, reading);
        }
        self.follow(now, most - self.limit());
        was != self.limit()
    }

    fn tell(&self, was: u64, most: u64, reading: MemoryReading) {
        let limit = self.limit();
        if limit == was {
            return;
        }
        self.shared.deposits.set_limit(limit);
        let (available, waited) = (reading.available, reading.waited);
        if was == most {
            tracing::warn!(
                limit,
                available,
                waited,
                "the machine is short of memory: deposits are asked to give slots back, and get no new ones"
            );
        } else if limit == most {
            tracing::info!(
                available,
                "the machine has enough memory again: deposits may use all that is lent to them"
            );
        } else {
            tracing::debug!(limit, available, waited, "the limit of deposits has changed");
        }
    }

    /// Releases memory that deposits may not have to the machine as soon as they have left it. The part for
    /// windows is kept.
    fn follow(&mut self, now: Instant, bytes: u64) {
        if self.refused_until.is_some_and(|until| now < until) {
            return;
        }
        let store = &self.shared.store;
        let left = { self.shared.config.deposits_bytes() }.saturating_sub(store.deposits());
        let Err(error) = store.give_back(bytes.min(left)) else {
            self.refused_until = None;
            if self.refusals.succeeded() > 0 {
                tracing::info!("memory can be released to the machine again");
            }
            return;
        };
        let errno = error.raw_os_error().unwrap_or(IoError::EIO.errno);
        let pause = self.refusals.failed(IoError { errno });
        if pause.should_log {
            tracing::error!(%error, "cannot release memory to the machine, or reserve it again; retrying");
        }
        self.refused_until = Some(now + Duration::from_nanos(pause.pause.0));
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
