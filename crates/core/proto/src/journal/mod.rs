//! The writer's side of a journal.
//!
//! | part | decides |
//! |---|---|
//! | [`JournalWriter`] | what to send to which lender, which view counts, what is acknowledged |
//! | [`Recovery`] | which members to fence and read before a journal may serve again, and whether the answers suffice |
//! | [`assemble()`] | the longest valid chain of records from the local log and the members' windows |
//! | [`node_records`], [`ForgetNotice`] | the records that a dead node's members hold; the notice that they may drop them |
//! | [`LogFile`] | where a record lies in a log file of fixed size that wraps, and where its valid prefix ends |
//! | [`GrowPermit`] | when a log may get a larger file, and the one store that does it |
//! | [`View`], [`SlotPair`] | the durable view file: two slots, so that a torn write leaves the other |
//!
//! None of them does I/O of its own: the first two return frames to send, the others go through
//! [`crate::port::StorageFile`].

mod assemble;
mod dead_node;
mod epoch_history;
mod grow;
mod lender_index_set;
mod logfile;
mod note;
mod peer;
mod recovery;
mod refusal;
mod rule;
mod slot_pair;
mod view;
mod writer;

pub use assemble::{AssembleError, AssembleOptions, AssembledLog, PeerWindow, assemble, beyond_repair};
pub use dead_node::{ForgetNotice, NodeReadError, node_records};
pub use epoch_history::EpochHistory;
pub use grow::{GrowPermit, LogGrowError};
pub use lender_index_set::LenderIndexSet;
pub use logfile::{LogFile, LogFileError, LogScan, LogSuperblock};
pub use note::ClaimNote;
pub use recovery::{MemberReport, NotNewestError, Recovery, WindowReport};
pub use refusal::{PeerAnswer, RecoveryError};
pub use rule::{CommitRule, RuleError};
pub use slot_pair::{SlotError, SlotPair};
pub use view::{JoinId, View, ViewError, ViewMember};
pub use writer::{
    CopyCounts, DataAtRisk, DiskWaitReason, JournalLenderStatus, JournalMembership, JournalWriter,
    LenderRefusal, LenderRole, LinkPhase, MembershipError, MemoryLoss, MulticastStats, MulticastTiming,
    ReplicaAck, ServerAck, Voter, WriterConfig, WriterStatus, WriterTimings,
};

use crate::id::Lsn;
use crate::wire::FrameHeader;

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutgoingFrame {
    /// The frame's header.
    pub header: FrameHeader,
    /// Its body.
    pub body: FrameBody,
}

/// The source of a frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameBody {
    /// The first bytes of the array, and their number.
    Inline([u8; 16], usize),
    /// The body of a `Join` for a window of so many bytes. The driver adds the journal's name for people, at
    /// most [`JOURNAL_NAME_BYTES_MAX`](crate::limit::JOURNAL_NAME_BYTES_MAX) bytes.
    Window(u64),
    /// A [`ChannelInvite`](crate::multicast::ChannelInvite) for the channel of this number. The machine
    /// numbers channels; the driver holds their keys, and draws a new key for a new number.
    Channel(u32),
    /// `bytes` of the journal's ring from `from`.
    Log {
        /// The first byte.
        from: Lsn,
        /// Number of bytes.
        bytes: usize,
    },
}

impl FrameBody {
    /// No body.
    pub const NONE: FrameBody = FrameBody::Inline([0; 16], 0);
}
