//! A page at a lender: missed by a reference, beside a minimal pager; and pages read in order, beside the
//! bare link.

use std::time::{Duration, Instant};

use netram_far::{BarePager, WordAccess};
use netram_far_machine::limit::PAGE_BYTES;
use netram_transport::{NetAddress, WaitPolicy};

use super::words::{FilledVector, fill_vector, value};
use super::{RatioBound, ScoreboardRow, volume};
use crate::delay::DelayProxy;
use crate::echo::{EchoClient, EchoServer, ExchangeSizes};
use crate::error::{BenchError, ErrorContext};
use crate::histogram::median;
use crate::socket::{PollPause, RawSocket};
use crate::testbed::Testbed;

const MEMORY: &str = "160MiB";
/// Number of pages, and of local ones.
const PAGES: usize = 16 << 10;
const LOCAL: usize = PAGES / 4;
/// Number of values in a page.
const VALUES: usize = PAGE_BYTES / 8;
const ROUNDS: usize = 5;
/// References to random pages in one round.
const REFERENCES: usize = 6000;
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

fn fault(site: &Testbed, filled: &FilledVector) -> Result<ScoreboardRow, BenchError> {
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
    let what = "a fault on a page at a lender, a quarter local, encrypted; floor: the barest pager and a bare TCP exchange of a page";
    let floor = Some(median(bares));
    let figure = ScoreboardRow::new(
        "far-fault",
        what.to_owned(),
        "us p50",
        median(arenas),
        floor,
        RatioBound::AtMost(1.3),
    );
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
    let what =
        format!("pages at a lender read one after the other, a quarter local, {link}; floor: the bare link");
    let (value, floor) = (median(scans), Some(median(streams)));
    let figure = ScoreboardRow::new(id, what, "MB/s", value, floor, RatioBound::AtLeast(0.7));
    Ok(figure.with_ratio(median(ratios)))
}

pub(super) fn pages(site: &Testbed, skipped: &mut Vec<String>) -> Result<Vec<ScoreboardRow>, BenchError> {
    let lender = site.page_lender(volume::spec(None), MEMORY)?;
    let table = (PAGES * VALUES, (LOCAL * PAGE_BYTES) as u64);
    let mut figures = Vec::new();
    let links = [
        ("far-scan", None),
        ("far-scan-1g", Some(1000)),
        ("far-scan-2g5", Some(2500)),
    ];
    for (id, megabits) in links {
        let narrow = megabits
            .map(|megabits| DelayProxy::narrow(site.program(), lender.address(), megabits, site.directory()))
            .transpose()?;
        let address = { narrow.as_ref() }.map_or(lender.address(), |(_, address)| address);
        let Some(filled) = fill_vector(site, address, table, (WordAccess::Never, true), skipped)? else {
            return Ok(figures);
        };
        if megabits.is_none() {
            figures.push(fault(site, &filled)?);
        }
        figures.push(scanned(site, &filled, (id, megabits))?);
    }
    Ok(figures)
}
