//! Large writes beside the link's throughput: on loopback, where client, member and floor share the
//! processors, and over links of a network card's speed between two network namespaces.
//!
//! A write is complete when the members have it *or* the local disk does, and a disk may be faster than the
//! link. Over a link the log's syncs are therefore modelled so slow that only the members answer, and the
//! link's use is measured. The bytes that cross it are counted and reported.

use std::time::Duration;

use super::volume::{BYTES, LARGE, SPAN_BYTES, VolumeEffort, all, lender, spec};
use super::{RatioBound, ScoreboardRow};
use crate::error::BenchError;
use crate::histogram::median;
use crate::namespaces::NamespacePair;
use crate::testbed::Testbed;
use crate::volume::serve::{DeviceSource, NbdServerProcess, SyncDelays};
use crate::volume::sink::{self, SinkServer};
use crate::volume::{VolumeDirectory, VolumeRedundancy};

/// Number of large writes in flight.
const DEPTH: usize = 16;
/// Room for the bytes that come during a sync at the fastest link's speed.
const WINDOW_BYTES: u64 = 32 << 20;

/// A link of a network card's speed.
#[derive(Clone, Copy)]
struct LinkSpeed {
    id: &'static str,
    megabits: u64,
    /// Time added to each sync of the log. During one, the link carries more than is in flight.
    log_sync: Duration,
}

impl LinkSpeed {
    const fn new(id: &'static str, megabits: u64, log_sync_ms: u64) -> LinkSpeed {
        let log_sync = Duration::from_millis(log_sync_ms);
        let link = LinkSpeed {
            id,
            megabits,
            log_sync,
        };
        assert!(
            ((DEPTH * LARGE) as u64) < link.bytes_a_sync(),
            "the disk would answer before the link has carried what is under way"
        );
        assert!(
            3 * link.bytes_a_sync() < WINDOW_BYTES,
            "writers would wait for the disk to make room"
        );
        link
    }

    const fn bytes_a_sync(self) -> u64 {
        self.megabits * 1_000_000 / 8 * self.log_sync.as_millis() as u64 / 1_000
    }
}

const LINKS: [LinkSpeed; 3] = [
    LinkSpeed::new("volume-throughput-link", 1_000, 25),
    LinkSpeed::new("volume-throughput-link-2500", 2_500, 25),
    LinkSpeed::new("volume-throughput-link-10000", 10_000, 8),
];

/// All rows that can be measured here.
pub(super) fn rows(
    site: &Testbed,
    effort: VolumeEffort,
    skipped: &mut Vec<String>,
) -> Result<Vec<ScoreboardRow>, BenchError> {
    let mut figures = vec![loopback(site, effort)?];
    for speed in LINKS {
        match link(site, speed, effort) {
            Ok(figure) => figures.push(figure),
            Err(error) => skipped.push(format!(
                "large writes over a link of {} Mbit/s: {error}",
                speed.megabits
            )),
        }
    }
    Ok(figures)
}

/// Throughputs of rounds in MB a second.
struct ThroughputRounds {
    volume_rates: Vec<f64>,
    link_rates: Vec<f64>,
    /// Bytes that crossed the link for each byte written. `None` without a link.
    crossed: Option<f64>,
}

impl ThroughputRounds {
    fn figure(self, id: &'static str, over: &str) -> ScoreboardRow {
        let crossed = self.crossed.map_or(String::new(), |crossed| {
            format!(" ({crossed:.2} bytes crossed for each written)")
        });
        let what = format!(
            "64 KiB writes, {DEPTH} under way, one member, over {over}{crossed}; floor: a bare TCP stream over it"
        );
        let ratios = self.volume_rates.iter().zip(&self.link_rates);
        let ratio = median(ratios.map(|(written, carried)| written / carried).collect());
        let floor = Some(median(self.link_rates));
        let value = median(self.volume_rates);
        ScoreboardRow::new(id, what, "MB/s", value, floor, RatioBound::AtLeast(0.8)).with_ratio(ratio)
    }
}

fn loopback(site: &Testbed, effort: VolumeEffort) -> Result<ScoreboardRow, BenchError> {
    let members = [lender(site, None)?];
    let place = VolumeDirectory::new(site, BYTES, &all(&members))?;
    let measured = measure(site, None, DeviceSource::volume(place.path()), effort)?;
    Ok(measured.figure("volume-throughput", "loopback"))
}

fn link(site: &Testbed, speed: LinkSpeed, effort: VolumeEffort) -> Result<ScoreboardRow, BenchError> {
    let LinkSpeed {
        id,
        megabits,
        log_sync,
    } = speed;
    let network = NamespacePair::new()?;
    network.shape(megabits as u32)?;
    // A thread cannot leave a namespace that it has entered.
    let measured = std::thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            network.enter()?;
            let member = site.remote_lender(&network, spec(None))?;
            let holders = VolumeRedundancy {
                window_bytes: Some(WINDOW_BYTES),
                ..all(std::slice::from_ref(&member))
            };
            let place = VolumeDirectory::new(site, BYTES, &holders)?;
            let slow = SyncDelays {
                journal_us: log_sync.as_micros() as u32,
                files_us: 0,
            };
            let what = DeviceSource::Volume(place.path().to_owned(), slow);
            measure(site, Some(&network), what, effort)
        });
        measuring.join().expect("a measuring thread does not panic")
    })?;
    let over = format!(
        "a link of {megabits} Mbit/s between two network namespaces, on a MODELLED disk of {} ms a sync of the log, so \
         that the member alone answers",
        log_sync.as_millis()
    );
    Ok(measured.figure(id, &over))
}

/// Writes to a volume and a bare stream, in turns.
fn measure(
    site: &Testbed,
    network: Option<&NamespacePair>,
    what: DeviceSource,
    effort: VolumeEffort,
) -> Result<ThroughputRounds, BenchError> {
    let (_sink, address) = SinkServer::start(site, network, None)?;
    let mut volume = NbdServerProcess::start(site, what, None)?;
    let sent = || network.map(NamespacePair::sent_bytes).transpose();
    let (mut written, mut carried, mut crossed) = (vec![], vec![], vec![]);
    for _ in 0..effort.rounds {
        let before = sent()?;
        let wrote = volume
            .client
            .stream_writes(LARGE, SPAN_BYTES, DEPTH, effort.round)?;
        if let (Some(before), Some(after)) = (before, sent()?) {
            crossed.push((after - before) as f64 / wrote.bytes as f64);
        }
        written.push(wrote.per_second() / 1e6);
        carried.push(sink::stream(&address, effort.round)? / 1e6);
    }
    Ok(ThroughputRounds {
        volume_rates: written,
        link_rates: carried,
        crossed: (!crossed.is_empty()).then(|| median(crossed)),
    })
}
