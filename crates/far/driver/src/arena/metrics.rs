//! Metrics of an arena.

use netram_far_machine::arena::FaultAction;
use netram_far_machine::limit::PAGE_BYTES;
use netram_telemetry::{CallTimes, MetricSamples, MetricSource, TimedCall};
use std::sync::atomic::{AtomicU64, Ordering};

use super::moves::ArenaCore;

const FROM: [&str; 4] = ["zeros", "staged", "packed", "lender"];

/// Times of an arena's faults. Recording them neither locks nor allocates.
#[derive(Debug)]
pub(super) struct ArenaTimes {
    /// Number of the arena in this process, from 0.
    number: u64,
    faults: CallTimes<{ FROM.len() }>,
}

netram_telemetry::metric_families! {
    /// The metrics of every arena of far memory.
    FAR_FAMILIES:
    FAULT = histogram(
        "netram_far_fault_duration_seconds",
        "Time to bring a page that a thread waits for, by where it was: new (zeros), still in local memory (staged), compressed \
         there (packed), or at a lender. Worry when lender takes milliseconds: the link or the lender is overloaded.",
    );
    FAULTS = counter("netram_far_faults_total", "References to pages that were not in local memory.");
    STARVED = counter(
        "netram_far_faults_starved_total",
        "Faults that found no free local memory. Worry when it grows steadily: give the program more with --local.",
    );
    AHEAD = counter("netram_far_pages_ahead_total", "Pages asked for ahead of need.");
    SENT = counter("netram_far_pages_sent_total", "Pages that left local memory for lenders.");
    PACKED = counter("netram_far_pages_packed_total", "Pages that were compressed in local memory.");
    LOCAL = gauge("netram_far_local_bytes", "Local memory that pages use. It stays below netram_far_local_limit_bytes.");
    LIMIT = gauge("netram_far_local_limit_bytes", "Most local memory that pages may use, as --local says.");
    PENDING = gauge(
        "netram_far_pending_bytes",
        "Bytes of pages that are kept here until all copies have them. Worry when it stays: lenders are away or full.",
    );
}

impl ArenaTimes {
    pub(super) fn new() -> ArenaTimes {
        static ARENAS: AtomicU64 = AtomicU64::new(0);
        ArenaTimes {
            number: ARENAS.fetch_add(1, Ordering::Relaxed),
            faults: CallTimes::new(),
        }
    }

    /// Begins to time a fault; `None`: nothing is brought.
    #[inline]
    pub(super) fn begin(&self, action: FaultAction) -> Option<TimedCall<'_>> {
        let from = match action {
            FaultAction::Check | FaultAction::Zero => 0,
            FaultAction::Activate(_) => 1,
            FaultAction::Unpack => 2,
            FaultAction::Fetch => 3,
            FaultAction::Resident | FaultAction::Wait | FaultAction::Starved | FaultAction::Lost => {
                return None;
            }
        };
        Some(self.faults.begin(from))
    }
}

impl MetricSource for ArenaCore {
    fn collect(&self, samples: &mut MetricSamples) {
        let number = self.times.number.to_string();
        let of_arena = [("arena", number.as_str())];
        self.times
            .faults
            .collect(&FAULT, &of_arena, "from", &FROM, samples);
        // Nothing is allocated under the monitor's lock.
        let (tally, used) = {
            let state = self.monitor.lock();
            (state.machine.tally(), state.machine.used())
        };
        for (family, count) in [
            (&FAULTS, tally.faults),
            (&STARVED, tally.starved),
            (&AHEAD, tally.ahead),
            (&SENT, tally.sent),
            (&PACKED, tally.packed),
        ] {
            samples.counter(family, &of_arena, count);
        }
        let bytes = |pages: usize| (pages * PAGE_BYTES) as f64;
        samples.gauge(&LOCAL, &of_arena, bytes(used as usize));
        samples.gauge(&LIMIT, &of_arena, bytes(self.frames as usize));
        samples.gauge(&PENDING, &of_arena, bytes(self.remote_pages.pending()));
    }
}
