//! Resources of the experiments: recoverable memory over a real file with a log that keeps one record, and a
//! peer that receives messages over a socket.

use std::cell::{Cell, RefCell};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use netram_proto::id::{JournalId, Lsn};
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, LogError, LogState, Record, RecordKind, RecordLog,
    WaitError,
};
use netram_rvm::{
    CaptureMode, RealStorage, Region, RestoreMode, Rvm, RvmOptions, SegmentAllocation, Transaction,
};
use netram_transport::NetAddress;

use crate::error::{BenchError, ErrorContext};
use crate::machine::{self, CorePin};
use crate::socket::{PollPause, RawListener, RawSocket};
use crate::testbed::Testbed;

pub(super) const PAGE: usize = 4096;
const PAYLOAD_BYTES_MAX: usize = 1 << 26;

/// A log that keeps only the last record, so that commits over it cost the library's time alone.
pub(super) struct LastRecordLog {
    end: Cell<u64>,
    payload: RefCell<Vec<u8>>,
    length: Cell<usize>,
}

impl RecordLog for LastRecordLog {
    fn append(
        &self,
        _: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        fill(&mut self.payload.borrow_mut()[..length]);
        self.length.set(length);
        let lsn = Lsn(self.end.get());
        self.end.set(lsn.0 + length as u64);
        Ok(CommitTicket {
            lsn,
            end: Lsn(self.end.get()),
        })
    }

    fn wait(&self, _: CommitTicket, _: Durability) -> Result<CommitVotes, WaitError> {
        Ok(CommitVotes::default())
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
pub(super) struct OsdiMemory {
    pub(super) region: Region,
    pub(super) rvm: Rvm<LastRecordLog, RealStorage>,
    pub(super) pages: usize,
}

pub(super) type OsdiTransaction = Transaction<LastRecordLog, RealStorage>;

impl OsdiMemory {
    /// A region with the given capture mode; `None` and the reason if this machine lacks it.
    pub(super) fn new(
        site: &Testbed,
        pages: usize,
        capture: CaptureMode,
    ) -> Result<Result<OsdiMemory, String>, BenchError> {
        OsdiMemory::filled(site, pages, capture, |memory| {
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
        site: &Testbed,
        bytes: &[u8],
        capture: CaptureMode,
    ) -> Result<Result<OsdiMemory, String>, BenchError> {
        OsdiMemory::filled(site, bytes.len().div_ceil(PAGE), capture, |memory| {
            memory.region.put_back(0, bytes).context("fill the region")
        })
    }

    fn filled(
        site: &Testbed,
        pages: usize,
        capture: CaptureMode,
        fill: impl FnOnce(&OsdiMemory) -> Result<(), BenchError>,
    ) -> Result<Result<OsdiMemory, String>, BenchError> {
        let directory = tempfile::tempdir_in(site.directory()).context("make a directory")?;
        let path = |name: &str| directory.path().join(name).display().to_string();
        let storage = RealStorage::create(&path("segments")).context("make a segment table")?;
        let log = LastRecordLog {
            end: Cell::new(64),
            payload: RefCell::new(vec![0; PAYLOAD_BYTES_MAX]),
            length: Cell::new(0),
        };
        let rvm =
            Rvm::open(log, storage, RvmOptions::new(JournalId(94))).context("open recoverable memory")?;
        rvm.create_segment(
            &path("segment"),
            (pages * PAGE) as u64,
            SegmentAllocation::Preallocated,
        )
        .context("make a segment")?;
        let region = rvm.map(&path("segment"), 0, 0).context("map a segment")?;
        let mut memory = OsdiMemory { region, rvm, pages };
        fill(&memory)?;
        Ok(match memory.region.set_capture(capture) {
            Ok(()) => Ok(memory),
            Err(refused) => Err(refused.to_string()),
        })
    }

    /// Begins a transaction that stores to the region and is never undone. Until it has committed changes,
    /// the last record is empty.
    pub(super) fn begin(&self) -> Result<OsdiTransaction, BenchError> {
        self.rvm.log().length.set(0);
        let mut transaction = self.rvm.begin(RestoreMode::NoRestore);
        transaction.capture(&self.region).context("begin a transaction")?;
        Ok(transaction)
    }

    /// Stores `value` at each of `places` without declaring it; returns the duration.
    pub(super) fn store(
        &self,
        open: &mut OsdiTransaction,
        places: &[usize],
        value: u64,
    ) -> Result<Duration, BenchError> {
        let mut edit = open.edit(&self.region);
        let bytes = edit
            .range_mut(0, self.pages * PAGE)
            .context("borrow the region")?;
        Ok(store(bytes, places, value))
    }

    /// Sends the last commit's record to `peer`.
    pub(super) fn send_last_record(&self, peer: &MessagePeer) -> Result<(), BenchError> {
        self.with_last_record(|record| peer.send(record))
    }

    /// Runs `with` on the last commit's record, which is empty if the commit changed nothing.
    pub(super) fn with_last_record<T>(&self, with: impl FnOnce(&[u8]) -> T) -> T {
        let payload = self.rvm.log().payload.borrow();
        with(&payload[..self.rvm.log().length.get()])
    }

    /// Number of ranges declared so far.
    pub(super) fn declared(&self) -> u64 {
        self.rvm.statistics().ranges_declared
    }
}

/// The stores alone: the floor of finding them.
pub(super) fn store(bytes: &mut [u8], places: &[usize], value: u64) -> Duration {
    let value = value.to_le_bytes();
    let began = Instant::now();
    for place in places {
        bytes[*place..*place + value.len()].copy_from_slice(&value);
    }
    std::hint::black_box(bytes);
    began.elapsed()
}

/// Cores of two threads that poll each other's socket. On one core they must not spin: each would have to
/// wait for the end of the other's turn, which is a tick of the kernel's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PollCores {
    near: usize,
    far: usize,
}

impl PollCores {
    /// The first and the last of the cores that this thread may use.
    pub(super) fn choose() -> PollCores {
        let cores = machine::cores();
        PollCores {
            near: cores.first().copied().unwrap_or(0),
            far: cores.last().copied().unwrap_or(0),
        }
    }

    /// Keeps the measuring thread on its core for as long as the guard lives.
    pub(super) fn pin_near(self) -> Result<CorePin, BenchError> {
        CorePin::to(self.near)
    }

    /// Keeps the other thread on its core for as long as the guard lives.
    pub(super) fn pin_far(self) -> Result<CorePin, BenchError> {
        CorePin::to(self.far)
    }

    /// How either thread waits.
    pub(super) fn pause(self) -> PollPause {
        match self.near == self.far {
            true => PollPause::Yield,
            false => PollPause::Spin,
        }
    }
}

/// A thread that receives messages, each with its length, and answers each with a byte.
pub(super) struct MessagePeer {
    socket: RawSocket,
    cores: PollCores,
    thread: Option<JoinHandle<Result<(), BenchError>>>,
}

impl MessagePeer {
    /// Connects by TCP over the loopback.
    pub(super) fn tcp() -> Result<MessagePeer, BenchError> {
        MessagePeer::at(&"tcp://127.0.0.1:0".parse().context("name an address")?)
    }

    /// Connects by a Unix socket.
    pub(super) fn unix(site: &Testbed) -> Result<MessagePeer, BenchError> {
        MessagePeer::at(&NetAddress::Unix(site.directory().join("osdi94.sock")))
    }

    fn at(address: &NetAddress) -> Result<MessagePeer, BenchError> {
        let gate = RawListener::open(address)?;
        let at = gate.address()?;
        let thread = std::thread::Builder::new().name("bench-peer".to_owned());
        let cores = PollCores::choose();
        let thread = thread
            .spawn(move || serve(&gate, cores))
            .context("start a thread")?;
        let socket = RawSocket::connect(&at)?;
        if let NetAddress::Unix(path) = address {
            // The socket's name is not needed after the connection, and another run will need it.
            let _ = std::fs::remove_file(path);
        }
        Ok(MessagePeer {
            socket,
            cores,
            thread: Some(thread),
        })
    }

    /// Keeps this thread off the peer's core while messages are sent.
    pub(super) fn pin_sender(&self) -> Result<CorePin, BenchError> {
        self.cores.pin_near()
    }

    /// Sends a message and waits until it has been received completely.
    pub(super) fn send(&self, message: &[u8]) -> Result<(), BenchError> {
        self.socket.send_all(&(message.len() as u64).to_le_bytes())?;
        self.socket.send_all(message)?;
        match self.socket.receive_all(&mut [0], self.cores.pause())? {
            true => Ok(()),
            false => Err(BenchError::InvalidRequest(
                "the peer closed the connection".to_owned(),
            )),
        }
    }
}

fn serve(gate: &RawListener, cores: PollCores) -> Result<(), BenchError> {
    let _pinned = cores.pin_far()?;
    let socket = gate.accept()?;
    let mut message = vec![0; PAYLOAD_BYTES_MAX];
    let mut length = [0; 8];
    while socket.receive_all(&mut length, cores.pause())? {
        let length = u64::from_le_bytes(length) as usize;
        if !socket.receive_all(&mut message[..length], cores.pause())? {
            break;
        }
        socket.send_all(&[1])?;
    }
    Ok(())
}

impl Drop for MessagePeer {
    fn drop(&mut self) {
        // The thread ends with the connection.
        let _ = self.socket.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_poll_each_other_spin_on_two_cores_and_yield_on_one() {
        let one = PollCores { near: 0, far: 0 };
        assert_eq!(one.pause(), PollPause::Yield);
        let two = PollCores { near: 0, far: 1 };
        assert_eq!(two.pause(), PollPause::Spin);
        let cores = machine::cores();
        let chosen = PollCores::choose();
        assert_eq!(chosen.near == chosen.far, cores.len() == 1, "{cores:?}");
        let pinned = chosen.pin_far().unwrap();
        assert_eq!(machine::cores(), [chosen.far]);
        drop(pinned);
        assert_eq!(machine::cores(), cores);
    }
}
