//! Steps that a [`Replica`](crate::Replica) asks of its driver.

use alloc::vec::Vec;

use crate::header::ReplicaHeader;
use crate::message::{BlockDigest, ReplicaMessage};
use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::wire::{ChainPoint, FrameHeader};

/// The driver's work for one frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaAction<'a> {
    /// No work, or none yet.
    Nothing,
    /// Send this message.
    Answer(ReplicaMessage),
    /// Send this message and end the session.
    Refuse(ReplicaMessage),
    /// Make the header durable; then call [`Replica::on_stored`](crate::Replica::on_stored).
    Store(ReplicaHeader),
    /// Write whole records into the log. Once no more frames wait to be received, sync what
    /// [`Replica::unflushed`](crate::Replica::unflushed) names.
    Write {
        /// LSN of the first byte.
        at: Lsn,
        /// The records.
        bytes: Vec<u8>,
    },
    /// Extend the volume to `bytes` if it is shorter; make the header durable, if there is one; then store
    /// `view` and call [`Replica::on_view_stored`](crate::Replica::on_view_stored). The order matters: a view
    /// without members proves nothing unless the header says that none are needed.
    KeepView {
        /// The view.
        view: View,
        /// Size of the volume in bytes.
        bytes: u64,
        /// New header of the replica, if it changes.
        standing: Option<ReplicaHeader>,
    },
    /// Make the header durable; apply everything in the log to the image; begin the log anew at `start`; then
    /// call [`Replica::on_restarted`](crate::Replica::on_restarted). The new log must not go into the image
    /// before all blocks have arrived: see [`Replica::pending_header`](crate::Replica::pending_header).
    Restart {
        /// Where the log begins.
        start: ChainPoint,
        /// New header of the replica.
        standing: ReplicaHeader,
    },
    /// Compare digests with the blocks from `first` on; answer with
    /// [`Replica::differ`](crate::Replica::differ).
    Compare {
        /// Header of the frame.
        asked: FrameHeader,
        /// Number of the first block.
        first: u64,
        /// Digests of the client's blocks.
        digests: Vec<BlockDigest>,
    },
    /// Write blocks into the image, after the records before this frame and before the records behind it;
    /// answer with [`Replica::stored`](crate::Replica::stored). They need not be durable before
    /// [`Replica::pending_header`](crate::Replica::pending_header) asks for it.
    Put {
        /// Header of the frame.
        asked: FrameHeader,
        /// Blocks, to be read with [`blocks`](crate::message::blocks).
        blocks: &'a [u8],
    },
    /// Make holes; answer with [`Replica::stored`](crate::Replica::stored).
    PutHoles {
        /// Header of the frame.
        asked: FrameHeader,
        /// Numbers of the blocks.
        numbers: Vec<u64>,
    },
    /// Read durable bytes of the log; answer with `Data`.
    ReadLog {
        /// Header of the answer.
        answer: FrameHeader,
        /// LSN of the first byte.
        from: Lsn,
        /// Maximum number of bytes.
        bytes: usize,
    },
    /// Make the whole log durable, and describe the replica with [`ReplicaMessage::replica`]. A restore
    /// starts at the described end of the log, so a later sync of an earlier session's records must not move
    /// that end.
    Describe,
}

/// Records that were written but not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnflushedRecords {
    /// End of the records.
    pub end: ChainPoint,
}
