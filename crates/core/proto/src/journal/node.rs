//! What a dead node of a shared region left at its members: its records, in order, and then that they may drop them.
//!
//! Sealing and reading is [`Recovery::of_node`](super::Recovery::of_node). What stands here needs no file: the server merges
//! the records and makes them durable in its own way, and may begin again at any point before that.

use alloc::string::String;
use alloc::vec::Vec;

use crate::id::{Epoch, JournalId, Lsn, WriterId};
use crate::limit::LSN_LAST;
use crate::planted::{Fault, Planted};
use crate::wire::{Checked, Cursor, Flag, Frame, FrameKind, Header, Link, Refusal, Seed, Step, step};

use super::assemble::{PeerWindow, from, walk};
use super::peer::bind_body;
use super::{Body, Outgoing, View};

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

/// Passes the records of the reign `reign` that continue `kept`, the server's end, to `each`, in order; returns where they end.
/// `genuine` is asked of every record that a member gave (its seal must open).
///
/// All windows are of one reign and so of one history: what one gives damaged another may give whole.
pub fn node_records(
    windows: &[PeerWindow],
    kept: Link,
    reign: Epoch,
    seed: Seed,
    planted: Planted,
    genuine: &mut dyn FnMut(Checked<'_>) -> bool,
    each: &mut dyn FnMut(Checked<'_>),
) -> (Link, Result<(), NodeReadError>) {
    let mut end = kept;
    let mut trusted = |record: Checked<'_>| record.header.epoch == reign && genuine(record);
    loop {
        let mut longest: Option<(Link, &[u8])> = None;
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
fn pass(bytes: &[u8], start: Link, seed: Seed, planted: Planted, each: &mut dyn FnMut(Checked<'_>)) {
    let (mut link, mut at) = (start, 0);
    while let Step::Record(header) = step(&bytes[at..], link, seed, planted) {
        let bytes = &bytes[at..at + header.length];
        each(Checked { header, bytes });
        link = header.link();
        at += header.length;
    }
}

/// Tells the lenders of a node that is gone, so that its records are merged and durable, that they may drop what they hold, and that its journal is
/// over: the members of its newest view, and others that may have a window, as spares have that were about to become members, or members of a view
/// before. Whoever cannot be reached keeps it: memory that is wasted, nothing else.
///
/// All are sealed, also those without a window: a node that stood still may come back, and would be given another. They remember that as long
/// as they have room for it ([`MemberState::may_be_forgotten`](crate::member::MemberState::may_be_forgotten)).
#[derive(Clone, Debug)]
pub struct Forget {
    journal: JournalId,
    /// Windows of this reign only are given back; `None`: of any.
    reign: Option<Epoch>,
    epoch: Epoch,
    writer: WriterId,
    /// Whoever tells has everything below on a disk. What lies behind it, a lender alone may have.
    had: Lsn,
    planted: Planted,
    lenders: Vec<(String, Telling)>,
}

/// How far one lender has been told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Telling {
    Bind,
    Seal,
    Leave {
        reign: u32,
        generation: u32,
    },
    Awaited(Awaited),
    /// Another session speaks for the journal here.
    InUse,
    /// It holds so many bytes that whoever tells did not have.
    HoldsMore {
        bytes: u64,
    },
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Bound,
    Sealed,
    Left,
}

impl Forget {
    /// The end of a log that lacks nothing, or whose records nobody wants.
    pub const ALL: Lsn = Lsn(u64::MAX);

    /// Of the node whose newest view at the server is `view`. Its members are told, and `others`.
    pub fn new(view: &View, others: &[String]) -> Forget {
        let (epoch, writer) = view.fence();
        let members = view.members.iter().map(|member| &member.address);
        let is_member = |address: &&String| view.members.iter().any(|member| member.address == **address);
        let others = others.iter().filter(|address| !is_member(address));
        let lenders = members.chain(others);
        Forget {
            journal: view.journal,
            reign: Some(view.epoch),
            epoch,
            writer,
            had: Forget::ALL,
            planted: Planted::NONE,
            lenders: lenders.map(|address| (address.clone(), Telling::Bind)).collect(),
        }
    }

    /// Of a journal that was deleted, with a log that had everything below `had` on its disk. Its last writer says so, under its own epoch. Windows of all reigns go.
    ///
    /// Three things keep a copy that is deleted from taking its original's records along. The seal of a newer writer refuses whoever has an old
    /// copy. A lender refuses while the original is served ([`Flag::ALONE`]). And a window that reaches beyond `had` stays
    /// ([`Forget::holds_more`]): the original may need it.
    pub fn deleted(
        journal: JournalId,
        (epoch, writer): (Epoch, WriterId),
        had: Lsn,
        lenders: &[String],
    ) -> Forget {
        Forget {
            journal,
            reign: None,
            epoch,
            writer,
            had,
            planted: Planted::NONE,
            lenders: { lenders.iter() }
                .map(|address| (address.clone(), Telling::Bind))
                .collect(),
        }
    }

    /// Switches planted faults on.
    pub fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// Whom to tell: lenders are named by their places here.
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = &str> {
        self.lenders.iter().map(|(address, _)| address.as_str())
    }

    /// A connection to lender `index` stands.
    pub fn on_connected(&mut self, index: usize) {
        let (_, telling) = &mut self.lenders[index];
        if *telling != Telling::Done {
            *telling = Telling::Bind;
        }
    }

    /// The next frame for lender `index`, if it is time for one. Each is answered by one frame.
    pub fn next_frame(&mut self, index: usize) -> Option<Outgoing> {
        let (_, telling) = &mut self.lenders[index];
        let header = |kind| Header {
            epoch: self.epoch,
            who: self.writer.0,
            ..Header::new(kind)
        };
        let (awaited, header, body) = match *telling {
            Telling::Bind => (Awaited::Bound, header(FrameKind::Bind), bind_body(self.journal)),
            Telling::Seal => (Awaited::Sealed, header(FrameKind::Seal), Body::NONE),
            Telling::Leave { reign, generation } => {
                // A window that another reign opened is no remnant of a node: it is not given back, and its journal goes on.
                let (flags, reign) = match self.reign {
                    Some(reign) => (Flag::ENDED, reign.0),
                    None => (Flag::ENDED | Flag::ALONE, reign),
                };
                let leave = Header {
                    flags,
                    lsn: Lsn(u64::from(reign)),
                    mark: generation,
                    ..header(FrameKind::Leave)
                };
                (Awaited::Left, leave, Body::NONE)
            }
            Telling::Awaited(_) | Telling::InUse | Telling::HoldsMore { .. } | Telling::Done => return None,
        };
        *telling = Telling::Awaited(awaited);
        Some(Outgoing { header, body })
    }

    /// Lender `index` sent a frame.
    pub fn on_frame(&mut self, index: usize, frame: &Frame<'_>) {
        let believes = self.planted.is(Fault::HoldingsForgotten);
        let (_, telling) = &mut self.lenders[index];
        let has_window = frame.header.flags & Flag::KNOWN != 0;
        *telling = match (*telling, frame.header.kind) {
            (Telling::Awaited(Awaited::Bound), FrameKind::Bound) => Telling::Seal,
            (Telling::Awaited(Awaited::Sealed), FrameKind::Sealed)
                if has_window && frame.header.lsn > self.had && !believes =>
            {
                Telling::HoldsMore {
                    bytes: frame.header.lsn.since(self.had.max(frame.header.stable)),
                }
            }
            (Telling::Awaited(Awaited::Sealed), FrameKind::Sealed) => Telling::Leave {
                reign: Cursor::new(frame.body).u32().unwrap_or_default(),
                generation: frame.header.mark,
            },
            (Telling::Awaited(Awaited::Left), FrameKind::Left) => Telling::Done,
            (Telling::Awaited(_), FrameKind::Refuse)
                if Refusal::from_byte(frame.header.flags) == Some(Refusal::InUse) =>
            {
                Telling::InUse
            }
            // It will be there again, or have room again, another time.
            (Telling::Awaited(awaited), FrameKind::Refuse)
                if Refusal::from_byte(frame.header.flags) == Some(Refusal::Stopping) =>
            {
                Telling::Awaited(awaited)
            }
            // It obeys somebody else, or has nothing to say to us.
            (Telling::Awaited(_), FrameKind::Refuse) => Telling::Done,
            (telling, _) => telling,
        };
    }

    /// Whether lender `index` has nothing of the journal any more, or is none of ours.
    pub fn is_done(&self, index: usize) -> bool {
        self.lenders[index].1 == Telling::Done
    }

    /// Whether another session speaks for the journal at lender `index`. It is asked again over the next connection.
    pub fn is_in_use(&self, index: usize) -> bool {
        self.lenders[index].1 == Telling::InUse
    }

    /// How many bytes lender `index` holds that the deleted log did not have, if it is kept from freeing them.
    pub fn holds_more(&self, index: usize) -> Option<u64> {
        match self.lenders[index].1 {
            Telling::HoldsMore { bytes } => Some(bytes),
            _ => None,
        }
    }

    /// Whether nothing is left to say to lender `index` over this connection.
    pub fn is_answered(&self, index: usize) -> bool {
        matches!(
            self.lenders[index].1,
            Telling::Done | Telling::InUse | Telling::HoldsMore { .. }
        )
    }

    /// Whether all are.
    pub fn is_over(&self) -> bool {
        self.lenders.iter().all(|(_, telling)| *telling == Telling::Done)
    }
}
