//! The bodies of the frames between a client and its data lender. `docs/protocol.md` draws them.
//!
//! Everything that a peer sent is checked here once. These frames are rare or large, so that they own their
//! bytes.

use alloc::vec::Vec;

use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::journal::View;
use netram_proto::limit::{DATA_KEY_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use netram_proto::wire::{ByteReader, ChainPoint, Flag, Frame, FrameHeader, FrameKind, ShortInputError};

use super::BLOCK_BYTES;
use super::header::ReplicaCondition;

/// Bytes of a block's digest: enough that two different blocks do not have the same.
pub const DIGEST_BYTES: usize = 16;
/// Blocks that one frame holds, with their numbers.
pub const BLOCKS_PER_FRAME: usize = FRAME_BODY_BYTES_MAX / (BLOCK_BYTES + 8);
/// Digests that one frame holds.
pub const DIGESTS_PER_FRAME: usize = FRAME_BODY_BYTES_MAX / DIGEST_BYTES;
/// Numbers of blocks that one frame holds.
pub const NUMBERS_PER_FRAME: usize = FRAME_BODY_BYTES_MAX / 8;

/// Blocks of which one frame says whether they are data.
pub const MAP_BLOCKS_PER_FRAME: usize = FRAME_BODY_BYTES_MAX * 8;

/// A block's digest. All zeros stands for a block of zeros; any other is what the driver's hash says.
pub type BlockDigest = [u8; DIGEST_BYTES];

/// Which volume, and which journal has its newest writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaIdentity {
    /// The volume.
    pub volume: u128,
    /// Its journal.
    pub journal: JournalId,
}

/// A frame to send, with its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaMessage {
    /// The header.
    pub header: FrameHeader,
    /// The body; at most [`FRAME_BODY_BYTES_MAX`] bytes.
    pub body: Vec<u8>,
}

impl ReplicaMessage {
    /// A message without a body.
    pub fn bare(header: FrameHeader) -> ReplicaMessage {
        ReplicaMessage {
            header,
            body: Vec::new(),
        }
    }

    /// Asks for the replica of `volume`, or what replicas there are.
    pub fn inquire(volume: Option<u128>) -> ReplicaMessage {
        ReplicaMessage {
            header: FrameHeader::new(FrameKind::Inquire),
            body: volume
                .map(|volume| volume.to_le_bytes().to_vec())
                .unwrap_or_default(),
        }
    }

    /// Asks for raw bytes of the replica's log from `from` on. Answered by `Data`.
    pub fn read_log(from: Lsn) -> ReplicaMessage {
        let header = FrameHeader {
            lsn: from,
            ..FrameHeader::new(FrameKind::Read)
        };
        ReplicaMessage {
            header,
            body: (FRAME_BODY_BYTES_MAX as u32).to_le_bytes().to_vec(),
        }
    }

    /// Asks for `count` blocks from number `first` on, as of a log that has reached `at_least`.
    pub fn fetch(mark: u32, first: u64, count: u32, at_least: Lsn) -> ReplicaMessage {
        assert!((1..=BLOCKS_PER_FRAME as u32).contains(&count));
        let header = FrameHeader {
            lsn: Lsn(first),
            mark,
            stable: at_least,
            ..FrameHeader::new(FrameKind::Fetch)
        };
        ReplicaMessage {
            header,
            body: count.to_le_bytes().to_vec(),
        }
    }

    /// Asks which of `count` blocks from number `first` on are data, and which are holes, as of a log that
    /// has reached `at_least`.
    pub fn fetch_map(first: u64, count: u32, at_least: Lsn) -> ReplicaMessage {
        assert!((1..=MAP_BLOCKS_PER_FRAME as u32).contains(&count));
        let header = FrameHeader {
            lsn: Lsn(first),
            stable: at_least,
            flags: Flag::HOLES,
            ..FrameHeader::new(FrameKind::Fetch)
        };
        ReplicaMessage {
            header,
            body: count.to_le_bytes().to_vec(),
        }
    }

    /// Answers it: a bit a block that is data, lowest first.
    pub fn fetched_map(asked: &FrameHeader, map: Vec<u8>) -> ReplicaMessage {
        ReplicaMessage::answer_fetch(asked, Flag::HOLES, map)
    }

    /// Answers a `Fetch`: the blocks, or `None` where the replica's do not check either.
    pub fn fetched(asked: &FrameHeader, blocks: Option<Vec<u8>>) -> ReplicaMessage {
        let flags = if blocks.is_some() { 0 } else { Flag::BAD };
        ReplicaMessage::answer_fetch(asked, flags, blocks.unwrap_or_default())
    }

    /// Answers a `Fetch` that cannot be answered now. Whoever asked must not take the blocks for lost.
    pub fn fetch_later(asked: &FrameHeader) -> ReplicaMessage {
        ReplicaMessage::answer_fetch(asked, Flag::LATER, Vec::new())
    }

    fn answer_fetch(asked: &FrameHeader, flags: u8, body: Vec<u8>) -> ReplicaMessage {
        let header = FrameHeader {
            lsn: asked.lsn,
            mark: asked.mark,
            flags,
            ..FrameHeader::new(FrameKind::Fetched)
        };
        ReplicaMessage { header, body }
    }

    /// Has `view` kept, for a volume of `bytes`.
    pub fn keep_view(view: &View, bytes: u64, closed: bool) -> ReplicaMessage {
        let header = FrameHeader {
            lsn: Lsn(view.version),
            epoch: view.epoch,
            stable: Lsn(bytes),
            sender: view.writer.0,
            flags: if closed { Flag::CLOSED } else { 0 },
            ..FrameHeader::new(FrameKind::StoreView)
        };
        ReplicaMessage {
            header,
            body: view.encode(),
        }
    }

    /// Names blocks of the replica that do not check. At most [`NUMBERS_PER_FRAME`].
    pub fn bad(numbers: &[u64]) -> ReplicaMessage {
        ReplicaMessage {
            header: FrameHeader::new(FrameKind::BadBlocks),
            body: encode_numbers(numbers),
        }
    }

    /// Answers an inquiry for one volume.
    pub fn replica(description: &ReplicaDescription) -> ReplicaMessage {
        let header = FrameHeader {
            flags: Flag::KNOWN,
            lsn: description.end.lsn,
            mark: description.end.chain,
            stable: Lsn(description.heard_ms.map_or(0, |ms| ms.saturating_add(1))),
            ..FrameHeader::new(FrameKind::Replica)
        };
        ReplicaMessage {
            header,
            body: description.encode(),
        }
    }

    /// The frame as a parsed one looks.
    pub fn frame(&self) -> Frame<'_> {
        Frame {
            header: self.header,
            body: &self.body,
        }
    }
}

/// The body of `Follow`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowRequest {
    /// Whose replica.
    pub identity: ReplicaIdentity,
    /// Bytes of the volume.
    pub bytes: u64,
    /// Bytes that the client's log can hold.
    pub capacity: u64,
    /// The key that seals the journal's records; empty: they are not sealed.
    pub key: Vec<u8>,
}

impl FollowRequest {
    /// The same from whoever restores a volume that was closed, and stays so: the client's own says that it
    /// is open again.
    pub fn claim(&self, epoch: Epoch, writer: WriterId, closed: bool) -> ReplicaMessage {
        let mut message = self.message(epoch, writer);
        message.header.flags = if closed { Flag::CLOSED } else { 0 };
        message
    }

    /// The frame, for the reign `epoch` of `writer`.
    pub fn message(&self, epoch: Epoch, writer: WriterId) -> ReplicaMessage {
        assert!(self.key.len() <= DATA_KEY_BYTES_MAX);
        let mut body = Vec::with_capacity(64 + self.key.len());
        body.extend_from_slice(&self.identity.volume.to_le_bytes());
        body.extend_from_slice(&self.identity.journal.0.to_le_bytes());
        body.extend_from_slice(&self.bytes.to_le_bytes());
        body.extend_from_slice(&self.capacity.to_le_bytes());
        body.extend_from_slice(&self.key);
        let header = FrameHeader {
            epoch,
            sender: writer.0,
            ..FrameHeader::new(FrameKind::Follow)
        };
        ReplicaMessage { header, body }
    }

    /// Reads the body of a `Follow`.
    pub fn decode(body: &[u8]) -> Result<FollowRequest, ShortInputError> {
        let mut cursor = ByteReader::new(body);
        let follow = FollowRequest {
            identity: ReplicaIdentity {
                volume: cursor.u128()?,
                journal: JournalId(cursor.u128()?),
            },
            bytes: cursor.u64()?,
            capacity: cursor.u64()?,
            key: cursor.rest().to_vec(),
        };
        if follow.key.len() > DATA_KEY_BYTES_MAX {
            return Err(ShortInputError);
        }
        Ok(follow)
    }
}

/// What a data lender says of its replica when it is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowReply {
    /// Whether it is whole.
    pub condition: ReplicaCondition,
    /// Where its durable log ends.
    pub flushed: Lsn,
    /// The reign whose view it keeps.
    pub epoch: Epoch,
    /// Who reigned.
    pub writer: WriterId,
}

impl FollowReply {
    /// Reads a `Following` frame; `None`: it makes no sense.
    pub fn decode(frame: &Frame<'_>) -> Option<FollowReply> {
        let header = &frame.header;
        let since = ByteReader::new(frame.body).u64().unwrap_or(u64::MAX);
        Some(FollowReply {
            condition: ReplicaCondition::decode(header.flags, since)?,
            flushed: header.lsn,
            epoch: header.epoch,
            writer: WriterId(header.sender),
        })
    }

    /// Where what the replica has leaves the history of `view`, if it does.
    ///
    /// While a resync is under way its blocks can be newer than its log; these are dirty at the client until
    /// it has ended, whatever becomes of what they show.
    pub fn fork(&self, view: &View) -> Option<Lsn> {
        let end = match self.condition {
            ReplicaCondition::Following => self.flushed,
            ReplicaCondition::Inconsistent { since } => self.flushed.max(since?),
            ReplicaCondition::New | ReplicaCondition::TakenOver => return None,
        };
        match (self.epoch, self.writer) == (view.epoch, view.writer) {
            true => None,
            false => view.epochs.fork(self.epoch, self.writer, end),
        }
    }

    /// Whether its blocks, but for those that the client knows to be dirty, are of the history of `view`.
    pub fn has_blocks_of(&self, view: &View) -> bool {
        let has_any = matches!(
            self.condition,
            ReplicaCondition::Following | ReplicaCondition::Inconsistent { since: Some(_) }
        );
        has_any && self.fork(view).is_none()
    }
}

/// A replica as its data lender describes it to whoever wants to restore the volume from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaDescription {
    /// What `Follow` had said of it.
    pub follow: FollowRequest,
    /// Whether it is whole.
    pub condition: ReplicaCondition,
    /// It was closed, with its log here.
    pub closed: Option<Lsn>,
    /// When its client was last heard, in seconds of the wall clock.
    pub contact: u64,
    /// How long ago that was, by the data lender's own clock. `None`: of a release that does not say so.
    pub heard_ms: Option<u64>,
    /// Where its log begins, with the chain there.
    pub head: ChainPoint,
    /// Where its log ends, with the chain there.
    pub end: ChainPoint,
    /// The view that was last kept here.
    pub view: View,
}

impl ReplicaDescription {
    /// Whether it has become another volume: it was taken over, or a reign served from it that `ours`, its
    /// client's view, does not know.
    pub fn is_of_others(&self, ours: &View) -> bool {
        self.condition == ReplicaCondition::TakenOver || ours.lacks_epoch_of(&self.view)
    }

    fn encode(&self) -> Vec<u8> {
        let (condition, since) = self.condition.encode();
        let mut bytes = Vec::with_capacity(512);
        bytes.extend_from_slice(&[
            condition,
            u8::from(self.closed.is_some()),
            self.follow.key.len() as u8,
        ]);
        bytes.extend_from_slice(&since.to_le_bytes());
        bytes.extend_from_slice(&self.closed.unwrap_or_default().0.to_le_bytes());
        bytes.extend_from_slice(&self.contact.to_le_bytes());
        bytes.extend_from_slice(&self.head.lsn.0.to_le_bytes());
        bytes.extend_from_slice(&self.head.chain.to_le_bytes());
        bytes.extend_from_slice(&self.follow.identity.volume.to_le_bytes());
        bytes.extend_from_slice(&self.follow.identity.journal.0.to_le_bytes());
        bytes.extend_from_slice(&self.follow.bytes.to_le_bytes());
        bytes.extend_from_slice(&self.follow.capacity.to_le_bytes());
        bytes.extend_from_slice(&self.follow.key);
        bytes.extend_from_slice(&self.view.encode());
        bytes
    }

    /// Reads a `Replica` frame with flag `KNOWN`.
    pub fn decode(frame: &Frame<'_>) -> Result<ReplicaDescription, ShortInputError> {
        let mut cursor = ByteReader::new(frame.body);
        let (condition, closed, key) = (cursor.u8()?, cursor.u8()?, cursor.u8()?);
        let since = cursor.u64()?;
        let closed_at = Lsn(cursor.u64()?);
        let contact = cursor.u64()?;
        let head = ChainPoint {
            lsn: Lsn(cursor.u64()?),
            chain: cursor.u32()?,
        };
        let identity = ReplicaIdentity {
            volume: cursor.u128()?,
            journal: JournalId(cursor.u128()?),
        };
        let follow = FollowRequest {
            identity,
            bytes: cursor.u64()?,
            capacity: cursor.u64()?,
            key: cursor.bytes(usize::from(key))?.to_vec(),
        };
        let view = View::decode(cursor.rest()).map_err(|_| ShortInputError)?;
        let end = ChainPoint {
            lsn: frame.header.lsn,
            chain: frame.header.mark,
        };
        let bounded = head.lsn <= end.lsn && usize::from(key) <= DATA_KEY_BYTES_MAX;
        if !bounded || view.journal != identity.journal {
            return Err(ShortInputError);
        }
        Ok(ReplicaDescription {
            follow,
            condition: ReplicaCondition::decode(condition, since).ok_or(ShortInputError)?,
            closed: (closed == 1).then_some(closed_at),
            contact,
            heard_ms: frame.header.stable.0.checked_sub(1),
            head,
            end,
            view,
        })
    }
}

/// Blocks that a `Fetch` with this header may be about.
pub(super) fn fetch_max(header: &FrameHeader) -> usize {
    match header.flags & Flag::HOLES {
        0 => BLOCKS_PER_FRAME,
        _ => MAP_BLOCKS_PER_FRAME,
    }
}

/// The body of `Blocks`: numbers, each with its bytes.
pub fn encode_blocks<'a>(blocks: impl Iterator<Item = (u64, &'a [u8])>) -> Vec<u8> {
    let mut body = Vec::with_capacity(FRAME_BODY_BYTES_MAX);
    for (number, bytes) in blocks {
        assert_eq!(bytes.len(), BLOCK_BYTES);
        body.extend_from_slice(&number.to_le_bytes());
        body.extend_from_slice(bytes);
    }
    body
}

/// The blocks of a `Blocks` frame; `None` where it holds a part of one.
pub fn blocks(body: &[u8]) -> Option<impl Iterator<Item = (u64, &[u8])>> {
    let whole = body.len().is_multiple_of(BLOCK_BYTES + 8);
    let pairs = body.chunks_exact(BLOCK_BYTES + 8).filter_map(|pair| {
        let (number, bytes) = pair.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*number), bytes))
    });
    whole.then_some(pairs)
}

/// Numbers of blocks as a body.
pub fn encode_numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// The numbers in a body; `None` where it holds a part of one.
pub fn numbers(body: &[u8]) -> Option<impl Iterator<Item = u64>> {
    let whole = body.len().is_multiple_of(8);
    let numbers = body.chunks_exact(8).filter_map(|bytes| {
        let bytes = bytes.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    });
    whole.then_some(numbers)
}

/// The digests of a `Digests` frame; `None` where it holds a part of one.
pub fn digests(body: &[u8]) -> Option<impl Iterator<Item = BlockDigest>> {
    let whole = body.len().is_multiple_of(DIGEST_BYTES);
    let digests = body
        .chunks_exact(DIGEST_BYTES)
        .filter_map(|bytes| bytes.first_chunk::<DIGEST_BYTES>().copied());
    whole.then_some(digests)
}
