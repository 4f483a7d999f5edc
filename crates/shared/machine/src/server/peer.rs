//! The server's state of one node.

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

/// Phase of a node's life. Durable are only live, fencing and gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// Its id is being made durable.
    Entering,
    /// The node is alive. It may be silent for less than its lease.
    Live,
    /// The node was alive when the server started, and has not come back yet.
    Absent,
    /// The node has fallen behind: it has to leave and join again.
    Behind,
    /// The node has left, and its records are being made durable.
    Leaving,
    /// The decision to fence the node is being made durable.
    Fencing,
    /// Its journal is being read.
    Reading,
    /// Its journal cannot be read to a proven end. Its locks stay taken.
    Stuck,
    /// All of its records are known, and are being merged.
    Read,
    /// The fact that the node is gone is being made durable.
    Going,
    /// No record of the node will ever come.
    Gone,
}

impl NodeState {
    /// Whether the node's messages count.
    pub(super) fn speaks(self) -> bool {
        matches!(self, NodeState::Live | NodeState::Behind)
    }

    /// Whether some of the node's records may not be here yet.
    pub(super) fn may_be_fenced(self) -> bool {
        self.has_lease() || self == NodeState::Leaving
    }

    /// Whether silence ends the node.
    pub(super) fn has_lease(self) -> bool {
        matches!(self, NodeState::Live | NodeState::Absent | NodeState::Behind)
    }
}

/// The server's knowledge of a node's journal. All of it is durable here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeJournal {
    /// Newest view that is durable here, and so counts.
    pub view: View,
    /// Key that seals the journal's records.
    pub key: Vec<u8>,
    /// Last record that is durable here.
    pub kept: RecordNumber,
    /// Where that record ends in the journal.
    pub end: ChainPoint,
}

/// A merged record that is not durable yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct UndurableRecord {
    pub(super) position: Position,
    pub(super) number: RecordNumber,
    /// Where it ends in its journal; `None`: it was read from a dead node's journal, where no place to read
    /// on is needed.
    pub(super) end: Option<ChainPoint>,
}

/// Progress of a node that resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResumeState {
    /// All of the node's tokens are known.
    Yes,
    /// The node's claims are awaited.
    Unclaimed,
    /// The claims have come. They are complete once this record of the node is merged.
    Claimed(RecordNumber),
}

/// Progress of sending the region to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PageProgress {
    /// All pages were sent, and the region is complete.
    Done,
    /// Pages from this byte on are still to be sent.
    From(u64),
    /// All pages were sent. The region is complete once the records up to this position were sent.
    Until(Position),
}

/// Records of an offered journal, as far as they have come.
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
    /// Number of the newest link over which the node introduced itself, as the node counts; 0: none since the
    /// server's start.
    pub(super) link: u64,
    /// Time of the node's last message.
    pub(super) heard_at: Time,
    /// Time at which the node's machine closed its link; `None`: it has not done so.
    pub(super) hung_up: Option<Time>,
    /// Time at which the server noticed that the node is behind or leaving.
    pub(super) behind: Option<Time>,
    pub(super) id: JournalId,
    pub(super) journal: Option<NodeJournal>,
    /// Views on their way to the disk.
    pub(super) views: VecDeque<View>,
    pub(super) lazy: bool,
    /// Position up to which a lazy node wants records.
    pub(super) wanted: Position,
    /// Position of the next record to send.
    pub(super) next: Position,
    /// Messages to send among the records, each after the record at its position.
    pub(super) outbox: VecDeque<(Position, ToNode<P>)>,
    pub(super) pages: PageProgress,
    /// Whether a joining node is sent a page next although there are records.
    pub(super) page_first: bool,
    pub(super) known: ResumeState,
    pub(super) undurable: VecDeque<UndurableRecord>,
    /// Whether a new `Durable` message is due.
    pub(super) durable_due: bool,
    /// Other nodes' records that the node has applied and that are not merged.
    pub(super) ahead: BTreeMap<NodeId, RecordNumber>,
    /// Whether the node has left and tells its lenders itself.
    pub(super) has_left: bool,
    /// Set while the node is gone and not all of its lenders know that.
    pub(super) pending_forget: Option<PendingForget>,
    /// Link that offered the node's journal, and the journal's last record.
    pub(super) offer: Option<(SessionId, RecordNumber)>,
    pub(super) offered: OfferedRecords<P>,
    /// Bytes of the node's records that wait to be merged.
    pub(super) waiting_bytes: usize,
    /// How other nodes reach it; `None`: they cannot.
    pub(super) reach: Option<PeerEndpoint>,
    /// Whether the node is sent peers over the present link: first the group, then each changed peer.
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

    /// Notes that every record up to this position is durable.
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

    /// Message that tells the node which of its records are durable.
    pub(super) fn durable_message(&self) -> Option<ToNode<P>> {
        let journal = self.journal.as_ref()?;
        Some(ToNode::Durable {
            number: journal.kept,
            end: journal.end,
            view: journal.view.version,
        })
    }

    /// Notes that the oldest of the views on their way is durable.
    pub(super) fn on_view_stored(&mut self) {
        if let (Some(view), Some(journal)) = (self.views.pop_front(), &mut self.journal) {
            journal.view = view;
            self.durable_due = true;
        }
    }

    /// Drops all messages to the node, because their link is gone.
    pub(super) fn clear_outbox(&mut self) {
        self.outbox.clear();
        self.durable_due = false;
        self.reset_peers();
    }
}
