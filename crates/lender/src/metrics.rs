//! Latencies of a lender's disk, and its metrics.

use std::time::Instant;

use netram_telemetry::{LatencyHistogram, MetricCounter, MetricSamples, MetricSource};

use crate::report::{CounterReport, StatusReport};
use crate::state::DaemonState;

/// Latencies of the lender's disk. Written by the threads that wait for it.
#[derive(Debug, Default)]
pub(crate) struct LenderTimings {
    /// Writing windows to the disk: one of a silent client, or all that are left at the end.
    pub(crate) spill: LatencyHistogram,
    pub(crate) spilled_bytes: MetricCounter,
    pub(crate) spills_failed: MetricCounter,
    /// Reading the window of a client that has returned.
    pub(crate) reload: LatencyHistogram,
}

netram_telemetry::metric_families! {
    /// The metrics of every lender.
    LENDER_FAMILIES:
    RESERVED = gauge("netram_lender_reserved_bytes", "Bytes of memory set aside for lending at the start.");
    OFFERED = gauge(
        "netram_lender_offered_bytes",
        "Bytes that may be lent now. Below netram_lender_reserved_bytes while the machine is short of memory or by the \
         operator's order. Worry when it stays low: give the machine memory, or lend less.",
    );
    LENT = gauge(
        "netram_lender_lent_bytes",
        "Bytes lent to windows and pages. Worry near netram_lender_offered_bytes: further clients are refused.",
    );
    GIVEN_BACK = gauge("netram_lender_given_back_bytes", "Bytes of the reserved memory that the machine has back for now.");
    DEPOSITS = gauge("netram_lender_deposit_bytes", "Bytes lent to pages of programs under netram run.");
    WINDOWS = gauge("netram_lender_windows", "Windows in this lender's memory that clients may still need.");
    HELD = gauge(
        "netram_lender_held_bytes",
        "Bytes in these windows: their clients' disks may not have them. They must not be thrown away.",
    );
    ON_DISK = gauge("netram_lender_windows_on_disk", "Windows of silent clients that are in files of this machine.");
    ABANDONED = gauge(
        "netram_lender_silent_seconds",
        "Longest time for which the client of a window has been away. Worry above an hour: its machine may be gone; \
         see netram lender list --abandoned.",
    );
    JOURNALS = gauge("netram_lender_journals", "Journals that the lender must remember.");
    JOURNALS_MAX = gauge(
        "netram_lender_journals_max",
        "Journals that it can remember. Worry when netram_lender_journals is near it: raise --journals-max.",
    );
    CONNECTIONS = gauge("netram_lender_connections", "Connections of clients now.");
    ASKED = gauge(
        "netram_lender_windows_asked",
        "Windows that clients were asked to take elsewhere, since the machine is short of memory. Worry when it stays.",
    );
    DRAINING = gauge(
        "netram_lender_draining",
        "1 while clients are asked to move away, by the operator's order, on battery, or since it stops.",
    );
    BATTERY = gauge(
        "netram_lender_on_battery",
        "1 while the machine is on battery. Only of a lender with --ups. Act before the battery is empty.",
    );
    FRAMES = counter("netram_lender_frames_total", "Frames received from clients of journals.");
    APPENDS = counter("netram_lender_appends_total", "Appends among these frames.");
    APPENDED = counter("netram_lender_append_bytes_total", "Bytes of these appends.");
    ACKS = counter("netram_lender_acks_total", "Acknowledgements sent. One may answer many appends.");
    DATAGRAMS = counter("netram_lender_datagrams_total", "Appends that came by multicast.");
    MISSING = counter(
        "netram_lender_datagrams_missing_total",
        "Gaps in multicast appends. Worry when it grows with the appends: the network drops datagrams.",
    );
    PUTS = counter("netram_lender_page_writes_total", "Frames with pages for deposits.");
    GETS = counter("netram_lender_page_reads_total", "Frames that asked deposits for pages.");
    REFUSALS = counter(
        "netram_lender_refusals_total",
        "Requests refused, by cause. Worry when one grows: its name says what the client lacks.",
    );
    HANDSHAKES = counter(
        "netram_lender_handshakes_failed_total",
        "Connections that failed in the handshake, by cause. Worry about wrong_key: somebody has another key.",
    );
    SPILL = histogram(
        "netram_lender_spill_duration_seconds",
        "Time to write windows to the disk: one of a silent client, or all that are left at the end.",
    );
    SPILLED = counter("netram_lender_spilled_bytes_total", "Bytes of windows written to the disk.");
    SPILLS_FAILED = counter(
        "netram_lender_spills_failed_total",
        "Writes of windows that failed. Act when it grows: these windows are in memory only; see the log.",
    );
    RELOAD = histogram(
        "netram_lender_reload_duration_seconds",
        "Time to read the window of a client that has returned from the disk. The client waits for it.",
    );
}

impl MetricSource for DaemonState {
    fn collect(&self, samples: &mut MetricSamples) {
        // Without the copies, whose files are on a disk that may hang.
        let report = self.report_of_memory(Instant::now());
        let of_lender = [("lender", report.name.as_str())];
        for (family, value) in levels(&report) {
            samples.gauge(family, &of_lender, value as f64);
        }
        if let Some(power) = &report.power {
            let on_battery = power.state.ends_with("battery");
            samples.gauge(&BATTERY, &of_lender, f64::from(u8::from(on_battery)));
        }
        collect_counters(&report.counters, &report.name, samples);
        let timings = &self.timings;
        samples.histogram(&SPILL, &of_lender, &timings.spill);
        samples.histogram(&RELOAD, &of_lender, &timings.reload);
        samples.counted(&SPILLED, &of_lender, &timings.spilled_bytes);
        samples.counted(&SPILLS_FAILED, &of_lender, &timings.spills_failed);
    }
}

fn levels(report: &StatusReport) -> [(&'static netram_telemetry::MetricFamily, u64); 14] {
    let memory = &report.memory;
    let silent = report
        .journals
        .iter()
        .filter(|journal| journal.window_bytes > 0 || journal.on_disk);
    let longest = silent.filter_map(|journal| journal.last_heard_age_s).max();
    let on_disk = report.journals.iter().filter(|journal| journal.on_disk).count();
    [
        (&RESERVED, memory.reserved),
        (&OFFERED, memory.offered.unwrap_or(memory.reserved)),
        (&LENT, memory.used),
        (&GIVEN_BACK, memory.given_back),
        (&DEPOSITS, memory.deposits),
        (&WINDOWS, report.left.windows as u64),
        (&HELD, report.left.bytes),
        (&ON_DISK, on_disk as u64),
        (&ABANDONED, longest.unwrap_or(0)),
        (&JOURNALS, report.journals_used.into()),
        (&JOURNALS_MAX, report.journals_max.into()),
        (&CONNECTIONS, report.connections as u64),
        (&ASKED, memory.windows_asked as u64),
        (&DRAINING, (report.draining || report.stopping).into()),
    ]
}

fn collect_counters(counters: &CounterReport, lender: &str, samples: &mut MetricSamples) {
    for (family, count) in [
        (&FRAMES, counters.frames),
        (&APPENDS, counters.appends),
        (&APPENDED, counters.bytes),
        (&ACKS, counters.acks),
        (&DATAGRAMS, counters.datagrams),
        (&MISSING, counters.datagrams_missing),
        (&PUTS, counters.deposit_puts),
        (&GETS, counters.deposit_gets),
    ] {
        samples.counter(family, &[("lender", lender)], count);
    }
    for (family, causes) in [
        (&REFUSALS, &counters.refusals),
        (&HANDSHAKES, &counters.handshakes_failed),
    ] {
        for (cause, count) in causes {
            samples.counter(family, &[("lender", lender), ("cause", cause)], *count);
        }
    }
}
