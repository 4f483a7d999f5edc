//! Reading the records of a shared region's dead node from its members, and telling the members that they may
//! drop them.
//!
//! [`Recovery::of_node`](super::Recovery::of_node) fences and reads the members. Nothing here needs a file:
//! the server merges the records, makes them durable, and may start over at any point before that.

use alloc::string::String;
use alloc::vec::Vec;

use crate::id::{Epoch, JournalId, Lsn, WriterId};
use crate::limit::LSN_LAST;
use crate::planted::{FaultSwitch, PlantedFault};
use crate::wire::{
    ByteReader, ChainPoint, CheckedRecord, CrcSeed, Flag, Frame, FrameHeader, FrameKind, RefusalReason,
    ScanStep, scan_step,
};

use super::assemble::{PeerWindow, from, walk};
use super::peer::bind_body;
use super::{FrameBody, OutgoingFrame, View};

/// The members' windows lack records that may have been acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeReadError {
    /// End of the records found.
    pub at: Lsn,
    /// The LSN up to which enough members claim to hold everything for it to have been acknowledged.
    pub promised: Lsn,
}

impl core::fmt::Display for NodeReadError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            out,
            "members hold LSN {} to {} of the node's journal, but their copies are damaged, and acknowledged records may be among them. Restart the node in its directory, or discard everything from there on with --accept-loss",
            self.at, self.promised
        )
    }
}

impl core::error::Error for NodeReadError {}

/// Passes the records of `epoch` that continue `kept`, the server's end, to `each`, in order. Returns
/// where they end. `genuine` checks every record that a member gave: its AEAD tag must verify.
///
/// All windows are of one epoch and so of one history: a record that is damaged in one window may be intact
/// in another.
///
/// # Errors
///
/// The second value is an error if members claim to hold records that no window has intact. The records
/// before them have then been passed.
pub fn node_records(
    windows: &[PeerWindow],
    kept: ChainPoint,
    epoch: Epoch,
    seed: CrcSeed,
    planted: FaultSwitch,
    genuine: &mut dyn FnMut(CheckedRecord<'_>) -> bool,
    each: &mut dyn FnMut(CheckedRecord<'_>),
) -> (ChainPoint, Result<(), NodeReadError>) {
    let mut end = kept;
    let mut trusted = |record: CheckedRecord<'_>| record.header.epoch == epoch && genuine(record);
    loop {
        let mut longest: Option<(ChainPoint, &[u8])> = None;
        for bytes in windows.iter().filter_map(|window| from(window, end.lsn)) {
            let (reached, _) = walk(seed, bytes, end, LSN_LAST, planted, &mut trusted);
            if reached.lsn > longest.map_or(end.lsn, |(link, _)| link.lsn) {
                longest = Some((reached, &bytes[..reached.lsn.since(end.lsn) as usize]));
            }
        }
        let Some((reached, bytes)) = longest else { break };
        pass(bytes, end, seed, planted, each);
        end = reached;
    }
    let promised = windows.iter().map(|window| window.promised).max();
    let promised = promised.unwrap_or_default();
    let all = match end.lsn < promised {
        true => Err(NodeReadError {
            at: end.lsn,
            promised,
        }),
        false => Ok(()),
    };
    (end, all)
}

/// Passes records that have already been checked.
fn pass(
    bytes: &[u8],
    start: ChainPoint,
    seed: CrcSeed,
    planted: FaultSwitch,
    each: &mut dyn FnMut(CheckedRecord<'_>),
) {
    let (mut link, mut at) = (start, 0);
    while let ScanStep::Record(header) = scan_step(&bytes[at..], link, seed, planted) {
        let bytes = &bytes[at..at + header.length];
        each(CheckedRecord { header, bytes });
        link = header.next_point();
        at += header.length;
    }
}

/// Tells lenders that a journal has ended and that they may free what they hold of it.
///
/// For a node that is gone, its records must be merged and durable. The notice goes to the members of its
/// newest view, and to other lenders that may have a window: spares that were about to become members, and
/// members of an earlier view. A lender that cannot be reached keeps its window; that only wastes memory.
///
/// All lenders are fenced, even those without a window: a node that was merely paused may come back and ask
/// for a new one. They remember the fence as long as they have room for it
/// ([`MemberState::may_be_forgotten`](crate::member::MemberState::may_be_forgotten)).
#[derive(Clone, Debug)]
pub struct ForgetNotice {
    journal: JournalId,
    /// The epoch whose windows are freed; `None`: windows of any epoch.
    window_epoch: Option<Epoch>,
    epoch: Epoch,
    writer: WriterId,
    /// Everything below is on the sender's disk. Records above may exist only at a lender.
    durable_end: Lsn,
    planted: FaultSwitch,
    lenders: Vec<(String, NoticeStep)>,
}

/// Progress of the notice at one lender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoticeStep {
    Bind,
    Fence,
    Leave {
        window_epoch: u32,
        generation: u32,
    },
    Awaited(AwaitedReply),
    /// Another session serves the journal at this lender.
    InUse,
    /// The lender holds this many bytes that the sender's log does not have.
    HoldsMore {
        bytes: u64,
    },
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AwaitedReply {
    Bound,
    Fenced,
    LeaveAck,
}

impl ForgetNotice {
    /// The end of a log that lacks nothing, or whose records are not needed.
    pub const ALL: Lsn = Lsn(u64::MAX);

    /// A notice for a dead node, to the members of `view`, the newest that the server has, and to `others`.
    pub fn new(view: &View, others: &[String]) -> ForgetNotice {
        let (epoch, writer) = view.fence();
        let members = view.members.iter().map(|member| &member.address);
        let is_member = |address: &&String| view.members.iter().any(|member| member.address == **address);
        let others = others.iter().filter(|address| !is_member(address));
        let lenders = members.chain(others);
        ForgetNotice {
            journal: view.journal,
            window_epoch: Some(view.epoch),
            epoch,
            writer,
            durable_end: ForgetNotice::ALL,
            planted: FaultSwitch::NONE,
            lenders: lenders
                .map(|address| (address.clone(), NoticeStep::Bind))
                .collect(),
        }
    }

    /// A notice for a deleted journal whose log had everything below `had` on its disk. It is sent under the
    /// last writer's own epoch, and frees windows of all epochs.
    ///
    /// Three rules keep the deletion of a copy from destroying records of the original. The fence of a newer
    /// writer refuses a sender with an old copy. A lender refuses while the original is being served
    /// ([`Flag::UNLESS_IN_USE`]). A window that reaches beyond `had` stays ([`ForgetNotice::holds_more`]),
    /// because the original may need it.
    pub fn deleted(
        journal: JournalId,
        (epoch, writer): (Epoch, WriterId),
        had: Lsn,
        lenders: &[String],
    ) -> ForgetNotice {
        ForgetNotice {
            journal,
            window_epoch: None,
            epoch,
            writer,
            durable_end: had,
            planted: FaultSwitch::NONE,
            lenders: { lenders.iter() }
                .map(|address| (address.clone(), NoticeStep::Bind))
                .collect(),
        }
    }

    /// Plants a fault (simulator tests only).
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// The addresses of the lenders; the other methods take an index into this list.
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = &str> {
        self.lenders.iter().map(|(address, _)| address.as_str())
    }

    /// Handles a new connection to lender `index`.
    pub fn on_connected(&mut self, index: usize) {
        let (_, telling) = &mut self.lenders[index];
        if *telling != NoticeStep::Done {
            *telling = NoticeStep::Bind;
        }
    }

    /// The next frame for lender `index`, if one is due. Each is answered by one frame.
    pub fn next_frame(&mut self, index: usize) -> Option<OutgoingFrame> {
        let (_, telling) = &mut self.lenders[index];
        let header = |kind| FrameHeader {
            epoch: self.epoch,
            sender: self.writer.0,
            ..FrameHeader::new(kind)
        };
        let (awaited, header, body) = match *telling {
            NoticeStep::Bind => (
                AwaitedReply::Bound,
                header(FrameKind::Bind),
                bind_body(self.journal),
            ),
            NoticeStep::Fence => (AwaitedReply::Fenced, header(FrameKind::Fence), FrameBody::NONE),
            NoticeStep::Leave {
                window_epoch,
                generation,
            } => {
                // A window that another epoch opened does not belong to the dead node: it stays, and its
                // journal goes on.
                let (flags, window_epoch) = match self.window_epoch {
                    Some(window_epoch) => (Flag::ENDED, window_epoch.0),
                    None => (Flag::ENDED | Flag::UNLESS_IN_USE, window_epoch),
                };
                let leave = FrameHeader {
                    flags,
                    lsn: Lsn(u64::from(window_epoch)),
                    mark: generation,
                    ..header(FrameKind::Leave)
                };
                (AwaitedReply::LeaveAck, leave, FrameBody::NONE)
            }
            NoticeStep::Awaited(_) | NoticeStep::InUse | NoticeStep::HoldsMore { .. } | NoticeStep::Done => {
                return None;
            }
        };
        *telling = NoticeStep::Awaited(awaited);
        Some(OutgoingFrame { header, body })
    }

    /// Handles a frame from lender `index`.
    pub fn on_frame(&mut self, index: usize, frame: &Frame<'_>) {
        let believes = self.planted.is(PlantedFault::HoldingsForgotten);
        let (_, telling) = &mut self.lenders[index];
        let has_window = frame.header.flags & Flag::KNOWN != 0;
        *telling = match (*telling, frame.header.kind) {
            (NoticeStep::Awaited(AwaitedReply::Bound), FrameKind::Bound) => NoticeStep::Fence,
            (NoticeStep::Awaited(AwaitedReply::Fenced), FrameKind::Fenced)
                if has_window && frame.header.lsn > self.durable_end && !believes =>
            {
                NoticeStep::HoldsMore {
                    bytes: frame.header.lsn.since(self.durable_end.max(frame.header.stable)),
                }
            }
            (NoticeStep::Awaited(AwaitedReply::Fenced), FrameKind::Fenced) => NoticeStep::Leave {
                window_epoch: ByteReader::new(frame.body).u32().unwrap_or_default(),
                generation: frame.header.mark,
            },
            (NoticeStep::Awaited(AwaitedReply::LeaveAck), FrameKind::LeaveAck) => NoticeStep::Done,
            (NoticeStep::Awaited(_), FrameKind::Refuse)
                if RefusalReason::from_byte(frame.header.flags) == Some(RefusalReason::InUse) =>
            {
                NoticeStep::InUse
            }
            // The lender is stopping; a later connection may succeed.
            (NoticeStep::Awaited(awaited), FrameKind::Refuse)
                if RefusalReason::from_byte(frame.header.flags) == Some(RefusalReason::Stopping) =>
            {
                NoticeStep::Awaited(awaited)
            }
            // The lender obeys a newer writer, or has nothing of this journal.
            (NoticeStep::Awaited(_), FrameKind::Refuse) => NoticeStep::Done,
            (telling, _) => telling,
        };
    }

    /// Whether lender `index` has freed everything of the journal, or obeys a newer writer.
    pub fn is_done(&self, index: usize) -> bool {
        self.lenders[index].1 == NoticeStep::Done
    }

    /// Whether another session serves the journal at lender `index`. The next connection asks again.
    pub fn is_in_use(&self, index: usize) -> bool {
        self.lenders[index].1 == NoticeStep::InUse
    }

    /// Number of bytes that lender `index` holds beyond the deleted log, if that keeps it from freeing them.
    pub fn holds_more(&self, index: usize) -> Option<u64> {
        match self.lenders[index].1 {
            NoticeStep::HoldsMore { bytes } => Some(bytes),
            _ => None,
        }
    }

    /// Whether this connection to lender `index` has no more frames to send.
    pub fn is_answered(&self, index: usize) -> bool {
        matches!(
            self.lenders[index].1,
            NoticeStep::Done | NoticeStep::InUse | NoticeStep::HoldsMore { .. }
        )
    }

    /// Whether all lenders are done.
    pub fn is_over(&self) -> bool {
        self.lenders
            .iter()
            .all(|(_, telling)| *telling == NoticeStep::Done)
    }
}
