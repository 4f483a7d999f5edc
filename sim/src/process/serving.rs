//! A journal that serves: the machine inside, with the state that its driver keeps for it.

use std::collections::VecDeque;

use netram_proto::failure::{CallError, RetryPolicy};
use netram_proto::id::{EpochSalt, JournalId, Lsn};
use netram_proto::journal::{
    FrameBody, JournalWriter, LogFile, LogSuperblock, MulticastTiming, OutgoingFrame, SlotPair, View, Voter,
    WriterConfig,
};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::IoError;
use netram_proto::time::Time;
use netram_proto::wire::ChainPoint;

use crate::data::{DataLink, DataService};
use crate::disk::SimFile;
use crate::hosts::ClientHost;
use crate::kernel::SimKernel;
use crate::lender::packet_of;
use crate::lenders::Lenders;
use crate::server::SimServerLink;
use crate::signatures::owners_packet;

/// The files of a journal that is being opened.
pub(crate) struct OpenedFiles {
    pub(crate) log: LogFile<SimFile>,
    pub(crate) log_slots: SlotPair,
    pub(crate) superblock: LogSuperblock,
    pub(crate) view_file: SimFile,
    pub(crate) view_slots: SlotPair,
    pub(crate) view: View,
    /// The last view that was stored in both slots.
    pub(crate) view_full: View,
}

/// The serving machine, and the state that its driver keeps for it.
pub(crate) struct ServingState {
    pub(crate) writer: JournalWriter,
    /// The salt of the key that seals records. Records are in the clear here; the oracle of rule 21 notes
    /// them.
    pub(crate) salt: Option<EpochSalt>,
    pub(crate) log: LogFile<SimFile>,
    pub(super) log_slots: SlotPair,
    pub(crate) superblock: LogSuperblock,
    pub(super) view_file: SimFile,
    pub(super) view_slots: SlotPair,
    pub(super) view_full: View,
    ring: Vec<u8>,
    /// Position of the next record, and the chain value before it.
    pub(crate) tail: ChainPoint,
    /// End of the stable log as reported to the writer.
    pub(super) stable: ChainPoint,
    /// Ends of records that are not on the disk yet.
    pub(super) ends: VecDeque<ChainPoint>,
    /// End of the batch that is being synced.
    pub(super) flushing: Option<ChainPoint>,
    /// The view that is being stored.
    pub(super) storing: Option<View>,
    /// Retries after refused operations on the log.
    pub(super) log_policy: RetryPolicy,
    pub(super) view_policy: RetryPolicy,
    /// The log is not written before this time.
    pub(super) log_due: Time,
    /// Error for which the local disk was given up; nothing more is written.
    pub(crate) poisoned: Option<IoError>,
    /// Number of syncs of this disk that had failed when the process began to serve.
    pub(crate) syncs_failed_before: u64,
    pub(super) planted: FaultSwitch,
    /// LSN that was acknowledged when the writer learnt that it is fenced, as the oracle saw it.
    pub(crate) acked_at_fence: Option<Lsn>,
    /// Link to a data lender that also keeps the volume.
    pub(crate) data: Option<DataLink>,
    /// Link to the server, if the journal is a node's.
    pub(crate) server: Option<SimServerLink>,
}

impl ServingState {
    /// A writer for the epoch that `files.view` made durable; the log ends at `end`.
    pub(crate) fn new(
        kernel: &SimKernel,
        host: &ClientHost,
        files: OpenedFiles,
        end: ChainPoint,
        (lenders, data, voter): (&Lenders, &DataService, Voter),
    ) -> ServingState {
        let failed_before = host.disk.borrow().counts.sync_failures;
        let mut writer = JournalWriter::new(
            kernel.journal(),
            files.view.epoch,
            files.view.writer,
            files.view.version,
            end,
            writer_config(kernel, lenders, voter),
        )
        .with_epochs(files.view.epochs.clone())
        .with_salt(files.view.salt);
        writer.plant(kernel.planted());
        let link = data.exists().then(|| {
            let view = files.view.clone();
            let log = (files.superblock.head.lsn, end.lsn);
            DataLink::new(kernel, view, data.volume_bytes(), log)
        });
        ServingState {
            salt: files.view.sealing_salt(kernel.planted()),
            writer,
            log: files.log,
            log_slots: files.log_slots,
            superblock: files.superblock,
            view_file: files.view_file,
            view_slots: files.view_slots,
            view_full: files.view_full,
            ring: vec![0; kernel.profile.window as usize],
            tail: end,
            stable: end,
            ends: VecDeque::new(),
            flushing: None,
            storing: None,
            log_policy: RetryPolicy::new(),
            view_policy: RetryPolicy::new(),
            log_due: Time(0),
            poisoned: None,
            syncs_failed_before: failed_before,
            planted: kernel.planted(),
            acked_at_fence: None,
            data: link,
            server: (voter == Voter::Server).then(SimServerLink::default),
        }
    }

    /// Puts a finished record into the ring.
    pub(crate) fn take_record(&mut self, record: &[u8], end: ChainPoint) {
        let capacity = self.ring.len();
        let start = (self.tail.lsn.0 % capacity as u64) as usize;
        let first = record.len().min(capacity - start);
        self.ring[start..start + first].copy_from_slice(&record[..first]);
        self.ring[..record.len() - first].copy_from_slice(&record[first..]);
        self.tail = end;
        self.ends.push_back(end);
        self.writer.on_append(end.lsn);
    }

    pub(super) fn ring_bytes(&self, from: Lsn, bytes: usize) -> Vec<u8> {
        let capacity = self.ring.len();
        let start = (from.0 % capacity as u64) as usize;
        let first = bytes.min(capacity - start);
        let mut out = Vec::with_capacity(bytes);
        out.extend_from_slice(&self.ring[start..start + first]);
        out.extend_from_slice(&self.ring[..bytes - first]);
        out
    }

    pub(super) fn packet(&self, journal: JournalId, outgoing: &OutgoingFrame) -> Vec<u8> {
        match outgoing.body {
            FrameBody::Inline(bytes, length) => owners_packet(journal, &outgoing.header, &bytes[..length]),
            FrameBody::Window(bytes) => packet_of(&outgoing.header, &bytes.to_le_bytes()),
            // In this world a key is its channel's number, which the header has.
            FrameBody::Channel(_) => packet_of(&outgoing.header, &[]),
            FrameBody::Log { from, bytes } => packet_of(&outgoing.header, &self.ring_bytes(from, bytes)),
        }
    }

    pub(crate) fn stable_end(&self) -> ChainPoint {
        self.stable
    }

    pub(super) fn poison(&mut self, error: IoError) {
        self.poisoned.get_or_insert(error);
        self.writer.on_disk_failed();
    }

    /// Stores the superblock with a new head. It is durable on return.
    pub(crate) fn store_head(&mut self, head: ChainPoint) -> Result<(), CallError> {
        let superblock = LogSuperblock {
            head,
            stable: self.superblock.stable.max(self.writer.stable()),
            ..self.superblock
        };
        self.log.store(&mut self.log_slots, &superblock)?;
        self.superblock = superblock;
        Ok(())
    }
}

fn writer_config(kernel: &SimKernel, lenders: &Lenders, voter: Voter) -> WriterConfig {
    let profile = &kernel.profile;
    WriterConfig {
        lenders: lenders.addresses(),
        rule: profile.rule,
        wanted: profile.wanted,
        min: profile.min,
        domain: String::from("d0"),
        one_domain: profile.one_domain,
        window_bytes: profile.window,
        timing: profile.timing,
        cast: profile.multicast.then(MulticastTiming::default),
        voter,
    }
}

/// A view in a line of the story.
pub(crate) fn describe_view(view: &View) -> String {
    let members: Vec<&str> = view
        .members
        .iter()
        .map(|member| member.address.as_str())
        .collect();
    let View {
        version,
        epoch,
        counting,
        ..
    } = view;
    format!("view {version} of epoch {epoch}, {members:?} counting {counting}")
}
