//! A page at a lender: missed by a reference, beside a minimal pager; and pages read in order, beside the
//! bare link.

use std::time::{Duration, Instant};

use netram_far::{BarePager, WordAccess};
use netram_far_machine::limit::PAGE_BYTES;
use netram_transport::{NetAddress, WaitPolicy};

use super::words::{FilledVector, copies_in_words, fill_vector, page_lenders, value};
use super::{RatioBound, ScoreboardRow};
use crate::delay::DelayProxy;
use crate::echo::{EchoClient, EchoServer, ExchangeSizes};
use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;
use crate::socket::{PollPause, RawSocket};
use crate::testbed::{LenderProcess, Testbed};

const MEMORY: &str = "160MiB";
/// Number of pages, and of local ones.
const PAGES: usize = 16 << 10;
const LOCAL: usize = PAGES / 4;
/// Number of values in a page.
const VALUES: usize = PAGE_BYTES / 8;
const ROUNDS: usize = 5;
/// References to random pages in one round.
const REFERENCES: usize = 6000;
/// Number of threads that fault at once.
const THREADS: usize = 4;
/// Minimum time of a missed reference. A reference to a hidden local page may take as long; those are some
/// hundredths of all.
const MISS_TIME_MIN: Duration = Duration::from_micros(3);
/// Size of a bare request for a page, in bytes.
const REQUEST_BYTES: usize = 32;
/// Bytes of one answer on the bare link; two are requested ahead.
const STREAM_BYTES: usize = 1 << 20;
const AHEAD: usize = 2;

/// Median time, in µs, of missed references to random pages. `read` returns a page's first value.
fn faults(
    seed: u64,
    read: impl Fn(usize) -> u64,
    expected: impl Fn(usize) -> u64,
) -> Result<f64, BenchError> {
    let mut state = seed;
    let mut missed = Vec::with_capacity(REFERENCES);
    for _ in 0..REFERENCES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let page = (state >> 33) as usize % PAGES;
        let began = Instant::now();
        let found = read(page);
        let took = began.elapsed();
        if found != expected(page) {
            return Err(BenchError::InvalidRequest(format!(
                "page {page} is not what was written"
            )));
        }
        if took >= MISS_TIME_MIN {
            missed.push(took.as_secs_f64() * 1e6);
        }
    }
    Ok(median(missed))
}

/// A process that sends the requested number of bytes, and a connection to it.
fn page_sender(
    site: &Testbed,
    reply: usize,
    through: impl FnOnce(NetAddress) -> Result<NetAddress, BenchError>,
) -> Result<(EchoClient, RawSocket), BenchError> {
    let echo = EchoServer {
        listen: "tcp://127.0.0.1:0".to_owned(),
        exchange: ExchangeSizes {
            request: REQUEST_BYTES,
            reply,
        },
        core: None,
        pause: PollPause::Yield,
        asks: None,
    };
    let pinger = EchoClient::start(site.program(), echo, site.directory(), through)?;
    let socket = RawSocket::connect(pinger.address())?;
    Ok((pinger, socket))
}

/// References to random pages per second, by some threads at once.
fn references(values: &[u64], threads: usize, seed: u64) -> Result<f64, BenchError> {
    let began = Instant::now();
    let read = |thread: usize| {
        let mut state = seed << 8 | thread as u64;
        (0..REFERENCES / threads).all(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let first = (state >> 33) as usize % PAGES * VALUES;
            values[first] == value(first)
        })
    };
    let right = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || read(thread)))
            .collect();
        { started.into_iter() }.all(|thread| thread.join().unwrap_or(false))
    });
    if !right {
        return Err(BenchError::InvalidRequest(
            "a thread found a value that was not written".to_owned(),
        ));
    }
    Ok((REFERENCES / threads * threads) as f64 / began.elapsed().as_secs_f64())
}

fn threads(filled: &FilledVector, id: &'static str, copies: &str) -> Result<ScoreboardRow, BenchError> {
    let values = filled.vec.as_slice();
    let (mut ones, mut fours, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        let one = references(values, 1, 2 * round)?;
        let four = references(values, THREADS, 2 * round + 1)?;
        ratios.push(four / one);
        ones.push(one);
        fours.push(four);
    }
    let what = format!(
        "references to random pages by {THREADS} threads at once, a quarter local, {copies}; floor: by one thread"
    );
    let (value, floor) = (median(fours), Some(median(ones)));
    let figure = ScoreboardRow::new(id, what, "refs/s", value, floor, RatioBound::AtLeast(1.5));
    Ok(figure.with_ratio(median(ratios)))
}

fn fault(
    site: &Testbed,
    filled: &FilledVector,
    id: &'static str,
    copies: &str,
) -> Result<ScoreboardRow, BenchError> {
    let (_pinger, socket) = page_sender(site, PAGE_BYTES, Ok)?;
    let pager = BarePager::open(PAGES, WaitPolicy::default(), move |page, bytes| {
        let came = socket.send_all(&[0; REQUEST_BYTES]).is_ok()
            && matches!(socket.receive_all(bytes, PollPause::Yield), Ok(true));
        // The page's number, so that a misplaced page is found.
        bytes[..8].copy_from_slice(&value(page).to_ne_bytes());
        came
    });
    let pager = pager.context("open the barest pager")?;
    let values = filled.vec.as_slice();
    let (mut arenas, mut bares, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        pager.empty().context("empty the barest pager")?;
        let bare = faults(round, |page| pager.first(page), value)?;
        let arena = faults(round, |page| values[page * VALUES], |page| value(page * VALUES))?;
        ratios.push(arena / bare);
        arenas.push(arena);
        bares.push(bare);
    }
    let what = format!(
        "a fault on a page at a lender, a quarter local, {copies}, encrypted; floor: the barest pager and a bare TCP exchange \
         of a page"
    );
    let floor = Some(median(bares));
    let figure = ScoreboardRow::new(id, what, "us p50", median(arenas), floor, RatioBound::AtMost(1.3));
    Ok(figure.with_ratio(median(ratios)))
}

/// MB per second of all pages read in order, counting those that came from the lender.
fn scan(filled: &FilledVector) -> Result<f64, BenchError> {
    let fetched = || {
        let tally = filled.arena.status().tally;
        tally.fetched + tally.ahead
    };
    let (before, began) = (fetched(), Instant::now());
    for (index, found) in filled.vec.as_slice().iter().enumerate() {
        if *found != value(index) {
            return Err(BenchError::InvalidRequest(format!(
                "value {index} is not what was written"
            )));
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    Ok((fetched() - before) as f64 * PAGE_BYTES as f64 / seconds / 1e6)
}

/// MB per second of as many bytes over a bare connection, without use of them.
fn stream(socket: &RawSocket) -> Result<f64, BenchError> {
    let mut bytes = vec![0; STREAM_BYTES];
    let replies = PAGES * PAGE_BYTES / STREAM_BYTES;
    let began = Instant::now();
    for reply in 0..replies + AHEAD {
        if reply < replies {
            socket.send_all(&[0; REQUEST_BYTES])?;
        }
        if reply >= AHEAD && !socket.receive_all(&mut bytes, PollPause::Yield)? {
            return Err(BenchError::InvalidRequest("the bare link was closed".to_owned()));
        }
    }
    Ok((replies * STREAM_BYTES) as f64 / began.elapsed().as_secs_f64() / 1e6)
}

/// A scan over loopback, or over a link with limited throughput.
fn scanned(
    site: &Testbed,
    filled: &FilledVector,
    (id, megabits): (&'static str, Option<u32>),
    copies: &str,
) -> Result<ScoreboardRow, BenchError> {
    let mut narrow = None;
    let (_pinger, socket) = page_sender(site, STREAM_BYTES, |address| match megabits {
        None => Ok(address),
        Some(megabits) => {
            let (child, address) = DelayProxy::narrow(site.program(), &address, megabits, site.directory())?;
            narrow = Some(child);
            Ok(address)
        }
    })?;
    let (mut scans, mut streams, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let bare = stream(&socket)?;
        let scan = scan(filled)?;
        ratios.push(scan / bare);
        scans.push(scan);
        streams.push(bare);
    }
    drop(narrow);
    let link = match megabits {
        None => "over loopback".to_owned(),
        Some(megabits) => format!("over a MODELLED link of {megabits} Mbit/s"),
    };
    let what = format!(
        "pages at a lender read one after the other, a quarter local, {copies}, {link}; floor: the bare link"
    );
    let (value, floor) = (median(scans), Some(median(streams)));
    let figure = ScoreboardRow::new(id, what, "MB/s", value, floor, RatioBound::AtLeast(0.7));
    Ok(figure.with_ratio(median(ratios)))
}

/// Ids of the rows over loopback with one copy of each page, and with two.
const IDS: [[&str; 3]; 2] = [
    ["far-fault", "far-fault-threads", "far-scan"],
    [
        "far-fault-2-copies",
        "far-fault-threads-2-copies",
        "far-scan-2-copies",
    ],
];

pub(super) fn pages(site: &Testbed, skipped: &mut Vec<String>) -> Result<Vec<ScoreboardRow>, BenchError> {
    let table = (PAGES * VALUES, (LOCAL * PAGE_BYTES) as u64);
    let access = (WordAccess::Never, true);
    let mut figures = Vec::new();
    for (index, ids) in IDS.iter().enumerate() {
        let lenders = page_lenders(site, index + 1, MEMORY)?;
        let addresses: Vec<&NetAddress> = lenders.iter().map(LenderProcess::address).collect();
        let Some(filled) = fill_vector(site, &addresses, table, access, skipped)? else {
            return Ok(figures);
        };
        let copies = copies_in_words(lenders.len());
        figures.push(fault(site, &filled, ids[0], copies)?);
        figures.push(threads(&filled, ids[1], copies)?);
        figures.push(scanned(site, &filled, (ids[2], None), copies)?);
    }
    let lenders = page_lenders(site, 1, MEMORY)?;
    for (id, megabits) in [("far-scan-1g", 1000), ("far-scan-2g5", 2500)] {
        let (_narrow, address) =
            DelayProxy::narrow(site.program(), lenders[0].address(), megabits, site.directory())?;
        let Some(filled) = fill_vector(site, &[&address], table, access, skipped)? else {
            return Ok(figures);
        };
        figures.push(scanned(site, &filled, (id, Some(megabits)), copies_in_words(1))?);
    }
    Ok(figures)
}
