//! What a dead node of a shared region left at its members: its records, in order, and then that they may
//! drop them.
//!
//! Sealing and reading is [`Recovery::of_node`](super::Recovery::of_node). What stands here needs no file:
//! the server merges the records and makes them durable in its own way, and may begin again at any point
//! before that.

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

/// Why what the members gave is not all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeReadError {
    /// The records end here.
    pub at: Lsn,
    /// The members said that they hold everything below, as many of them as an acknowledgement takes.
    pub promised: Lsn,
}

impl core::fmt::Display for NodeReadError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            out,
            "members hold LSN {} to {} of the node's journal, but what they give is damaged, and acknowledged records may lie there. Start the node again at its directory, or give up what follows with --accept-loss",
            self.at, self.promised
        )
    }
}

impl core::error::Error for NodeReadError {}

/// Passes the records of the reign `reign` that continue `kept`, the server's end, to `each`, in order;
/// returns where they end. `genuine` is asked of every record that a member gave (its seal must open).
///
/// All windows are of one reign and so of one history: what one gives damaged another may give whole.
pub fn node_records(
    windows: &[PeerWindow],
    kept: ChainPoint,
    reign: Epoch,
    seed: CrcSeed,
    planted: FaultSwitch,
    genuine: &mut dyn FnMut(CheckedRecord<'_>) -> bool,
    each: &mut dyn FnMut(CheckedRecord<'_>),
) -> (ChainPoint, Result<(), NodeReadError>) {
    let mut end = kept;
    let mut trusted = |record: CheckedRecord<'_>| record.header.epoch == reign && genuine(record);
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

/// Passes records that were checked before.
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

/// Tells the lenders of a node that is gone, so that its records are merged and durable, that they may drop
/// what they hold, and that its journal is over: the members of its newest view, and others that may have a
/// window, as spares have that were about to become members, or members of a view before. Whoever cannot be
/// reached keeps it: memory that is wasted, nothing else.
///
/// All are sealed, also those without a window: a node that stood still may come back, and would be given
/// another. They remember that as long as they have room for it
/// ([`MemberState::may_be_forgotten`](crate::member::MemberState::may_be_forgotten)).
#[derive(Clone, Debug)]
pub struct ForgetNotice {
    journal: JournalId,
    /// Windows of this reign only are given back; `None`: of any.
    reign: Option<Epoch>,
    epoch: Epoch,
    writer: WriterId,
    /// Whoever tells has everything below on a disk. What lies behind it, a lender alone may have.
    durable_end: Lsn,
    planted: FaultSwitch,
    lenders: Vec<(String, NoticeStep)>,
}

/// How far one lender has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoticeStep {
    Bind,
    Fence,
    Leave {
        reign: u32,
        generation: u32,
    },
    Awaited(AwaitedReply),
    /// Another session speaks for the journal here.
    InUse,
    /// It holds so many bytes that whoever tells did not have.
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
    /// The end of a log that lacks nothing, or whose records nobody wants.
    pub const ALL: Lsn = Lsn(u64::MAX);

    /// Of the node whose newest view at the server is `view`. Its members are told, and `others`.
    pub fn new(view: &View, others: &[String]) -> ForgetNotice {
        let (epoch, writer) = view.fence();
        let members = view.members.iter().map(|member| &member.address);
        let is_member = |address: &&String| view.members.iter().any(|member| member.address == **address);
        let others = others.iter().filter(|address| !is_member(address));
        let lenders = members.chain(others);
        ForgetNotice {
            journal: view.journal,
            reign: Some(view.epoch),
            epoch,
            writer,
            durable_end: ForgetNotice::ALL,
            planted: FaultSwitch::NONE,
            lenders: lenders
                .map(|address| (address.clone(), NoticeStep::Bind))
                .collect(),
        }
    }

    /// Of a journal that was deleted, with a log that had everything below `had` on its disk. Its last writer
    /// says so, under its own epoch. Windows of all reigns go.
    ///
    /// Three things keep a copy that is deleted from taking its original's records along. The seal of a newer
    /// writer refuses whoever has an old copy. A lender refuses while the original is served
    /// ([`Flag::UNLESS_IN_USE`]). And a window that reaches beyond `had` stays
    /// ([`ForgetNotice::holds_more`]): the original may need it.
    pub fn deleted(
        journal: JournalId,
        (epoch, writer): (Epoch, WriterId),
        had: Lsn,
        lenders: &[String],
    ) -> ForgetNotice {
        ForgetNotice {
            journal,
            reign: None,
            epoch,
            writer,
            durable_end: had,
            planted: FaultSwitch::NONE,
            lenders: { lenders.iter() }
                .map(|address| (address.clone(), NoticeStep::Bind))
                .collect(),
        }
    }

    /// Switches planted faults on.
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Whom to tell: lenders are named by their places here.
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = &str> {
        self.lenders.iter().map(|(address, _)| address.as_str())
    }

    /// A connection to lender `index` stands.
    pub fn on_connected(&mut self, index: usize) {
        let (_, telling) = &mut self.lenders[index];
        if *telling != NoticeStep::Done {
            *telling = NoticeStep::Bind;
        }
    }

    /// The next frame for lender `index`, if it is time for one. Each is answered by one frame.
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
            NoticeStep::Leave { reign, generation } => {
                // A window that another reign opened is no remnant of a node: it is not given back, and its
                // journal goes on.
                let (flags, reign) = match self.reign {
                    Some(reign) => (Flag::ENDED, reign.0),
                    None => (Flag::ENDED | Flag::UNLESS_IN_USE, reign),
                };
                let leave = FrameHeader {
                    flags,
                    lsn: Lsn(u64::from(reign)),
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

    /// Lender `index` sent a frame.
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
                reign: ByteReader::new(frame.body).u32().unwrap_or_default(),
                generation: frame.header.mark,
            },
            (NoticeStep::Awaited(AwaitedReply::LeaveAck), FrameKind::LeaveAck) => NoticeStep::Done,
            (NoticeStep::Awaited(_), FrameKind::Refuse)
                if RefusalReason::from_byte(frame.header.flags) == Some(RefusalReason::InUse) =>
            {
                NoticeStep::InUse
            }
            // It will be there again, or have room again, another time.
            (NoticeStep::Awaited(awaited), FrameKind::Refuse)
                if RefusalReason::from_byte(frame.header.flags) == Some(RefusalReason::Stopping) =>
            {
                NoticeStep::Awaited(awaited)
            }
            // It obeys somebody else, or has nothing to say to us.
            (NoticeStep::Awaited(_), FrameKind::Refuse) => NoticeStep::Done,
            (telling, _) => telling,
        };
    }

    /// Whether lender `index` has nothing of the journal any more, or is none of ours.
    pub fn is_done(&self, index: usize) -> bool {
        self.lenders[index].1 == NoticeStep::Done
    }

    /// Whether another session speaks for the journal at lender `index`. It is asked again over the next
    /// connection.
    pub fn is_in_use(&self, index: usize) -> bool {
        self.lenders[index].1 == NoticeStep::InUse
    }

    /// How many bytes lender `index` holds that the deleted log did not have, if it is kept from freeing
    /// them.
    pub fn holds_more(&self, index: usize) -> Option<u64> {
        match self.lenders[index].1 {
            NoticeStep::HoldsMore { bytes } => Some(bytes),
            _ => None,
        }
    }

    /// Whether nothing is left to say to lender `index` over this connection.
    pub fn is_answered(&self, index: usize) -> bool {
        matches!(
            self.lenders[index].1,
            NoticeStep::Done | NoticeStep::InUse | NoticeStep::HoldsMore { .. }
        )
    }

    /// Whether all are.
    pub fn is_over(&self) -> bool {
        self.lenders
            .iter()
            .all(|(_, telling)| *telling == NoticeStep::Done)
    }
}
