//! The requests that wait in a queue: each is started, all writes are waited for once, and then all are
//! answered in their order.

use std::io::{Read, Write};
use std::sync::Arc;

use netram_block::{BlockDevice, DeviceError, PendingWrite};
use virtio_bindings::virtio_blk::{VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP};
use virtio_queue::{DescriptorChain, Reader, Writer};
use vm_memory::{GuestMemoryLoadGuard, GuestMemoryMmap};

use crate::limit::{BATCH_BYTES_MAX, BATCH_MAX, PIECE_BYTES, RANGE_BYTES, SERIAL_BYTES};
use crate::request::{BlockRequest, HEADER_BYTES, RequestRefusal, SectorRange};
use crate::stats::VhostStats;

/// The guest's memory while a batch uses it.
pub(crate) type GuestMemory = GuestMemoryLoadGuard<GuestMemoryMmap>;

/// The disk that guests see.
pub(crate) struct GuestDisk {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) read_only: bool,
    /// Name that guests read as the serial number, with zeros behind it.
    pub(crate) serial: [u8; SERIAL_BYTES],
}

/// A request of the queue has no place for its status, or lies outside the guest's memory: the guest's driver
/// is not to be trusted with the queue any more.
#[derive(Debug, thiserror::Error)]
#[error("a request in the guest's queue is malformed: {0}")]
pub(crate) struct MalformedRequest(pub(crate) &'static str);

/// Requests that were started and are not answered yet.
pub(crate) struct Batch<'a> {
    disk: &'a GuestDisk,
    /// Data on its way, reused from request to request.
    buffer: &'a mut Vec<u8>,
    started: Vec<StartedRequest<'a>>,
    written_bytes: u64,
    last: PendingWrite,
    pub(crate) stats: VhostStats,
}

struct StartedRequest<'a> {
    head: u16,
    /// Place of the status.
    status: Writer<'a>,
    /// Bytes of data that were written to the guest's memory.
    filled: u32,
    outcome: RequestOutcome,
}

enum RequestOutcome {
    Done(u32),
    /// The device has it, and the batch's wait decides.
    Pending,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(disk: &'a GuestDisk, buffer: &'a mut Vec<u8>) -> Batch<'a> {
        Batch {
            disk,
            buffer,
            started: Vec::new(),
            written_bytes: 0,
            last: PendingWrite::default(),
            stats: VhostStats::default(),
        }
    }

    /// Whether it is time to answer.
    pub(crate) fn is_full(&self) -> bool {
        self.started.len() >= BATCH_MAX || self.written_bytes >= BATCH_BYTES_MAX
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.started.is_empty()
    }

    /// Starts a request.
    pub(crate) fn start(
        &mut self,
        chain: DescriptorChain<GuestMemory>,
        memory: &'a GuestMemory,
    ) -> Result<(), MalformedRequest> {
        let head = chain.head_index();
        let outside = |_| MalformedRequest("it lies outside the guest's memory");
        let mut from = chain.clone().reader(memory).map_err(outside)?;
        let mut to = chain.writer(memory).map_err(outside)?;
        let mut header = [0; HEADER_BYTES];
        from.read_exact(&mut header)
            .map_err(|_| MalformedRequest("it is shorter than its header"))?;
        let wanted = to
            .available_bytes()
            .checked_sub(1)
            .ok_or(MalformedRequest("it has no place for its status"))?;
        let status = to.split_at(wanted).map_err(outside)?;
        let request = BlockRequest::parse(&header, from.available_bytes() as u64, wanted as u64);
        let outcome = match request {
            Ok(request) if request.is_change() && self.disk.read_only => Err(RequestFailure::Refused),
            Ok(request) => self.carry_out(request, &mut from, &mut to),
            Err(refusal) => Err(refusal.into()),
        };
        let outcome = outcome.unwrap_or_else(|failure| {
            self.stats.errors += 1;
            RequestOutcome::Done(failure.status())
        });
        self.started.push(StartedRequest {
            head,
            status,
            filled: u32::try_from(to.bytes_written()).unwrap_or(u32::MAX),
            outcome,
        });
        Ok(())
    }

    fn carry_out(
        &mut self,
        request: BlockRequest,
        from: &mut Reader<'a>,
        to: &mut Writer<'a>,
    ) -> Result<RequestOutcome, RequestFailure> {
        match request {
            BlockRequest::Read { offset, length } => {
                self.read(offset, length, to)?;
                self.stats.reads += 1;
                self.stats.read_bytes += length;
            }
            BlockRequest::Write { offset, length } => {
                self.write(offset, length, from)?;
                self.stats.writes += 1;
                self.stats.written_bytes += length;
                return Ok(RequestOutcome::Pending);
            }
            BlockRequest::Discard { ranges } | BlockRequest::Zero { ranges } => {
                let zeroes = matches!(request, BlockRequest::Zero { .. });
                for _ in 0..ranges {
                    let mut bytes = [0; RANGE_BYTES];
                    from.read_exact(&mut bytes)?;
                    let range = SectorRange::parse(&bytes)?;
                    self.last = self.last.max(match zeroes {
                        true => self.disk.device.zero(range.offset, range.length)?,
                        false if range.unmap => return Err(RequestRefusal::Unsupported.into()),
                        false => self.disk.device.discard(range.offset, range.length)?,
                    });
                }
                self.stats.zeroes += 1;
                return Ok(RequestOutcome::Pending);
            }
            BlockRequest::Flush => {
                self.disk.device.flush()?;
                self.stats.flushes += 1;
            }
            BlockRequest::Serial => to.write_all(&self.disk.serial)?,
        }
        Ok(RequestOutcome::Done(VIRTIO_BLK_S_OK))
    }

    fn read(&mut self, offset: u64, length: u64, to: &mut Writer<'a>) -> Result<(), RequestFailure> {
        for (at, bytes) in pieces(offset, length) {
            let piece = piece_of(self.buffer, bytes);
            self.disk.device.read(at, piece)?;
            to.write_all(piece)?;
        }
        Ok(())
    }

    /// Copies the data first: the guest could change it while the device has it.
    fn write(&mut self, offset: u64, length: u64, from: &mut Reader<'a>) -> Result<(), RequestFailure> {
        for (at, bytes) in pieces(offset, length) {
            let piece = piece_of(self.buffer, bytes);
            from.read_exact(piece)?;
            self.last = self.last.max(self.disk.device.write(at, piece)?);
        }
        self.written_bytes += length;
        Ok(())
    }

    /// Waits for the writes, and answers every request: `answer` gets each one's first descriptor and the
    /// number of bytes that were written to the guest's memory, in the order in which they were started.
    pub(crate) fn finish<E>(
        mut self,
        mut answer: impl FnMut(u16, u32) -> Result<(), E>,
    ) -> Result<VhostStats, E> {
        let has_pending = |started: &StartedRequest| matches!(started.outcome, RequestOutcome::Pending);
        let waited = match self.started.iter().any(has_pending) {
            true => self.disk.device.wait(self.last),
            false => Ok(()),
        };
        if let Err(error) = &waited {
            tracing::error!(%error, "writes of a guest are not durable");
        }
        for mut request in self.started {
            let status = match request.outcome {
                RequestOutcome::Done(status) => status,
                RequestOutcome::Pending if waited.is_ok() => VIRTIO_BLK_S_OK,
                RequestOutcome::Pending => {
                    self.stats.errors += 1;
                    VIRTIO_BLK_S_IOERR
                }
            };
            // One byte, whose place was checked when the request was started.
            let _ = request.status.write_all(&[status as u8]);
            answer(request.head, request.filled.saturating_add(1))?;
        }
        self.stats.batches += 1;
        Ok(self.stats)
    }
}

/// The first `bytes` of the buffer, which becomes as large as that once.
fn piece_of(buffer: &mut Vec<u8>, bytes: usize) -> &mut [u8] {
    if buffer.len() < bytes {
        buffer.resize(bytes, 0);
    }
    &mut buffer[..bytes]
}

/// Offsets and sizes of the pieces of a request.
fn pieces(offset: u64, length: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..length).step_by(PIECE_BYTES).map(move |at| {
        // The device refuses what is behind its end, and so an offset at the end of numbers.
        (
            offset.saturating_add(at),
            (length - at).min(PIECE_BYTES as u64) as usize,
        )
    })
}

/// Reasons why a request fails.
enum RequestFailure {
    Refused,
    Unsupported,
    Device(DeviceError),
    /// The guest's memory does not have what the request's size promised.
    Memory,
}

impl RequestFailure {
    fn status(&self) -> u32 {
        match self {
            RequestFailure::Unsupported => VIRTIO_BLK_S_UNSUPP,
            RequestFailure::Device(error) => {
                tracing::warn!(%error, "a request of a guest failed");
                VIRTIO_BLK_S_IOERR
            }
            RequestFailure::Refused | RequestFailure::Memory => VIRTIO_BLK_S_IOERR,
        }
    }
}

impl From<RequestRefusal> for RequestFailure {
    fn from(refusal: RequestRefusal) -> RequestFailure {
        match refusal {
            RequestRefusal::Unsupported => RequestFailure::Unsupported,
            RequestRefusal::Invalid => RequestFailure::Refused,
        }
    }
}

impl From<DeviceError> for RequestFailure {
    fn from(error: DeviceError) -> RequestFailure {
        RequestFailure::Device(error)
    }
}

impl From<std::io::Error> for RequestFailure {
    fn from(_: std::io::Error) -> RequestFailure {
        RequestFailure::Memory
    }
}
