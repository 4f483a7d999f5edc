//! What the server knows of one node.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;

use super::SessionId;
use super::retire::PendingForget;
use crate::message::PeerEndpoint;
use crate::{NodeId, Position, RecordNumber, ToNode};
use netram_proto::id::JournalId;
use netram_proto::journal::View;
use netram_proto::time::Time;
use netram_proto::wire::ChainPoint;

/// Where a node is in its life. Durable are only: none yet, live, being fenced, gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Its id is being made durable.
    Entering,
    /// It is a node. It may be silent, for less than its lease.
    Live,
    /// It was a node when the server started, and has not come back yet.
    Absent,
    /// It has fallen behind: it is to leave, and join again.
    Behind,
    /// It has left, and what it sent is being made durable.
    Leaving,
    /// That it is being fenced is being made durable.
    Fencing,
    /// Its journal is being read.
    Reading,
    /// Its journal cannot be read to a proven end. What it held stays taken.
    Stuck,
    /// All of it is known, and is being merged.
    Read,
    /// That it is gone is being made durable.
    Going,
    /// Nothing of it will ever come.
    Gone,
}

impl NodeState {
    /// Its messages count.
    pub(super) fn speaks(self) -> bool {
        matches!(self, NodeState::Live | NodeState::Behind)
    }

    /// Not all of it is known to be here.
    pub(super) fn may_be_fenced(self) -> bool {
        self.has_lease() || self == NodeState::Leaving
    }

    /// Silence ends it.
    pub(super) fn has_lease(self) -> bool {
        matches!(self, NodeState::Live | NodeState::Absent | NodeState::Behind)
    }
}

/// What is known of a node's journal; durable but for what is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeJournal {
    /// The newest view that is durable here, and so counts.
    pub view: View,
    /// The key that seals its records.
    pub key: Vec<u8>,
    /// The last record that is durable here.
    pub kept: RecordNumber,
    /// Where that ends.
    pub end: ChainPoint,
}

/// A merged record that is not durable yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct UndurableRecord {
    pub(super) position: Position,
    pub(super) number: RecordNumber,
    /// `None`: it was read from a dead node's journal, which needs no mark of where to read on.
    pub(super) end: Option<ChainPoint>,
}

/// How far a node that resumes has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResumeState {
    /// All of its tokens are.
    Yes,
    /// Its claims are awaited.
    Unclaimed,
    /// They have come, and count once this record of it is merged.
    Claimed(RecordNumber),
}

/// What a node is being given of the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageProgress {
    /// All of it.
    Done,
    /// Pages from this byte on.
    From(u64),
    /// All pages were sent; the region is whole once everything up to this place is there.
    Until(Position),
}

/// Records of a journal that is being offered, as far as they have come.
#[derive(Clone, Debug)]
pub(super) struct OfferedRecords<P> {
    pub(super) records: Vec<(RecordNumber, P)>,
    pub(super) bytes: usize,
}

impl<P> Default for OfferedRecords<P> {
    fn default() -> OfferedRecords<P> {
        OfferedRecords {
            records: Vec::new(),
            bytes: 0,
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct ServerPeer<P> {
    pub(super) state: NodeState,
    pub(super) session: Option<SessionId>,
    /// The newest of its links over which it has introduced itself, as it counts them; none since the server
    /// has started: 0.
    pub(super) link: u64,
    /// When it was last heard.
    pub(super) heard_at: Time,
    /// Since when it has no link because its machine has closed it.
    pub(super) hung_up: Option<Time>,
    /// Since when it is behind, or leaving, as far as that has been noticed.
    pub(super) behind: Option<Time>,
    pub(super) id: JournalId,
    pub(super) journal: Option<NodeJournal>,
    /// Views on their way to the disk.
    pub(super) views: VecDeque<View>,
    pub(super) lazy: bool,
    /// Records up to here are wanted though it is lazy.
    pub(super) wanted: Position,
    /// The next record to send.
    pub(super) next: Position,
    /// What goes among the records, each behind the one at its place.
    pub(super) outbox: VecDeque<(Position, ToNode<P>)>,
    pub(super) pages: PageProgress,
    /// The next thing to send of a joining node's is a page, even though there are records.
    pub(super) page_first: bool,
    pub(super) known: ResumeState,
    pub(super) undurable: VecDeque<UndurableRecord>,
    /// `Durable` has something new to say.
    pub(super) durable_due: bool,
    /// What it says to have of other nodes beyond what is merged.
    pub(super) ahead: BTreeMap<NodeId, RecordNumber>,
    /// It has left, and tells its lenders itself.
    pub(super) has_left: bool,
    /// It is gone, and its lenders do not all know that.
    pub(super) pending_forget: Option<PendingForget>,
    /// Whoever offered its journal, and up to which record.
    pub(super) offer: Option<(SessionId, RecordNumber)>,
    pub(super) offered: OfferedRecords<P>,
    /// Bytes of its records that wait to be merged.
    pub(super) waiting_bytes: usize,
    /// How other nodes reach it; `None`: they do not.
    pub(super) reach: Option<PeerEndpoint>,
    /// Over the present link it is told of the others: first the group, then those of whom there is news.
    pub(super) wants_peers: bool,
    pub(super) group_due: bool,
    pub(super) peer_updates: BTreeSet<NodeId>,
}

impl<P> ServerPeer<P> {
    pub(super) fn new(
        standing: NodeState,
        id: JournalId,
        journal: Option<NodeJournal>,
        now: Time,
    ) -> ServerPeer<P> {
        ServerPeer {
            state: standing,
            session: None,
            link: 0,
            heard_at: now,
            hung_up: None,
            behind: None,
            id,
            journal,
            views: VecDeque::new(),
            lazy: false,
            wanted: Position(0),
            next: Position(0),
            outbox: VecDeque::new(),
            pages: PageProgress::Done,
            page_first: false,
            known: ResumeState::Yes,
            undurable: VecDeque::new(),
            durable_due: false,
            ahead: BTreeMap::new(),
            has_left: false,
            pending_forget: None,
            offer: None,
            offered: OfferedRecords::default(),
            waiting_bytes: 0,
            reach: None,
            wants_peers: false,
            group_due: false,
            peer_updates: BTreeSet::new(),
        }
    }

    /// Everything in the region's order up to there is durable.
    pub(super) fn set_durable(&mut self, position: Position) {
        while let Some(unkept) = self.undurable.pop_front_if(|unkept| unkept.position <= position) {
            let Some(journal) = &mut self.journal else {
                continue;
            };
            if let Some(end) = unkept.end {
                journal.kept = unkept.number;
                journal.end = end;
                self.durable_due = true;
            }
        }
    }

    /// What the node is to be told of that.
    pub(super) fn durable_message(&self) -> Option<ToNode<P>> {
        let journal = self.journal.as_ref()?;
        Some(ToNode::Durable {
            number: journal.kept,
            end: journal.end,
            view: journal.view.version,
        })
    }

    /// The oldest of the views on their way is durable.
    pub(super) fn on_view_stored(&mut self) {
        if let (Some(view), Some(journal)) = (self.views.pop_front(), &mut self.journal) {
            journal.view = view;
            self.durable_due = true;
        }
    }

    /// Forgets what was to be said: it was for a link that is no more.
    pub(super) fn clear_outbox(&mut self) {
        self.outbox.clear();
        self.durable_due = false;
        self.reset_peers();
    }
}
