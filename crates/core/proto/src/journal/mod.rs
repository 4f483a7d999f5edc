//! The writer's side of a journal.
//!
//! | part | decides |
//! |---|---|
//! | [`Writer`] | whom to send what, which view counts, what is acknowledged |
//! | [`Recovery`] | whom to seal and read before a journal may serve again, and whether that suffices |
//! | [`assemble`] | the longest valid chain from the local log and the members' windows |
//! | [`node_records`], [`Forget`] | what a dead node's members held, and that they may drop it |
//! | [`LogFile`] | where a record lies in a log file of fixed size that wraps, and where its valid prefix ends |
//! | [`Growth`] | when a log may be given a larger file, and the one store that does it |
//! | [`View`], [`Slots`] | the durable view file: two slots, so that a torn write leaves the other |
//!
//! None of them does I/O of its own accord: the first two return frames to send, the others go through
//! [`crate::port::File`].

mod assemble;
mod grow;
mod logfile;
mod node;
mod note;
mod peer;
mod recovery;
mod refusal;
mod reigns;
mod rule;
mod set;
mod slots;
mod view;
mod writer;

pub use assemble::{AssembleError, Assembled, Known, PeerWindow, assemble, beyond_repair};
pub use grow::{GrowError, Growth};
pub use logfile::{LogFile, LogFileError, Scan, Superblock};
pub use node::{Forget, NodeReadError, node_records};
pub use note::ClaimNote;
pub use recovery::{MemberTold, NotNewest, Recovery, WindowTold};
pub use refusal::{PeerAnswer, RecoveryRefusal};
pub use reigns::Reigns;
pub use rule::{CommitRule, RuleError};
pub use set::Set;
pub use slots::{SlotError, Slots};
pub use view::{JoinId, View, ViewError, ViewMember};
pub use writer::{
    Blocked, CastConfig, CastStats, Copies, Kept, LenderStatus, LinkPhase, Refused, Role, ServerKept, Timing,
    Voter, Writer, WriterConfig, WriterStatus,
};

use crate::id::Lsn;
use crate::wire::Header;

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The frame's header.
    pub header: Header,
    /// Its body.
    pub body: Body,
}

/// Where a frame's body comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A few bytes, and how many of them.
    Inline([u8; 16], usize),
    /// A [`Tune`](crate::cast::Tune) for the channel of this number. The machine numbers channels; the driver has their keys, and
    /// makes a new one for a number that it has not seen.
    Channel(u32),
    /// `bytes` of the journal's ring from `from`.
    Log {
        /// The first byte.
        from: Lsn,
        /// How many.
        bytes: usize,
    },
}

impl Body {
    /// No body.
    pub const NONE: Body = Body::Inline([0; 16], 0);

    /// A body of eight bytes.
    pub(crate) fn u64(value: u64) -> Body {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        Body::Inline(bytes, 8)
    }
}
