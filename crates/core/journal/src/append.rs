//! Appending: a record is encoded, sealed and checksummed in place, in the ring, under the journal's lock.

use std::sync::atomic::Ordering;
use std::time::Duration;

use netram_proto::id::Lsn;
use netram_proto::limit::RECORD_HEADER_BYTES;
use netram_proto::port::{AppendError, CommitTicket, RecordKind};
use netram_proto::wire::{ChainPoint as Chain, RecordHeader, finish_record, record_bytes};

use crate::core::{Core, JournalState};
use crate::seal::RecordSealer;

/// Maximum sleep of a thread that waits for room in the window: a missed wake-up costs a delay, not a hang.
const ROOM_WAIT_MAX: Duration = Duration::from_millis(10);

impl JournalState {
    /// Appends a record and also returns the chain value for the next one. Waits while the window is full.
    /// Takes about 0.1 µs beside copying and sealing the payload.
    pub(crate) fn append(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(CommitTicket, Chain), AppendError> {
        if length > self.payload_max {
            return Err(AppendError::TooLarge {
                bytes: length,
                max: self.payload_max,
            });
        }
        let sealer = self.config.seal.then_some(&self.sealer);
        let bytes = record_bytes(length, sealer.is_some());
        let mut core = self.core();
        loop {
            self.may_append(&core, bytes as u64)?;
            if core.ring.room() >= bytes as u64 && core.writer.has_room(bytes as u64) {
                break;
            }
            // Backpressure: the window is full until the disk has more of it (rule 10); in a shared region,
            // until the server has.
            self.counters.window_stalls.add(1);
            self.request_sync();
            self.send(&mut core);
            let waited = self.room.wait_timeout(core, ROOM_WAIT_MAX);
            core = waited.expect("a thread of this journal panicked").0;
        }
        let ticket = core.append(kind, length, sealer, fill);
        let end = core.end;
        self.tail.store(ticket.end.0, Ordering::SeqCst);
        let wakes = core.writer.view_pending();
        drop(core);
        if wakes {
            // The journal was clean: members count again once the maintenance thread has stored a view that
            // says so.
            self.wake_maintenance();
        }
        self.counters.records.add(1);
        if self.disk.parked.load(Ordering::SeqCst) {
            let _state = self.disk.state.lock().expect("nothing panics under this lock");
            self.disk.wake.notify_one();
        }
        Ok((ticket, end))
    }

    fn may_append(&self, core: &Core, bytes: u64) -> Result<(), AppendError> {
        if core.closed {
            return Err(AppendError::Closed);
        }
        if let Some(seen) = core.writer.fenced() {
            return Err(AppendError::Fenced {
                held: core.writer.epoch(),
                seen,
            });
        }
        if let Some(error) = core.disk_error {
            return Err(AppendError::DiskFailed(error));
        }
        let used = core.end.lsn.since(Lsn(self.head.load(Ordering::Acquire)));
        let capacity = self.log.capacity();
        if used + bytes > capacity {
            Err(AppendError::Full { used, capacity })
        } else {
            Ok(())
        }
    }
}

impl Core {
    fn append(
        &mut self,
        kind: RecordKind,
        length: usize,
        sealer: Option<&RecordSealer>,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> CommitTicket {
        let stable = self.writer.stable();
        let header = RecordHeader::new(
            self.end,
            self.writer.epoch(),
            stable,
            kind,
            sealer.is_some(),
            length,
        );
        let seed = self.seed;
        let mut chain = 0;
        self.ring.append(header.length, |record| {
            header.write(record);
            fill(&mut record[RECORD_HEADER_BYTES..][..length]);
            record[RECORD_HEADER_BYTES + length..].fill(0);
            if let Some(sealer) = sealer {
                sealer.seal(&header, record);
            }
            chain = finish_record(record, seed);
        });
        let ticket = CommitTicket {
            lsn: header.lsn,
            end: header.next(),
        };
        self.end = Chain {
            lsn: ticket.end,
            chain,
        };
        self.writer.on_append(ticket.end);
        ticket
    }
}
