//! Machines of today, and this one: what a page and a word take over its network is measured, and what its
//! disk takes.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::thread;
use std::time::Instant;

use netram_far_machine::paging::PolicyKind;
use netram_pagesim::MachineCosts;
use netram_pagesim::costs::MACHINES;
use serde::Serialize;

use super::programs::{MascotsWorkload, WorkloadResult};
use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;
use crate::socket::{PollPause, RawListener, RawSocket};
use crate::testbed::Testbed;

const PAGE: usize = 4096;
const WORD: usize = 8;
/// Bytes of a request: which page or word.
const REQUEST: usize = 16;
/// Pages of the file that is read: more than a disk's own cache has, as far as that can be known.
const FILE_PAGES: u64 = 32_768;
/// Cycles a second, to have all machines in one unit.
const CLOCK: f64 = 3e9;
/// Seconds of a fault that the program's own handler serves (`userfaultfd`), measured for the pager: the
/// page's way not counted.
const FAULT: f64 = 7.6e-6;

/// What was measured of this machine, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AccessTimes {
    /// A page of 4 KiB from another thread, over TCP on the loopback; both sides wait spinning. Half of the
    /// pages go, half come: one costs as much as the other.
    pub page_us: f64,
    /// A word the same way.
    pub word_us: f64,
    /// A page of 4 KiB from the disk, not from its cache in memory.
    pub disk_us: f64,
}

/// A program on a machine of today.
#[derive(Clone, Debug, Serialize)]
pub struct TodayRow {
    /// The machine's name.
    pub machine: &'static str,
    /// The program.
    pub workload: MascotsWorkload,
    /// Nanoseconds of an average reference: DISK, RAM_DISK, REMOTE_MAIN, COUNTERS with the best initial
    /// counter.
    pub ns: [f64; 4],
    /// That counter.
    pub initial: u32,
}

/// Measures.
pub fn measure(site: &Testbed, quick: bool) -> Result<AccessTimes, BenchError> {
    let rounds = if quick { 3 } else { 9 };
    Ok(AccessTimes {
        page_us: exchange(rounds, PAGE)?,
        word_us: exchange(rounds, WORD)?,
        disk_us: disk(site, rounds)?,
    })
}

/// The median microseconds of a request and an answer of so many bytes.
fn exchange(rounds: usize, answer: usize) -> Result<f64, BenchError> {
    const TIMES: usize = 500;
    let gate = RawListener::open(&"tcp://127.0.0.1:0".parse().context("name a socket")?)?;
    let address = gate.address()?;
    let lender = thread::spawn(move || -> Result<(), BenchError> {
        let socket = gate.accept()?;
        let (mut request, page) = ([0; REQUEST], vec![7; answer]);
        // It is asked until the other side ends.
        while socket.receive_all(&mut request, PollPause::Yield)? {
            socket.send_all(&page)?;
        }
        Ok(())
    });
    let socket = RawSocket::connect(&address)?;
    let mut page = vec![0; answer];
    let mut each = Vec::new();
    for _ in 0..rounds {
        let began = Instant::now();
        for _ in 0..TIMES {
            socket.send_all(&[1; REQUEST])?;
            socket.receive_all(&mut page, PollPause::Yield)?;
        }
        each.push(began.elapsed().as_secs_f64() * 1e6 / TIMES as f64);
    }
    socket.end()?;
    drop(socket);
    match lender.join() {
        Ok(served) => served?,
        Err(_) => {
            return Err(BenchError::InvalidRequest(
                "the thread that answers has panicked".to_owned(),
            ));
        }
    }
    Ok(median(each))
}

/// The median microseconds of a page that is read from the disk, past the cache where the file system allows
/// that.
fn disk(site: &Testbed, rounds: usize) -> Result<f64, BenchError> {
    const TIMES: u64 = 64;
    let path = site.directory().join("pages");
    let made = make(&path).and_then(|()| {
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(direct).open(&path);
        let file = match file {
            Ok(file) => file,
            // tmpfs of older kernels has no such thing, and no disk either.
            Err(_) => File::open(&path).context("open a file of pages")?,
        };
        let mut buffer = vec![0_u8; 2 * PAGE];
        let start = buffer.as_ptr().align_offset(PAGE);
        let (mut each, mut state) = (Vec::new(), 1_u64);
        for _ in 0..rounds {
            let began = Instant::now();
            for _ in 0..TIMES {
                state = state
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let place = (state >> 33) % FILE_PAGES * PAGE as u64;
                let page = &mut buffer[start..start + PAGE];
                file.read_exact_at(page, place).context("read a page")?;
            }
            each.push(began.elapsed().as_secs_f64() * 1e6 / TIMES as f64);
        }
        Ok(median(each))
    });
    std::fs::remove_file(&path).context("remove a file of pages")?;
    made
}

fn make(path: &std::path::Path) -> Result<(), BenchError> {
    let file = File::create(path).context("make a file of pages")?;
    let block = vec![5; 1 << 20];
    for place in (0..FILE_PAGES * PAGE as u64).step_by(block.len()) {
        file.write_all_at(&block, place).context("fill a file of pages")?;
    }
    file.sync_all().context("sync a file of pages")
}

/// The costs of a machine whose network and disk take so many microseconds a page.
fn of_measured(measured: &AccessTimes) -> MachineCosts {
    let page = PAGE as f64;
    MachineCosts {
        clock_hz: CLOCK,
        local_word: 1.0,
        remote_word: measured.word_us * 1e-6 * CLOCK,
        overhead: FAULT * CLOCK,
        // All of it is in the latency.
        network_rate: f64::INFINITY,
        network_latency: measured.page_us * 1e-6,
        disk_rate: f64::INFINITY,
        disk_latency: measured.disk_us * 1e-6,
        page_bytes: page,
    }
}

/// Each program on each machine.
pub fn today(ran: &[WorkloadResult], measured: &AccessTimes) -> Vec<TodayRow> {
    let presets = MACHINES
        .iter()
        .skip(1)
        .map(|machine| (machine.name, machine.costs));
    let machines = presets.chain([("this one", of_measured(measured))]);
    let on = |(machine, costs): (&'static str, MachineCosts)| {
        let row = move |one: &WorkloadResult| {
            let ns = |kind| one.today(kind, &costs) / costs.clock_hz * 1e9;
            let counters = one
                .initials()
                .into_iter()
                .map(|initial| (initial, ns(PolicyKind::Counters { initial })));
            let best = counters.min_by(|one, other| one.1.total_cmp(&other.1));
            let (initial, best) = best.unwrap_or((0, f64::NAN));
            TodayRow {
                machine,
                workload: one.workload,
                ns: [
                    ns(PolicyKind::Disk),
                    ns(PolicyKind::RamDisk),
                    ns(PolicyKind::RemoteMain),
                    best,
                ],
                initial,
            }
        };
        ran.iter().map(row).collect::<Vec<TodayRow>>()
    };
    machines.flat_map(on).collect()
}
