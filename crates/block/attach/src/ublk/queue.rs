//! A thread that receives requests of one queue and answers them.
//!
//! It works in batches, like the NBD server. All requests that have arrived are started in order, reads are
//! answered, and one wait and at most one flush complete the others. A single request is not delayed. The
//! price is that this queue starts nothing while a batch is waited for; other processors have other queues.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use netram_block::{BlockDevice, DeviceError, PendingWrite};
use rustix::io::{Errno, pread, pwrite};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use super::wire::{ANSWER_AND_FETCH, FETCH, UblkOperation, UblkRequest, data_at};
use crate::failure_log::FailureLog;
use crate::sys::ring::{Descriptors, QueueRing};
use netram_process::abort_guard::AbortGuard;

/// Results of a command whose device is gone: the regular one, and the one at the ring's end.
const GONE: i32 = -Errno::NODEV.raw_os_error();
const CANCELED: i32 = -Errno::CANCELED.raw_os_error();

/// One queue of a device.
pub(super) struct UblkQueue {
    pub(super) device: Arc<dyn BlockDevice>,
    /// File for its requests.
    pub(super) file: Arc<File>,
    pub(super) failures: Arc<FailureLog>,
    pub(super) number: u16,
    pub(super) depth: u16,
    pub(super) request_bytes_max: u32,
}

/// Completion that an answer waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplyBarrier {
    /// Completion of the batch's writes.
    Writes,
    /// Completion of the batch's writes, then a flush.
    WritesAndFlush,
    /// A flush.
    Flush,
}

/// A started request that waits for the end of its batch.
struct PendingAnswer {
    tag: u16,
    bytes: i32,
    barrier: ReplyBarrier,
}

#[derive(Default)]
struct AnswerBatch {
    answers: Vec<PendingAnswer>,
    /// The last write; waiting for it waits for all.
    pending: Option<PendingWrite>,
}

/// State of the queue's thread.
struct QueueWorker {
    queue: UblkQueue,
    ring: QueueRing,
    descriptors: Descriptors,
    buffer: Vec<u8>,
    batch: AnswerBatch,
    /// Number of commands that the driver has.
    fetching: u32,
}

impl UblkQueue {
    /// Serves until the device is gone. Reports the outcome of the start once every request has a fetch
    /// command.
    pub(super) fn serve(self, ready: &SyncSender<io::Result<()>>) {
        let begun = QueueWorker::begin(self);
        let work = match begun {
            Ok(work) => {
                // If there is no receiver, the start was given up and the device is being removed.
                let _ = ready.send(Ok(()));
                work
            }
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let mut end = AbortGuard::arm();
        match work.run() {
            Ok(()) => end.disarm(),
            Err(error) => tracing::error!(%error, "cannot answer the kernel's ublk"),
        }
    }
}

impl QueueWorker {
    fn begin(queue: UblkQueue) -> io::Result<QueueWorker> {
        drop_privilege();
        let descriptors = Descriptors::map(&queue.file, queue.number, queue.depth)?;
        let mut work = QueueWorker {
            ring: QueueRing::new(queue.depth)?,
            descriptors,
            buffer: vec![0; queue.request_bytes_max as usize],
            batch: AnswerBatch::default(),
            fetching: 0,
            queue,
        };
        for tag in 0..work.queue.depth {
            work.push(FETCH, tag, 0)?;
        }
        work.ring.submit()?;
        // No request can have been sent yet, so an ended command was refused.
        let mut ended = Vec::new();
        work.ring.ended(&mut ended);
        match ended.first() {
            None => Ok(work),
            Some((_, result)) => Err(io::Error::from_raw_os_error(result.wrapping_neg())),
        }
    }

    fn run(mut self) -> io::Result<()> {
        let mut ended = Vec::with_capacity(self.queue.depth.into());
        while self.fetching > 0 {
            self.ring.wait()?;
            self.ring.ended(&mut ended);
            for (tag, result) in ended.drain(..) {
                self.fetching -= 1;
                match result {
                    0 => self.start(tag)?,
                    GONE | CANCELED => (),
                    _ => return Err(io::Error::from_raw_os_error(result.wrapping_neg())),
                }
            }
            self.settle()?;
        }
        Ok(())
    }

    /// Starts one request; one that needs no wait is answered.
    fn start(&mut self, tag: u16) -> io::Result<()> {
        let description = self.descriptors.read(tag);
        let request = match UblkRequest::parse(&description, self.buffer.len()) {
            Ok(request) => request,
            Err(errno) => return self.answer(tag, Err(errno.raw_os_error())),
        };
        let bytes = request.answered_bytes();
        let rides = match (request.operation, request.fua) {
            (UblkOperation::Read, _) => {
                let read = self.read(tag, &request).map(|()| bytes);
                return self.answer(tag, read);
            }
            (UblkOperation::Flush, _) => ReplyBarrier::Flush,
            (_, true) => ReplyBarrier::WritesAndFlush,
            (_, false) => ReplyBarrier::Writes,
        };
        if request.operation != UblkOperation::Flush {
            match self.log(tag, &request) {
                Ok(pending) => self.batch.pending = self.batch.pending.max(Some(pending)),
                Err(errno) => return self.answer(tag, Err(errno)),
            }
        }
        self.batch.answers.push(PendingAnswer {
            tag,
            bytes,
            barrier: rides,
        });
        Ok(())
    }

    fn read(&mut self, tag: u16, request: &UblkRequest) -> Result<(), i32> {
        let into = &mut self.buffer[..request.length as usize];
        let read = self.queue.device.read(request.offset, into);
        read.map_err(|error| self.queue.failed("read", request, &error))?;
        self.queue.give(tag, into).map_err(Errno::raw_os_error)
    }

    /// Logs a change of the device in the order of writes.
    fn log(&mut self, tag: u16, request: &UblkRequest) -> Result<PendingWrite, i32> {
        let &UblkRequest { offset, length, .. } = request;
        let device = &self.queue.device;
        let logged = match request.operation {
            UblkOperation::Discard => device.discard(offset, length),
            UblkOperation::Zero => device.zero(offset, length),
            _ => {
                let bytes = &mut self.buffer[..length as usize];
                self.queue.take(tag, bytes).map_err(Errno::raw_os_error)?;
                device.write(offset, bytes)
            }
        };
        logged.map_err(|error| self.queue.failed("write", request, &error))
    }

    /// Completes and answers every started request.
    fn settle(&mut self) -> io::Result<()> {
        let AnswerBatch { answers, pending } = std::mem::take(&mut self.batch);
        let queue = &self.queue;
        let waited = match pending {
            None => Ok(()),
            Some(pending) => {
                // Reads of the batch do not wait for its writes.
                self.ring.submit()?;
                let waited = queue.device.wait(pending);
                waited.map_err(|error| queue.failures.note("write", 0, 0, &error))
            }
        };
        let any = |rides| answers.iter().any(|answer| answer.barrier == rides);
        // A flush counts by itself, even if writes of this batch failed.
        let forced = waited.is_ok() && any(ReplyBarrier::WritesAndFlush);
        let flushed = match forced || any(ReplyBarrier::Flush) {
            true => (queue.device.flush()).map_err(|error| queue.failures.note("flush", 0, 0, &error)),
            false => Ok(()),
        };
        for answer in &answers {
            let outcome = match answer.barrier {
                ReplyBarrier::Writes => waited,
                ReplyBarrier::WritesAndFlush => waited.and(flushed),
                ReplyBarrier::Flush => flushed,
            };
            self.answer(answer.tag, outcome.map(|()| answer.bytes))?;
        }
        // The next batch reuses this one's memory.
        self.batch.answers = answers;
        self.batch.answers.clear();
        Ok(())
    }

    /// Answers with the number of bytes read or written, or with an error number.
    fn answer(&mut self, tag: u16, outcome: Result<i32, i32>) -> io::Result<()> {
        let result = outcome.unwrap_or_else(|errno| -errno);
        self.push(ANSWER_AND_FETCH, tag, result)
    }

    fn push(&mut self, operation: u32, tag: u16, result: i32) -> io::Result<()> {
        let UblkQueue { file, number, .. } = &self.queue;
        self.ring.push(file, operation, *number, tag, result)?;
        self.fetching += 1;
        Ok(())
    }
}

impl UblkQueue {
    /// Copies a write's data from the request.
    fn take(&self, tag: u16, bytes: &mut [u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let at = data_at(self.number, tag, done as u32);
            match pread(&self.file, &mut bytes[done..], at) {
                Ok(0) => return Err(Errno::IO),
                Ok(more) => done += more,
                Err(Errno::INTR) => (),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Copies a read's data to the request.
    fn give(&self, tag: u16, bytes: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < bytes.len() {
            let at = data_at(self.number, tag, done as u32);
            match pwrite(&self.file, &bytes[done..], at) {
                Ok(0) => return Err(Errno::IO),
                Ok(more) => done += more,
                Err(Errno::INTR) => (),
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn failed(&self, what: &str, request: &UblkRequest, error: &DeviceError) -> i32 {
        self.failures.note(what, request.offset, request.length, error)
    }
}

/// Drops the privilege with which the driver would look for partitions when the device starts. If the server
/// were killed during that, the look would wait for another server for ever, while holding a lock needed to
/// give the device one. Device nodes made by `udev` do not depend on it, and no other attach method offers
/// partitions.
fn drop_privilege() {
    let given = capabilities(None).and_then(|mut sets| {
        sets.effective.remove(CapabilitySet::SYS_ADMIN);
        sets.permitted.remove(CapabilitySet::SYS_ADMIN);
        set_capabilities(None, sets)
    });
    if let Err(error) = given {
        tracing::debug!(%error, "cannot drop a capability; the kernel will look for partitions when the device starts");
    }
}
