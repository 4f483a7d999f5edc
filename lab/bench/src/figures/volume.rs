//! Bounds of a volume: writes and reads through NBD, throughput of a link, more lenders, a lost lender,
//! memory.
//!
//! The server's connections are served on the second core. Client and lender share the first, because one of
//! them always waits for the other. Floors are measured in the same rounds.

use std::path::Path;
use std::time::{Duration, Instant};

use netram_proto::journal::{CommitRule, WriterTimings};
use netram_proto::limit::MEMBERS_MAX;
use netram_transport::WaitPolicy;

use super::{RatioBound, ScoreboardRow, throughput};
use crate::echo::{self, EchoClient, EchoServer, ExchangeSizes};
use crate::error::{BenchError, ErrorContext};
use crate::histogram::{LatencyRecorder, LatencySummary, median};
use crate::machine::CorePin;
use crate::socket::PollPause;
use crate::testbed::{CoreAssignment, LenderProcess, LenderSpec, SocketKind, Testbed};
use crate::tool::tool;
use crate::volume::flood::FloodJob;
use crate::volume::nbd::NbdClient;
use crate::volume::serve::{DeviceSource, NbdServerProcess};
use crate::volume::{VolumeDirectory, VolumeRedundancy, free_group};

/// Size of a measured volume in bytes.
pub(super) const BYTES: u64 = 512 << 20;
/// Span in bytes that synchronous writes overwrite repeatedly, more than the stages hold.
pub(super) const SPAN_BYTES: u64 = 128 << 20;
/// Span in bytes of the reads; it is in the page cache.
const READ_SPAN_BYTES: u64 = 64 << 20;
const BLOCK: usize = 4096;
pub(super) const LARGE: usize = 64 << 10;
/// Bytes of a write's record before its data: the offset.
const WRITE_HEADER_BYTES: usize = 8;
const SLOW_SYNC_US: u32 = 1_000;

#[derive(Clone, Copy)]
pub(super) struct VolumeEffort {
    pub(super) rounds: usize,
    pub(super) round: Duration,
}

/// All rows that can be measured here.
pub(super) fn volumes(
    site: &Testbed,
    quick: bool,
    tell: &mut dyn FnMut(&str),
    skipped: &mut Vec<String>,
) -> Result<Vec<ScoreboardRow>, BenchError> {
    let effort = match quick {
        true => VolumeEffort {
            rounds: 2,
            round: Duration::from_millis(200),
        },
        false => VolumeEffort {
            rounds: 5,
            round: Duration::from_millis(800),
        },
    };
    let mut figures = Vec::new();
    tell("synchronous writes to a volume through NBD");
    figures.extend(writes(site, effort)?);
    tell("reads of a volume");
    figures.extend(reads(site, effort)?);
    tell("what a link carries, and large writes over it");
    figures.extend(throughput::rows(site, effort, skipped)?);
    let mut by_multicast = |what: &str, rows: Result<Vec<ScoreboardRow>, BenchError>| match rows {
        Ok(rows) => figures.extend(rows),
        Err(error) => skipped.push(format!("{what}: {error}")),
    };
    tell("writes with two to four lenders by multicast");
    by_multicast("more lenders by multicast", more_lenders(site, effort));
    tell("writes by multicast and by TCP, with two to four lenders");
    by_multicast("multicast beside TCP", beside_tcp(site, effort));
    tell("loss of a lender during writes to a volume");
    figures.extend(losses(site)?);
    tell("the memory of a flooded volume");
    figures.extend(memory(site, quick)?);
    Ok(figures)
}

pub(super) fn lender(site: &Testbed, core: Option<usize>) -> Result<LenderProcess, BenchError> {
    site.lender(spec(core))
}

pub(super) fn spec(core: Option<usize>) -> LenderSpec {
    LenderSpec {
        wire: SocketKind::Tcp,
        secure: true,
        wait: WaitPolicy::default(),
        core,
    }
}

/// A redundancy in which all lenders are members.
pub(super) fn all(lenders: &[LenderProcess]) -> VolumeRedundancy {
    VolumeRedundancy {
        lenders: lenders.iter().map(|one| one.address().clone()).collect(),
        ..VolumeRedundancy::default()
    }
}

fn read_round(client: &mut NbdClient, bytes: usize, time: Duration) -> Result<LatencySummary, BenchError> {
    let mut into = vec![0; bytes];
    let mut recorder = LatencyRecorder::start(&[]);
    // A step that visits every block before it visits one twice.
    let step = 4099 * bytes as u64;
    let (mut at, end) = (0, Instant::now() + time);
    loop {
        let began = Instant::now();
        if began >= end {
            return Ok(recorder.finish());
        }
        client.read(at, &mut into)?;
        recorder.record(began.elapsed());
        at = (at + step) % READ_SPAN_BYTES;
    }
}

/// A file of zeros with all its blocks allocated.
fn plain_file(site: &Testbed, bytes: u64) -> Result<std::path::PathBuf, BenchError> {
    let path = site.directory().join(format!("plain-{}", site.number()));
    crate::paper::testbed::write_in_full(&path, bytes)?;
    Ok(path)
}

fn writes(site: &Testbed, effort: VolumeEffort) -> Result<Vec<ScoreboardRow>, BenchError> {
    let seats = CoreAssignment::find();
    let lenders = [lender(site, Some(seats.client()))?];
    let place = VolumeDirectory::new(site, BYTES, &all(&lenders))?;
    let slow = plain_file(site, SPAN_BYTES)?;
    let server = seats.lender(0);
    let mut volume = NbdServerProcess::start(site, DeviceSource::volume(place.path()), server)?;
    let mut empty = NbdServerProcess::start(site, DeviceSource::Memory(SPAN_BYTES), server)?;
    let mut disk = NbdServerProcess::start(site, DeviceSource::File(slow.clone(), SLOW_SYNC_US), server)?;
    let echo = EchoServer {
        listen: site.listen(SocketKind::Tcp).to_string(),
        exchange: ExchangeSizes::of_commit(WRITE_HEADER_BYTES + BLOCK, true),
        core: server,
        pause: PollPause::Spin,
        asks: None,
    };
    let pinger = [EchoClient::start(site.program(), echo, site.directory(), Ok)?];
    let _pinned = CorePin::to(seats.client())?;
    let (mut values, mut floors, mut ratios) = (vec![], vec![], vec![]);
    for _ in 0..effort.rounds {
        let written = volume
            .client
            .write_for(effort.round, BLOCK, SPAN_BYTES, false)?
            .p50_us;
        let nbd = empty
            .client
            .write_for(effort.round, BLOCK, SPAN_BYTES, false)?
            .p50_us;
        let member = echo::round(&pinger, effort.round)?.p50_us;
        values.push(written);
        floors.push(nbd + member);
        ratios.push(written / (nbd + member));
    }
    let what = "4 KiB synchronous write to a volume through NBD, one member, encrypted; floor: the same to an empty \
                server of memory, and a bare TCP exchange of the record";
    let (value, floor) = (median(values), Some(median(floors)));
    let figure = ScoreboardRow::new(
        "volume-write-4k",
        what.to_owned(),
        "us p50",
        value,
        floor,
        RatioBound::AtMost(1.3),
    );
    let mut figures = vec![figure.with_ratio(median(ratios))];
    for (id, bytes) in [("volume-write-512-1ms", 512), ("volume-write-2k-1ms", 2048)] {
        let written = volume
            .client
            .write_for(effort.round, bytes, SPAN_BYTES, false)?
            .p50_us;
        let waited = disk
            .client
            .write_for(effort.round, bytes, SPAN_BYTES, true)?
            .p50_us;
        let what =
            format!("{bytes} B synchronous write; floor: to a file on a MODELLED disk with 1 ms syncs");
        figures.push(ScoreboardRow::faster(id, what, "us p50", written, waited, 10.0));
    }
    drop((volume, disk));
    std::fs::remove_file(slow).context("remove a file")?;
    Ok(figures)
}

/// The same image twice: behind the volume, and as a file.
fn reads(site: &Testbed, effort: VolumeEffort) -> Result<Vec<ScoreboardRow>, BenchError> {
    let seats = CoreAssignment::find();
    let place = VolumeDirectory::new(site, BYTES, &VolumeRedundancy::default())?;
    let volume = DeviceSource::volume(place.path());
    let mut filling = NbdServerProcess::start(site, volume.clone(), None)?;
    let data = vec![0xa5; 1 << 20];
    for at in (0..READ_SPAN_BYTES).step_by(data.len()) {
        filling.client.write(at, &data, false)?;
    }
    // After a reopening everything is in the image.
    drop(filling);
    let mut volume = NbdServerProcess::start(site, volume, seats.lender(0))?;
    let image = place.path().join("image");
    let mut plain = NbdServerProcess::start(site, DeviceSource::File(image, 0), seats.lender(0))?;
    let _pinned = CorePin::to(seats.client())?;
    let mut figures = Vec::new();
    for (id, bytes) in [("volume-read-4k", BLOCK), ("volume-read-64k", LARGE)] {
        let (mut values, mut floors, mut ratios) = (vec![], vec![], vec![]);
        for _ in 0..effort.rounds {
            let read = read_round(&mut volume.client, bytes, effort.round)?.p50_us;
            let floor = read_round(&mut plain.client, bytes, effort.round)?.p50_us;
            values.push(read);
            floors.push(floor);
            ratios.push(read / floor);
        }
        let what = format!(
            "read of {bytes} B of a volume through NBD; floor: of its image as a plain file, cached too"
        );
        let floor = Some(median(floors));
        let figure = ScoreboardRow::new(id, what, "us p50", median(values), floor, RatioBound::AtMost(1.1));
        figures.push(figure.with_ratio(median(ratios)));
    }
    Ok(figures)
}

/// Maximum number of lenders that a multicast is measured with.
const MULTICAST_LENDERS_MAX: usize = 4;
const _: () = assert!(MULTICAST_LENDERS_MAX <= MEMBERS_MAX);

/// The same volume with two, three and four lenders, any of which suffices.
fn more_lenders(site: &Testbed, effort: VolumeEffort) -> Result<Vec<ScoreboardRow>, BenchError> {
    let group = free_group()?;
    let lenders: Result<Vec<LenderProcess>, BenchError> = (0..MULTICAST_LENDERS_MAX)
        .map(|_| site.multicast_lender(spec(None), &group))
        .collect();
    let lenders = lenders?;
    let mut served = Vec::new();
    for count in 2..=MULTICAST_LENDERS_MAX {
        let holders = VolumeRedundancy {
            rule: Some(CommitRule::Any),
            group: Some(group.clone()),
            ..all(&lenders[..count])
        };
        let place = VolumeDirectory::new(site, BYTES, &holders)?;
        let volume = NbdServerProcess::start(site, DeviceSource::volume(place.path()), None)?;
        served.push((volume, place));
    }
    let mut values = vec![Vec::new(); served.len()];
    for _ in 0..effort.rounds {
        for ((volume, _), values) in served.iter_mut().zip(&mut values) {
            values.push(
                volume
                    .client
                    .write_for(effort.round, BLOCK, SPAN_BYTES, false)?
                    .p50_us,
            );
        }
    }
    check_all_received(site, &lenders, &vec![0; lenders.len()])?;
    let floor = median(values[0].clone());
    let rows = [("volume-lenders-3", 1), ("volume-lenders-4", 2)].map(|(id, index)| {
        let count = index + 2;
        let what =
            format!("4 KiB writes by multicast to {count} lenders, any of which suffices; floor: to two");
        let ratios = values[index].iter().zip(&values[0]).map(|(more, two)| more / two);
        let ratio = median(ratios.collect());
        let value = median(values[index].clone());
        ScoreboardRow::new(id, what, "us p50", value, Some(floor), RatioBound::AtMost(1.1)).with_ratio(ratio)
    });
    Ok(rows.into())
}

/// Number of multicast appends that each lender has received.
fn datagrams(site: &Testbed, lenders: &[LenderProcess]) -> Result<Vec<u64>, BenchError> {
    let program = site.program().display().to_string();
    let key = site.key_file().display().to_string();
    let addresses = lenders.iter().map(|lender| lender.address().to_string());
    addresses
        .map(|address| {
            let said = tool(
                &program,
                &["lender", "status", &address, "--key-file", &key, "--json"],
            )?;
            let said: serde_json::Value = serde_json::from_str(&said).context("read a lender's status")?;
            let heard = said[0]["report"]["counters"]["datagrams"].as_u64();
            heard.ok_or_else(|| {
                BenchError::InvalidRequest(format!(
                    "the status of {address} has no count of received datagrams"
                ))
            })
        })
        .collect()
}

/// Checks that every lender received more than `before`; otherwise the measurement was of TCP.
fn check_all_received(site: &Testbed, lenders: &[LenderProcess], before: &[u64]) -> Result<(), BenchError> {
    for ((heard, before), lender) in datagrams(site, lenders)?.iter().zip(before).zip(lenders) {
        if heard <= before {
            let address = lender.address();
            return Err(BenchError::InvalidRequest(format!(
                "{address} received no datagram: multicast does not work on this machine"
            )));
        }
    }
    Ok(())
}

/// Multicast beside TCP with the same lenders: a row for each rule and each number of them. A single lender
/// gets no multicast.
fn beside_tcp(site: &Testbed, effort: VolumeEffort) -> Result<Vec<ScoreboardRow>, BenchError> {
    const IDS: [[&str; 3]; 2] = [
        ["volume-cast-all-2", "volume-cast-all-3", "volume-cast-all-4"],
        ["volume-cast-any-2", "volume-cast-any-3", "volume-cast-any-4"],
    ];
    let group = free_group()?;
    let mut figures = Vec::new();
    for (index, count) in (2..=MULTICAST_LENDERS_MAX).enumerate() {
        // New lenders, because windows of volumes measured before stay with theirs.
        let lenders: Result<Vec<LenderProcess>, BenchError> = (0..count)
            .map(|_| site.multicast_lender(spec(None), &group))
            .collect();
        let lenders = lenders?;
        for (rule, ids) in [CommitRule::All, CommitRule::Any].into_iter().zip(IDS) {
            let mut served = Vec::new();
            for group in [None, Some(group.clone())] {
                let holders = VolumeRedundancy {
                    rule: Some(rule),
                    group,
                    ..all(&lenders)
                };
                let place = VolumeDirectory::new(site, BYTES, &holders)?;
                let volume = NbdServerProcess::start(site, DeviceSource::volume(place.path()), None)?;
                served.push((volume, place));
            }
            let before = datagrams(site, &lenders)?;
            let mut values = [Vec::new(), Vec::new()];
            for _ in 0..effort.rounds {
                for ((volume, _), values) in served.iter_mut().zip(&mut values) {
                    let client = &mut volume.client;
                    values.push(client.write_for(effort.round, BLOCK, SPAN_BYTES, false)?.p50_us);
                }
            }
            check_all_received(site, &lenders, &before)?;
            let [tcp, cast] = values;
            let ratio = median(cast.iter().zip(&tcp).map(|(cast, tcp)| cast / tcp).collect());
            let what = format!(
                "4 KiB writes by multicast, lenders: {}, rule {rule}; floor: over TCP to the same",
                lenders.len()
            );
            let (value, floor) = (median(cast), median(tcp));
            let figure = ScoreboardRow::new(
                ids[index],
                what,
                "us p50",
                value,
                Some(floor),
                RatioBound::AtMost(1.1),
            );
            figures.push(figure.with_ratio(ratio));
        }
    }
    Ok(figures)
}

const BEFORE: Duration = Duration::from_millis(300);
const AFTER: Duration = Duration::from_millis(2_500);

/// Two members and a spare; one is stopped or killed. An I/O error would end the measurement.
fn losses(site: &Testbed) -> Result<Vec<ScoreboardRow>, BenchError> {
    let detect_ms = WriterTimings::default().detect.ms() as f64;
    [("volume-stall-stopped", false), ("volume-stall-killed", true)]
        .into_iter()
        .map(|(id, killed)| {
            let stall_ms = stall(site, killed)?;
            let how = if killed { "is killed" } else { "falls silent" };
            let what =
                format!("longest 4 KiB write to a volume while a member {how}; floor: the detection timeout");
            let floor = Some(detect_ms);
            Ok(ScoreboardRow::new(
                id,
                what,
                "ms",
                stall_ms,
                floor,
                RatioBound::AtMost(3.0),
            ))
        })
        .collect()
}

fn stall(site: &Testbed, killed: bool) -> Result<f64, BenchError> {
    let lenders: Result<Vec<LenderProcess>, BenchError> = (0..3).map(|_| lender(site, None)).collect();
    let mut lenders = lenders?;
    let holders = VolumeRedundancy {
        members: Some(2),
        ..all(&lenders)
    };
    let place = VolumeDirectory::new(site, BYTES, &holders)?;
    let mut volume = NbdServerProcess::start(site, DeviceSource::volume(place.path()), None)?;
    volume.client.write_for(BEFORE, BLOCK, SPAN_BYTES, false)?;
    let first = lenders.remove(0);
    let silent = match killed {
        true => {
            first.kill();
            None
        }
        false => {
            first.child().pause()?;
            Some(first)
        }
    };
    let after = volume.client.write_for(AFTER, BLOCK, SPAN_BYTES, false)?;
    // A stopped process need not be waited for.
    silent.map_or(Ok(()), |lender| lender.child().resume())?;
    Ok(after.max_us / 1e3)
}

/// One open stage, the closed ones, as much kept for the next, and a record that exceeds each threshold.
fn stages_bytes_max() -> u64 {
    let policy = netram_block::StagePolicy::default();
    let stages = policy.closed_max as u64 + 2;
    stages * (policy.bytes + netram_block::limit::RECORD_DATA_BYTES_MAX as u64 + BLOCK as u64)
}

/// Memory beside the stages: the journal's ring, mapped twice, and the applier's buffers.
const OTHER_BYTES: u64 = (16 << 20) + (8 << 20);

fn memory(site: &Testbed, quick: bool) -> Result<Vec<ScoreboardRow>, BenchError> {
    let lenders = [lender(site, None)?];
    let place = VolumeDirectory::new(site, BYTES, &all(&lenders))?;
    let time = Duration::from_millis(if quick { 1_500 } else { 6_000 });
    let flooded = FloodJob::measure(site, Path::new(place.path()), time)?;
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let limit = stages_bytes_max();
    let what = format!(
        "memory of a volume's stages under a flood of {:.0} MB of random writes ({} waits for the image); floor: their limit",
        mb(flooded.written),
        flooded.stalls
    );
    let stages = ScoreboardRow::new(
        "volume-memory-stages",
        what,
        "MB",
        mb(flooded.memory_bytes_max),
        Some(mb(limit)),
        RatioBound::AtMost(1.0),
    );
    let what = "how much the process grew meanwhile; floor: that limit, the journal's ring and the applier's buffers";
    let grown = ScoreboardRow::new(
        "volume-memory-process",
        what.to_owned(),
        "MB",
        mb(flooded.grown_bytes),
        Some(mb(limit + OTHER_BYTES)),
        RatioBound::AtMost(1.0),
    );
    Ok(vec![stages, grown])
}
