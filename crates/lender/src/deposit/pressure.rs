//! Looks at how short of memory the machine is, and has the store follow what may be lent. What that is
//! decides `netram_far_machine::deposit::MemoryPressure`.

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

/// The watch over the machine's memory.
pub(super) struct PressureWatch {
    shared: Arc<DaemonState>,
    pressure: MemoryPressure,
    meminfo: PathBuf,
    /// How long programs wait; `None`: nobody looks, or the kernel does not say.
    waits: Option<PathBuf>,
    next: Instant,
    /// What the system refused when memory was to be given back.
    refusals: RetryBackoff,
    /// It is not tried again before this.
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
                    "the lent memory lies in huge pages that were set aside: nobody would have anything of it, and none is asked back"
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
                    "this kernel does not say how long programs wait for memory; only what is available is looked at"
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

    /// Whether slots are asked back, or not yet all that may be lent is.
    pub(super) fn is_pressed(&self) -> bool {
        self.pressure.is_pressed()
    }

    /// The most bytes that deposits may have now.
    pub(super) fn limit(&self) -> u64 {
        self.pressure.limit()
    }

    /// Looks, if it is time. `true`: what may be lent has changed.
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
                "the machine is short of memory: deposits are asked for slots, and get no more"
            );
        } else if limit == most {
            tracing::info!(
                available,
                "the machine has memory again: deposits get all that is lent to them"
            );
        } else {
            tracing::debug!(limit, available, waited, "what deposits may have has changed");
        }
    }

    /// What deposits may not have is given back to the machine, as soon as they have left it.
    /// Windows' part is kept for them.
    fn follow(&mut self, now: Instant, bytes: u64) {
        if self.refused_until.is_some_and(|until| now < until) {
            return;
        }
        let store = &self.shared.store;
        let left = { self.shared.config.deposits_bytes() }.saturating_sub(store.deposits());
        let Err(error) = store.give_back(bytes.min(left)) else {
            self.refused_until = None;
            if self.refusals.succeeded() > 0 {
                tracing::info!("memory is given back to the machine again");
            }
            return;
        };
        let errno = error.raw_os_error().unwrap_or(IoError::EIO.errno);
        let pause = self.refusals.failed(IoError { errno });
        if pause.should_log {
            tracing::error!(%error, "memory could not be given back to the machine, or taken again; trying on");
        }
        self.refused_until = Some(now + Duration::from_nanos(pause.pause.0));
    }
}

/// The part of the last ten seconds for which some program waited for memory, in hundredths of a percent.
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
    fn what_the_kernel_says_of_waits_is_read_and_nothing_else() {
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
    fn what_is_available_is_read_in_bytes() {
        let meminfo = "MemTotal:       8000 kB\nMemFree:  1 kB\nMemAvailable:    4000 kB\n";
        assert_eq!(bytes_of(meminfo, "MemAvailable:"), Some(4000 * 1024));
        assert_eq!(bytes_of("MemTotal: 8 kB\n", "MemAvailable:"), None);
        assert_eq!(bytes_of("MemAvailable: 8 MB\n", "MemAvailable:"), None);
    }
}
