//! Bodies of the frames between a client and its data lender. `docs/design/protocol.md` draws them.
//!
//! Every frame from a peer is checked here, once. These frames are rare or large, so they own their bytes.

use alloc::vec::Vec;

use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::journal::View;
use netram_proto::limit::{DATA_KEY_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use netram_proto::wire::{ByteReader, ChainPoint, Flag, Frame, FrameHeader, FrameKind, ShortInputError};

use super::BLOCK_BYTES;
use super::header::ReplicaCondition;

/// Bytes of a block digest; enough that two different blocks never have equal digests in practice.
pub const DIGEST_BYTES: usize = 16;
/// Maximum number of blocks, each with its number, in one frame.
pub const BLOCKS_PER_FRAME: usize = FRAME_BODY_BYTES_MAX / (BLOCK_BYTES + 8);
/// Maximum number of digests in one frame.
pub const DIGESTS_PER_FRAME: usize = FRAME_BODY_BYTES_MAX / DIGEST_BYTES;
/// Maximum number of block numbers in one frame.
pub const NUMBERS_PER_FRAME: usize = FRAME_BODY_BYTES_MAX / 8;

/// Maximum number of blocks in one frame's map of data and holes.
pub const MAP_BLOCKS_PER_FRAME: usize = FRAME_BODY_BYTES_MAX * 8;

/// A block digest. All zeros stands for a block of zeros; any other value is the driver's hash.
pub type BlockDigest = [u8; DIGEST_BYTES];

/// A volume and the journal with its newest writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaIdentity {
    /// Id of the volume.
    pub volume: u128,
    /// Id of its journal.
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

    /// Asks for the replica of `volume`; `None` asks for all replicas.
    pub fn inquire(volume: Option<u128>) -> ReplicaMessage {
        ReplicaMessage {
            header: FrameHeader::new(FrameKind::Inquire),
            body: volume
                .map(|volume| volume.to_le_bytes().to_vec())
                .unwrap_or_default(),
        }
    }

    /// Asks for raw bytes of the replica's log, starting at `from`. Answered by `Data`.
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

    /// Asks for `count` blocks from number `first`, as of a log that has reached `at_least`.
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

    /// Asks which of `count` blocks from number `first` are data and which are holes, as of a log that has
    /// reached `at_least`.
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

    /// Answers [`ReplicaMessage::fetch_map`] with one bit a block, lowest first; a set bit means data.
    pub fn fetched_map(asked: &FrameHeader, map: Vec<u8>) -> ReplicaMessage {
        ReplicaMessage::answer_fetch(asked, Flag::HOLES, map)
    }

    /// Answers a `Fetch` with the blocks, or with `None` if the replica's blocks fail their checksums too.
    pub fn fetched(asked: &FrameHeader, blocks: Option<Vec<u8>>) -> ReplicaMessage {
        let flags = if blocks.is_some() { 0 } else { Flag::BAD };
        ReplicaMessage::answer_fetch(asked, flags, blocks.unwrap_or_default())
    }

    /// Answers a `Fetch` that the replica cannot serve now. The client must not treat the blocks as lost.
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

    /// Asks the data lender to store `view`, for a volume of `bytes`.
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

    /// Names blocks of the replica that fail their checksums; at most [`NUMBERS_PER_FRAME`].
    pub fn bad(numbers: &[u64]) -> ReplicaMessage {
        ReplicaMessage {
            header: FrameHeader::new(FrameKind::BadBlocks),
            body: encode_numbers(numbers),
        }
    }

    /// Answers an inquiry about one volume.
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

    /// The message in the form of a received frame.
    pub fn frame(&self) -> Frame<'_> {
        Frame {
            header: self.header,
            body: &self.body,
        }
    }
}

/// Body of a `Follow` frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowRequest {
    /// Volume and journal to follow.
    pub identity: ReplicaIdentity,
    /// Size of the volume in bytes.
    pub bytes: u64,
    /// Capacity of the client's log in bytes.
    pub capacity: u64,
    /// Key that encrypts the journal's records; empty if they are not encrypted. Only a client sends it: a
    /// data lender needs it to read the records, and hands it on to nobody.
    pub key: Vec<u8>,
    /// The same key as a restore gets it: wrapped under the volume's recovery key. The data lender keeps
    /// these bytes without knowing their form. Empty if the client has none.
    pub wrapped_key: Vec<u8>,
}

impl FollowRequest {
    /// The `Follow` frame of a client that restores the volume. With `closed`, the volume stays closed; an
    /// ordinary [`FollowRequest::message`] declares it open.
    pub fn claim(&self, epoch: Epoch, writer: WriterId, closed: bool) -> ReplicaMessage {
        let mut message = self.message(epoch, writer);
        message.header.flags = if closed { Flag::CLOSED } else { 0 };
        message
    }

    /// The `Follow` frame of `writer` in epoch `epoch`.
    pub fn message(&self, epoch: Epoch, writer: WriterId) -> ReplicaMessage {
        assert!(self.key.len() <= DATA_KEY_BYTES_MAX && self.wrapped_key.len() <= DATA_KEY_BYTES_MAX);
        let mut body = Vec::with_capacity(64 + self.key.len() + self.wrapped_key.len());
        body.extend_from_slice(&self.identity.volume.to_le_bytes());
        body.extend_from_slice(&self.identity.journal.0.to_le_bytes());
        body.extend_from_slice(&self.bytes.to_le_bytes());
        body.extend_from_slice(&self.capacity.to_le_bytes());
        body.extend_from_slice(&self.key);
        body.extend_from_slice(&self.wrapped_key);
        let header = FrameHeader {
            epoch,
            mark: self.wrapped_key.len() as u32,
            sender: writer.0,
            ..FrameHeader::new(FrameKind::Follow)
        };
        ReplicaMessage { header, body }
    }

    /// Decodes a `Follow` frame. Clients of earlier releases send no wrapped key.
    ///
    /// # Errors
    ///
    /// [`ShortInputError`] if the body is truncated or a key is longer than [`DATA_KEY_BYTES_MAX`].
    pub fn decode(frame: &Frame<'_>) -> Result<FollowRequest, ShortInputError> {
        let mut cursor = ByteReader::new(frame.body);
        let mut follow = FollowRequest {
            identity: ReplicaIdentity {
                volume: cursor.u128()?,
                journal: JournalId(cursor.u128()?),
            },
            bytes: cursor.u64()?,
            capacity: cursor.u64()?,
            key: cursor.rest().to_vec(),
            wrapped_key: Vec::new(),
        };
        let wrapped = frame.header.mark as usize;
        let key = follow.key.len().checked_sub(wrapped).ok_or(ShortInputError)?;
        if key > DATA_KEY_BYTES_MAX || wrapped > DATA_KEY_BYTES_MAX {
            return Err(ShortInputError);
        }
        follow.wrapped_key = follow.key.split_off(key);
        Ok(follow)
    }
}

/// A data lender's description of its replica, in answer to `Follow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FollowReply {
    /// Whether the replica is whole.
    pub condition: ReplicaCondition,
    /// End of the replica's durable log.
    pub flushed: Lsn,
    /// Epoch of the view that the replica stores.
    pub epoch: Epoch,
    /// Writer of that epoch.
    pub writer: WriterId,
}

impl FollowReply {
    /// Decodes a `Following` frame; `None` if it is invalid.
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

    /// LSN at which the replica's history leaves that of `view`, if it does.
    ///
    /// During a resync the replica's blocks can be newer than its log. These blocks stay dirty at the client
    /// until the resync has ended, so they need no check here.
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

    /// Whether the replica's blocks, except those that the client knows to be dirty, belong to the history of
    /// `view`.
    pub fn has_blocks_of(&self, view: &View) -> bool {
        let has_any = matches!(
            self.condition,
            ReplicaCondition::Following | ReplicaCondition::Inconsistent { since: Some(_) }
        );
        has_any && self.fork(view).is_none()
    }
}

/// A replica as its data lender describes it to a client that wants to restore the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaDescription {
    /// Contents of the last `Follow` frame that the replica accepted, without the key itself.
    pub follow: FollowRequest,
    /// Whether the replica is whole.
    pub condition: ReplicaCondition,
    /// LSN at which the volume was closed, if it is closed.
    pub closed: Option<Lsn>,
    /// When the client last sent a frame, in seconds of the wall clock.
    pub contact: u64,
    /// Milliseconds since then by the data lender's own clock. `None`: the lender's release does not report
    /// it.
    pub heard_ms: Option<u64>,
    /// Start of its log, with the chain value there.
    pub head: ChainPoint,
    /// End of its log, with the chain value there.
    pub end: ChainPoint,
    /// Newest view stored at the data lender.
    pub view: View,
}

impl ReplicaDescription {
    /// Whether the replica has become another volume: it was taken over, or a writer served from it in an
    /// epoch that `ours`, the client's view, does not know.
    pub fn is_of_others(&self, ours: &View) -> bool {
        self.condition == ReplicaCondition::TakenOver || ours.lacks_epoch_of(&self.view)
    }

    /// The description for a client that has not proven to own the volume's journal: sizes and ages, and the
    /// wrapped key, without which no restore could prove anything.
    pub fn for_strangers(self) -> ReplicaDescription {
        ReplicaDescription {
            closed: None,
            head: ChainPoint::default(),
            end: ChainPoint::default(),
            view: View::first(self.follow.identity.journal),
            ..self
        }
    }

    fn encode(&self) -> Vec<u8> {
        let (condition, since) = self.condition.encode();
        let mut bytes = Vec::with_capacity(512);
        bytes.extend_from_slice(&[
            condition,
            u8::from(self.closed.is_some()),
            self.follow.wrapped_key.len() as u8,
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
        bytes.extend_from_slice(&self.follow.wrapped_key);
        bytes.extend_from_slice(&self.view.encode());
        bytes
    }

    /// Decodes a `Replica` frame with flag `KNOWN`.
    ///
    /// # Errors
    ///
    /// [`ShortInputError`] if the body is truncated or a field is out of bounds.
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
            key: Vec::new(),
            wrapped_key: cursor.bytes(usize::from(key))?.to_vec(),
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

/// Maximum number of blocks that a `Fetch` with this header may ask for.
pub(super) fn fetch_max(header: &FrameHeader) -> usize {
    match header.flags & Flag::HOLES {
        0 => BLOCKS_PER_FRAME,
        _ => MAP_BLOCKS_PER_FRAME,
    }
}

/// Encodes the body of a `Blocks` frame: each block's number with its bytes.
pub fn encode_blocks<'a>(blocks: impl Iterator<Item = (u64, &'a [u8])>) -> Vec<u8> {
    let mut body = Vec::with_capacity(FRAME_BODY_BYTES_MAX);
    for (number, bytes) in blocks {
        assert_eq!(bytes.len(), BLOCK_BYTES);
        body.extend_from_slice(&number.to_le_bytes());
        body.extend_from_slice(bytes);
    }
    body
}

/// Blocks of a `Blocks` frame; `None` if the body ends within one.
pub fn blocks(body: &[u8]) -> Option<impl Iterator<Item = (u64, &[u8])>> {
    let whole = body.len().is_multiple_of(BLOCK_BYTES + 8);
    let pairs = body.chunks_exact(BLOCK_BYTES + 8).filter_map(|pair| {
        let (number, bytes) = pair.split_first_chunk::<8>()?;
        Some((u64::from_le_bytes(*number), bytes))
    });
    whole.then_some(pairs)
}

/// Encodes block numbers as a body.
pub fn encode_numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// Block numbers in a body; `None` if the body ends within one.
pub fn numbers(body: &[u8]) -> Option<impl Iterator<Item = u64>> {
    let whole = body.len().is_multiple_of(8);
    let numbers = body.chunks_exact(8).filter_map(|bytes| {
        let bytes = bytes.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    });
    whole.then_some(numbers)
}

/// Digests of a `Digests` frame; `None` if the body ends within one.
pub fn digests(body: &[u8]) -> Option<impl Iterator<Item = BlockDigest>> {
    let whole = body.len().is_multiple_of(DIGEST_BYTES);
    let digests = body
        .chunks_exact(DIGEST_BYTES)
        .filter_map(|bytes| bytes.first_chunk::<DIGEST_BYTES>().copied());
    whole.then_some(digests)
}
