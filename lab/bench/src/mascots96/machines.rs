//! Today's machines, and this one, whose times for a page and a word over the network, and for its disk, are
//! measured.

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
/// Size of a request in bytes, which names a page or word.
const REQUEST: usize = 16;
/// Number of pages of the file that is read: probably more than the disk's own cache holds.
const FILE_PAGES: u64 = 32_768;
/// Cycles per second that all machines' times are converted to.
const CLOCK: f64 = 3e9;
/// Seconds of a fault that the program's own handler serves (`userfaultfd`), as measured for the pager,
/// without the page's transfer.
const FAULT: f64 = 7.6e-6;

/// Measured times of this machine, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct AccessTimes {
    /// A page of 4 KiB from another thread over TCP on the loopback, both sides spinning. Half of the pages
    /// are sent, half received, which costs the same.
    pub page_us: f64,
    /// A word the same way.
    pub word_us: f64,
    /// A page of 4 KiB from the disk, not from its cache in memory.
    pub disk_us: f64,
}

/// One program on one of today's machines.
#[derive(Clone, Debug, Serialize)]
pub struct TodayRow {
    /// Name of the machine.
    pub machine: &'static str,
    /// The program.
    pub workload: MascotsWorkload,
    /// Nanoseconds of an average reference under DISK, RAM_DISK, REMOTE_MAIN, and COUNTERS with the best
    /// initial counter.
    pub ns: [f64; 4],
    /// The best initial counter.
    pub initial: u32,
}

/// Measures the access times of this machine.
///
/// # Errors
///
/// Fails if the loopback or a file cannot be used.
pub fn measure(site: &Testbed, quick: bool) -> Result<AccessTimes, BenchError> {
    let rounds = if quick { 3 } else { 9 };
    Ok(AccessTimes {
        page_us: exchange(rounds, PAGE)?,
        word_us: exchange(rounds, WORD)?,
        disk_us: disk(site, rounds)?,
    })
}

/// Median microseconds of a request and an answer of `answer` bytes.
fn exchange(rounds: usize, answer: usize) -> Result<f64, BenchError> {
    const TIMES: usize = 500;
    let gate = RawListener::open(&"tcp://127.0.0.1:0".parse().context("name a socket")?)?;
    let address = gate.address()?;
    let lender = thread::spawn(move || -> Result<(), BenchError> {
        let socket = gate.accept()?;
        let (mut request, page) = ([0; REQUEST], vec![7; answer]);
        // Requests come until the other side ends.
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
                "the answering thread panicked".to_owned(),
            ));
        }
    }
    Ok(median(each))
}

/// Median microseconds of reading a page from the disk, without the page cache where the file system allows
/// that.
fn disk(site: &Testbed, rounds: usize) -> Result<f64, BenchError> {
    const TIMES: u64 = 64;
    let path = site.directory().join("pages");
    let made = make(&path).and_then(|()| {
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(direct).open(&path);
        let file = match file {
            Ok(file) => file,
            // tmpfs of older kernels cannot bypass the cache, and has no disk either.
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

/// Costs of a machine whose network and disk take these times for a page.
fn of_measured(measured: &AccessTimes) -> MachineCosts {
    let page = PAGE as f64;
    MachineCosts {
        clock_hz: CLOCK,
        local_word: 1.0,
        remote_word: measured.word_us * 1e-6 * CLOCK,
        overhead: FAULT * CLOCK,
        // The latency has all of it.
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
