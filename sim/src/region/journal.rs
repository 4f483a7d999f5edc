//! A node's journal: the ring, the log writer, and the view writer. Its disk fails only by power cuts; the
//! worlds of one journal have failing disks.

use std::collections::VecDeque;

use netram_proto::id::{JournalId, Lsn, WriterId};
use netram_proto::journal::{
    FrameBody, JournalWriter, LogFile, LogSuperblock, OutgoingFrame, SlotPair, View,
};
use netram_proto::limit::{RECORD_HEADER_BYTES, SLOT_BYTES};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::RecordKind;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{ChainPoint, RecordHeader, finish_record, record_bytes};
use netram_shared_machine::RecordNumber;

use super::kernel::{Event, RegionKernel};
use super::profile::RegionProfile;
use crate::disk::{SimDiskHandle, SimFile};
use crate::lender::packet_of;
use crate::signatures::owners_packet;

const HEALTHY: &str = "a disk of this world never fails";

/// File numbers of a journal on its machine's disk.
#[derive(Clone)]
pub(super) struct RegionJournalFiles {
    pub(super) disk: SimDiskHandle,
    pub(super) log: usize,
    pub(super) view: usize,
}

impl RegionJournalFiles {
    pub(super) fn log(&self) -> SimFile {
        SimFile::new(&self.disk, self.log)
    }

    pub(super) fn view(&self) -> SimFile {
        SimFile::new(&self.disk, self.view)
    }
}

pub(super) struct RegionJournal {
    pub(super) id: JournalId,
    pub(super) files: RegionJournalFiles,
    pub(super) writer: JournalWriter,
    log: LogFile<SimFile>,
    log_slots: SlotPair,
    superblock: LogSuperblock,
    view_slots: SlotPair,
    /// The newest view that is durable here.
    pub(super) view: View,
    ring: Vec<u8>,
    tail: ChainPoint,
    unflushed: VecDeque<ChainPoint>,
    flushing: Option<ChainPoint>,
    storing: Option<View>,
    /// End of each record, by its number less one.
    pub(super) ends: Vec<ChainPoint>,
    pub(super) start: ChainPoint,
    /// Number of the view with which it was opened, which has no members.
    pub(super) first_view: u64,
    /// Whether there are too few members, as the node's machine was told.
    pub(super) few_members: bool,
    pub(super) told_view: u64,
    /// The record before the beginning of the log.
    pub(super) trimmed: RecordNumber,
    pub(super) server_ack: RecordNumber,
}

impl RegionJournal {
    /// Creates and opens a journal.
    pub(super) fn create(
        disk: &SimDiskHandle,
        id: JournalId,
        who: WriterId,
        nature: &RegionProfile,
        slot: usize,
        planted: FaultSwitch,
    ) -> RegionJournal {
        let capacity = nature.capacity;
        let (log, view) = {
            let mut disk = disk.borrow_mut();
            let log = disk.add(LogFile::<SimFile>::file_bytes(capacity));
            (log, disk.add(SlotPair::bytes(SLOT_BYTES)))
        };
        let files = RegionJournalFiles {
            disk: disk.clone(),
            log,
            view,
        };
        LogFile::create(files.log(), id, capacity).expect(HEALTHY);
        let view = View::first(id).claimed(who).released(Lsn(0));
        SlotPair::create(&files.view(), View::MAGIC, SLOT_BYTES, &view.encode()).expect(HEALTHY);
        let (log, log_slots, superblock) = LogFile::open(files.log()).expect(HEALTHY);
        let (view_slots, _) = SlotPair::open(&files.view(), View::MAGIC, SLOT_BYTES).expect(HEALTHY);
        let begins = superblock.head;
        let config = nature.writer(slot);
        let mut writer = JournalWriter::new(id, view.epoch, view.writer, view.version, begins, config)
            .with_epochs(view.epochs.clone());
        writer.plant(planted);
        RegionJournal {
            id,
            files,
            writer,
            log,
            log_slots,
            superblock,
            view_slots,
            told_view: view.version,
            first_view: view.version,
            view,
            ring: vec![0; nature.window as usize],
            tail: begins,
            unflushed: VecDeque::new(),
            flushing: None,
            storing: None,
            ends: Vec::new(),
            start: begins,
            few_members: false,
            trimmed: RecordNumber(0),
            server_ack: RecordNumber(0),
        }
    }

    pub(super) fn has_room(&self, length: usize) -> bool {
        let bytes = record_bytes(length, false) as u64;
        let end = self.tail.lsn.plus(bytes);
        self.writer.has_room(bytes)
            && end.since(self.superblock.head.lsn) <= self.log.capacity()
            && end.since(self.writer.stable()) <= self.ring.len() as u64
    }

    /// Appends a record and returns its end.
    pub(super) fn append(&mut self, payload: &[u8]) -> ChainPoint {
        let (epoch, stable) = (self.writer.epoch(), self.writer.stable());
        let header = RecordHeader::new(self.tail, epoch, stable, RecordKind(16), false, payload.len());
        let mut record = vec![0; header.length];
        header.write(&mut record);
        record[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + payload.len()].copy_from_slice(payload);
        let chain = finish_record(&mut record, self.log.seed());
        let end = ChainPoint {
            lsn: header.next(),
            chain,
        };
        let start = (self.tail.lsn.0 % self.ring.len() as u64) as usize;
        let first = record.len().min(self.ring.len() - start);
        self.ring[start..start + first].copy_from_slice(&record[..first]);
        self.ring[..record.len() - first].copy_from_slice(&record[first..]);
        self.tail = end;
        self.unflushed.push_back(end);
        self.ends.push(end);
        self.writer.on_append(end.lsn);
        end
    }

    /// The last acknowledged record.
    pub(super) fn acked(&self) -> RecordNumber {
        let acked = self.writer.acked();
        RecordNumber(self.ends.partition_point(|end| end.lsn <= acked) as u64)
    }

    pub(super) fn end_of(&self, number: RecordNumber) -> Option<ChainPoint> {
        match number.0.checked_sub(1) {
            None => Some(self.start),
            Some(index) => self.ends.get(index as usize).copied(),
        }
    }

    /// Trims the records that the server keeps and the disk has, once the log is a quarter full.
    fn trim(&mut self) -> bool {
        let used = self.tail.lsn.since(self.superblock.head.lsn);
        let stable = self.writer.stable();
        let stable = RecordNumber(self.ends.partition_point(|end| end.lsn <= stable) as u64);
        let upto = self.server_ack.min(stable);
        if used < self.log.capacity() / 4 || upto <= self.trimmed {
            return false;
        }
        let Some(head) = self.end_of(upto) else {
            return false;
        };
        self.superblock.head = head;
        self.superblock.stable = self.superblock.stable.max(self.writer.stable());
        self.log
            .store(&mut self.log_slots, &self.superblock)
            .expect(HEALTHY);
        self.trimmed = upto;
        true
    }

    fn ring_bytes(&self, from: Lsn, bytes: usize) -> Vec<u8> {
        let start = (from.0 % self.ring.len() as u64) as usize;
        let first = bytes.min(self.ring.len() - start);
        let mut out = self.ring[start..start + first].to_vec();
        out.extend_from_slice(&self.ring[..bytes - first]);
        out
    }

    /// Begins the due operations of the disk. `times`: how long a flush takes, and the store of a view.
    pub(super) fn run_disk(
        &mut self,
        kernel: &mut RegionKernel,
        (slot, life): (usize, u64),
        times: (Nanos, Nanos),
    ) {
        let mut trimmed = false;
        if self.flushing.is_none()
            && let Some(end) = self.unflushed.back().copied()
        {
            let from = self.writer.stable();
            let bytes = self.ring_bytes(from, end.lsn.since(from) as usize);
            self.unflushed.clear();
            self.log.write(from, &bytes).expect(HEALTHY);
            self.flushing = Some(end);
            kernel.at(times.0, Event::Flushed { slot, life });
        } else {
            trimmed = self.trim();
        }
        if self.storing.is_none()
            && let Some(view) = self.writer.view_to_store()
        {
            self.storing = Some(view);
            kernel.at(times.1, Event::ViewStored { slot, life });
        }
        if trimmed {
            kernel.hit("region: logs trimmed");
        }
    }

    /// Handles the end of a flush.
    pub(super) fn on_flushed(&mut self, now: Time) {
        if let Some(end) = self.flushing.take() {
            self.log.sync().expect(HEALTHY);
            self.writer.on_stable(end, now);
        }
    }

    /// Handles the view writer reaching its write.
    pub(super) fn on_view_stored(&mut self, now: Time) {
        if let Some(view) = self.storing.take() {
            let file = self.files.view();
            self.view_slots.store(&file, &view.encode()).expect(HEALTHY);
            self.view = view;
            self.writer.on_view_stored(now);
        }
    }

    pub(super) fn packet(&self, outgoing: &OutgoingFrame) -> Vec<u8> {
        match outgoing.body {
            FrameBody::Inline(bytes, length) => owners_packet(self.id, &outgoing.header, &bytes[..length]),
            FrameBody::Window(bytes) => packet_of(&outgoing.header, &bytes.to_le_bytes()),
            FrameBody::Log { from, bytes } => packet_of(&outgoing.header, &self.ring_bytes(from, bytes)),
            FrameBody::Channel(_) => unreachable!("nothing is multicast here"),
        }
    }
}
