//! What the experiments stand on: recoverable memory over a real file and a log that keeps one record, and a peer
//! that takes messages over a socket.

use std::cell::{Cell, RefCell};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{
    AppendError, Durability, Kind, Log, LogError, LogState, Record, Ticket, Votes, WaitError,
};
use netram_rvm::{Allocation, Capture, Mode, Options, RealStorage, Region, Rvm, Transaction};
use netram_transport::Address;

use crate::error::{BenchError, Context};
use crate::site::Site;
use crate::socket::{Gate, Pause, Socket};

pub(super) const PAGE: usize = 4096;
const PAYLOAD_BYTES_MAX: usize = 1 << 26;

/// A log that keeps the last record only: what commits cost over it is the library alone.
pub(super) struct Tail {
    end: Cell<u64>,
    payload: RefCell<Vec<u8>>,
    length: Cell<usize>,
}

impl Log for Tail {
    fn append(&self, _: Kind, length: usize, fill: &mut dyn FnMut(&mut [u8])) -> Result<Ticket, AppendError> {
        fill(&mut self.payload.borrow_mut()[..length]);
        self.length.set(length);
        let lsn = Lsn(self.end.get());
        self.end.set(lsn.0 + length as u64);
        Ok(Ticket {
            lsn,
            end: Lsn(self.end.get()),
        })
    }

    fn wait(&self, _: Ticket, _: Durability) -> Result<Votes, WaitError> {
        Ok(Votes::default())
    }

    fn state(&self) -> LogState {
        let tail = Lsn(self.end.get());
        LogState {
            head: tail,
            stable: tail,
            acked: tail,
            tail,
            capacity: 1 << 40,
            payload_max: PAYLOAD_BYTES_MAX,
        }
    }

    fn read(&self, from: Lsn, _: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        Ok(from)
    }

    fn trim(&self, _: Lsn) -> Result<(), LogError> {
        Ok(())
    }
}

/// A region of whole pages, all of them in memory.
pub(super) struct Memory {
    pub(super) region: Region,
    pub(super) rvm: Rvm<Tail, RealStorage>,
    pub(super) pages: usize,
}

pub(super) type Open = Transaction<Tail, RealStorage>;

impl Memory {
    /// A region whose stores are found as `capture` says; `None` with the reason where they cannot be.
    pub(super) fn new(
        site: &Site,
        pages: usize,
        capture: Capture,
    ) -> Result<Result<Memory, String>, BenchError> {
        Memory::filled(site, pages, capture, |memory| {
            let mut first = memory.begin()?;
            for page in 0..pages {
                first
                    .set(&memory.region, page * PAGE, &1u64)
                    .context("store to each page")?;
            }
            first.commit(Durability::Lazy).context("commit")?;
            Ok(())
        })
    }

    /// The same with these bytes in it.
    pub(super) fn holding(
        site: &Site,
        bytes: &[u8],
        capture: Capture,
    ) -> Result<Result<Memory, String>, BenchError> {
        Memory::filled(site, bytes.len().div_ceil(PAGE), capture, |memory| {
            memory.region.put_back(0, bytes).context("fill the region")
        })
    }

    fn filled(
        site: &Site,
        pages: usize,
        capture: Capture,
        fill: impl FnOnce(&Memory) -> Result<(), BenchError>,
    ) -> Result<Result<Memory, String>, BenchError> {
        let folder = tempfile::tempdir_in(site.folder()).context("make a folder")?;
        let path = |name: &str| folder.path().join(name).display().to_string();
        let storage = RealStorage::create(&path("segments")).context("make a segment table")?;
        let log = Tail {
            end: Cell::new(64),
            payload: RefCell::new(vec![0; PAYLOAD_BYTES_MAX]),
            length: Cell::new(0),
        };
        let rvm = Rvm::open(log, storage, Options::new(JournalId(94))).context("open recoverable memory")?;
        rvm.create_segment(&path("segment"), (pages * PAGE) as u64, Allocation::Preallocated)
            .context("make a segment")?;
        let region = rvm.map(&path("segment"), 0, 0).context("map a segment")?;
        let mut memory = Memory { region, rvm, pages };
        fill(&memory)?;
        Ok(match memory.region.set_capture(capture) {
            Ok(()) => Ok(memory),
            Err(refused) => Err(refused.to_string()),
        })
    }

    /// A transaction that stores to the region and is never undone.
    pub(super) fn begin(&self) -> Result<Open, BenchError> {
        let mut transaction = self.rvm.begin(Mode::NoRestore);
        transaction.capture(&self.region).context("begin a transaction")?;
        Ok(transaction)
    }

    /// Stores `value` at each of `places` without declaring it; how long that took.
    pub(super) fn store(
        &self,
        open: &mut Open,
        places: &[usize],
        value: u64,
    ) -> Result<Duration, BenchError> {
        let mut edit = open.edit(&self.region);
        let bytes = edit
            .range_mut(0, self.pages * PAGE)
            .context("borrow the region")?;
        Ok(store(bytes, places, value))
    }

    /// What the last commit logged.
    pub(super) fn send_tail(&self, peer: &Peer) -> Result<(), BenchError> {
        self.with_tail(|record| peer.send(record))
    }

    /// The same for something else.
    pub(super) fn with_tail<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
        let payload = self.rvm.log().payload.borrow();
        with(&payload[..self.rvm.log().length.get()])
    }

    /// Ranges that were declared so far.
    pub(super) fn declared(&self) -> u64 {
        self.rvm.statistics().ranges_declared
    }
}

/// The stores alone: the floor of what finds them.
pub(super) fn store(bytes: &mut [u8], places: &[usize], value: u64) -> Duration {
    let value = value.to_le_bytes();
    let began = Instant::now();
    for place in places {
        bytes[*place..*place + value.len()].copy_from_slice(&value);
    }
    std::hint::black_box(bytes);
    began.elapsed()
}

/// A thread that takes messages, each a length and so many bytes, and answers each with a byte.
pub(super) struct Peer {
    socket: Socket,
    thread: Option<JoinHandle<Result<(), BenchError>>>,
}

impl Peer {
    /// Connected by TCP over the loopback.
    pub(super) fn tcp() -> Result<Peer, BenchError> {
        Peer::at(&"tcp://127.0.0.1:0".parse().context("name an address")?)
    }

    /// Connected by a Unix socket.
    pub(super) fn unix(site: &Site) -> Result<Peer, BenchError> {
        Peer::at(&Address::Unix(site.folder().join("osdi94.sock")))
    }

    fn at(address: &Address) -> Result<Peer, BenchError> {
        let gate = Gate::open(address)?;
        let at = gate.address()?;
        let thread = std::thread::Builder::new().name("bench-peer".to_owned());
        let thread = thread.spawn(move || serve(&gate)).context("start a thread")?;
        let socket = Socket::connect(&at)?;
        if let Address::Unix(path) = address {
            // Connected: its name is of no more use, and another run will want it.
            let _ = std::fs::remove_file(path);
        }
        Ok(Peer {
            socket,
            thread: Some(thread),
        })
    }

    /// Sends a message and waits until it was received whole.
    pub(super) fn send(&self, message: &[u8]) -> Result<(), BenchError> {
        self.socket.send_all(&(message.len() as u64).to_le_bytes())?;
        self.socket.send_all(message)?;
        match self.socket.receive_all(&mut [0], Pause::Spin)? {
            true => Ok(()),
            false => Err(BenchError::Asked("the peer closed the connection".to_owned())),
        }
    }
}

fn serve(gate: &Gate) -> Result<(), BenchError> {
    let socket = gate.accept()?;
    let mut message = vec![0; PAYLOAD_BYTES_MAX];
    let mut length = [0; 8];
    while socket.receive_all(&mut length, Pause::Spin)? {
        let length = u64::from_le_bytes(length) as usize;
        if !socket.receive_all(&mut message[..length], Pause::Spin)? {
            break;
        }
        socket.send_all(&[1])?;
    }
    Ok(())
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The thread ends with the connection.
        let _ = self.socket.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
