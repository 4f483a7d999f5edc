//! Frames: the messages between clients and lenders. A header of 40 bytes, then a body.
//!
//! ```text
//!  0  kind u8 | flags u8 | zero u16 | body u32
//!  8  lsn u64
//! 16  epoch u32 | mark u32
//! 24  stable u64
//! 32  sender u64
//! 40  body
//! ```
//!
//! `docs/design/protocol.md` says what each field means in each kind of frame. Numbers are little endian. The
//! link protects frames against changes (AEAD, or a local socket); records inside have their own CRC.

use super::bytes::{ByteReader, ShortInputError};
use crate::id::{Epoch, Lsn};
use crate::limit::{FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES};

/// The type of a frame. Clients send kinds below 64, lenders those from 64 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Binds this session to a journal. Body: journal id (16). Must be the first frame.
    Bind = 1,
    /// Fences every lower epoch, and reports what the member holds. Body: nothing, or the owner's signature
    /// of the fence ([`FenceStatement`](crate::owner::FenceStatement), 64).
    Fence = 2,
    /// Empties the window and starts it at `lsn`. Body: window bytes (8). `mark`: chain at `lsn`; `stable`:
    /// generation.
    Join = 3,
    /// Bytes of the log from `lsn`. `stable`: drop everything below it. Flag `FRESH`: `mark` is the chain at
    /// `lsn`.
    Append = 4,
    /// Asks for a sign of life. `lsn`: a number to be returned. `stable`: drop everything below it. With flag
    /// `PROBE` and epoch 0: a question that changes nothing, answered by `ProbeReply`.
    Ping = 5,
    /// Asks for bytes of the window from `lsn`. Body: byte count (4). Allowed only after `Fence`.
    Read = 6,
    /// Frees the window. `lsn`: the epoch that joined it; `mark`: its generation.
    Leave = 7,
    /// Asks for the lender's status. Needs no bind.
    Status = 8,
    /// Asks the lender to listen to a channel, over which appends are multicast. `lsn`: the channel's number.
    /// Body: a [`ChannelInvite`](crate::multicast::ChannelInvite).
    Invite = 9,
    /// Opens a data session, in which the lender follows the sender's volume. Must be the first frame.
    /// `docs/design/protocol.md` draws the bodies of this and all later kinds of a data session.
    Follow = 10,
    /// Raw bytes of the volume's log from `lsn`, all of them on the client's disk.
    Records = 11,
    /// A view to store. `lsn`: its version; `stable`: bytes of the volume; `mark`: the highest epoch, if a
    /// claim raised it. Flag `CLOSED`.
    StoreView = 12,
    /// Restarts the replica's log at `lsn`, whose chain is `mark`; blocks follow. Flag `FULL`.
    Resync = 13,
    /// Digests of the blocks from number `lsn` on. `mark`: a number to be returned.
    Digests = 14,
    /// Blocks, or with flag `HOLES` the numbers of blocks that are all zeros. `mark`: a number to be
    /// returned.
    Blocks = 15,
    /// All blocks were sent; with the log up to `lsn` the replica is consistent.
    ResyncEnd = 16,
    /// Asks for blocks from number `lsn` on, as of a log that has reached `stable`. `mark`: a number to be
    /// returned. Body: count (4).
    Fetch = 17,
    /// Asks for a list of replicas, or for one (body: volume id, 16). May be the first frame.
    Inquire = 18,
    /// Opens a session between a node and the server of a shared region. Must be the first frame. The
    /// messages after it are not frames: see `docs/design/protocol.md`.
    Share = 19,
    /// Opens a session of a deposit: pages of an arena, in the lender's memory. Must be the first frame.
    /// Body: deposit id (16). `epoch`: the session's number, higher than all earlier ones.
    Deposit = 20,
    /// Changes the number of the deposit's slots to `lsn`.
    Resize = 21,
    /// Pages to store. `mark`: a number to be returned.
    Put = 22,
    /// Asks for pages. `mark`: a number to be returned.
    Get = 23,
    /// Asks for blocks of pages. `mark`: a number to be returned.
    Gather = 24,
    /// Proves that the client owns the journal or deposit that it asks for next. Body: an
    /// [`OwnerProof`](crate::owner::OwnerProof). From wire version 2 on; it has no answer.
    Prove = 25,
    /// The operator's order that clients move away, or with flag `UNDRAIN` that they may return. Only at the
    /// operator's socket. Answered by `Report`.
    Drain = 26,
    /// The operator's order to lend at most `lsn` bytes until the next start. Only at the operator's socket.
    /// Answered by `Report`.
    Offer = 27,
    /// Answers `Bind`. `sender`: incarnation. Body: the lender's power domain.
    Bound = 64,
    /// Answers `Fence`. `lsn`: held; `stable`: trim; `mark`: generation. Body: epoch of the window (4). Flag
    /// `KNOWN`.
    Fenced = 65,
    /// Answers `Join`, `Append`. `lsn`: held; `stable`: received; `mark`: generation. Flags `GAP`, `HEARD`.
    Ack = 66,
    /// Answers `Ping`. Fields as in `Ack`; the body is the ping's number (8).
    Pong = 67,
    /// Answers `Read`. Body: the bytes from `lsn`.
    Data = 68,
    /// Answers `Leave`.
    LeaveAck = 69,
    /// Answers `Status`. Body: JSON.
    Report = 70,
    /// Refuses a request. `flags`: a [`RefusalReason`]; `epoch`: the epoch seen; `lsn`, `stable`: the
    /// reason's numbers. Body of `Fenced` and `NotFenced`, if the fence is signed: its writer (8) and the
    /// signature (64).
    Refuse = 71,
    /// Announces that the lender is about to stop. The client moves away and does not answer. With flag
    /// `DRAINS` it goes on serving, and the client moves once another lender has taken its place; with
    /// `PARTIAL` too, it moves only then. To a deposit's owner with flag `PARTIAL`: the lender wants slots
    /// from `lsn` on back.
    Withdraw = 72,
    /// Answers `Invite`: the lender listens. `lsn`: the channel's number.
    Listening = 73,
    /// Bytes from `lsn` to `stable` are missing on the channel. `mark`: generation.
    Missing = 74,
    /// Answers `Follow`, and reports that a resync has begun or ended. `lsn`: flushed; `mark`: the chain
    /// there; `stable`: the end of its log's space; `epoch`: the highest that claimed it; `flags`: its
    /// condition.
    Following = 75,
    /// The replica's log is durable below `lsn`, and has space up to `stable`. Body: the end of what its
    /// image contains (8).
    Flushed = 76,
    /// Answers `StoreView`. `lsn`: the view's version.
    ViewStored = 77,
    /// Answers `Digests`. `lsn`, `mark`: as in the request. Body: one bit for each block, set where it
    /// differs.
    DigestReply = 78,
    /// Answers `Blocks`. `mark`: as in the request.
    Stored = 79,
    /// Answers `Fetch`. `lsn`, `mark`: as in the request. Body: the blocks. Flag `BAD`: the replica lacks
    /// them too; `LATER`: not available now.
    Fetched = 80,
    /// Blocks of the replica whose checksums do not match. Body: their numbers (8 each).
    BadBlocks = 81,
    /// Answers `Inquire`: with flag `KNOWN` the requested replica, otherwise JSON that lists all.
    Replica = 82,
    /// Answers `Share`. The session's own messages follow, in both directions.
    ShareAck = 83,
    /// Answers `Deposit` and `Resize`. `lsn`: number of slots; `stable`: the life of their contents; `mark`:
    /// in answer to `Deposit`, the seconds that the deposit outlives a session.
    DepositAck = 84,
    /// Answers `Put`: all pages are stored. `mark`: as in the request.
    PutAck = 85,
    /// Answers `Get`. `mark`: as in the request. Body: the pages; an absent page has zero bytes.
    GetReply = 86,
    /// Answers `Gather`. `mark`: as in the request. Body: the requested blocks of each page, or none.
    GatherReply = 87,
    /// Answers `Ping` with flag `PROBE`. `epoch`: the highest that fenced the member; `lsn`: held; `stable`:
    /// trim; `mark`: generation. Body: the writer that fenced it (8), epoch of the window (4), and the
    /// fence's signature (64) if there is one. Flag `KNOWN`.
    ProbeReply = 88,
}

impl FrameKind {
    fn from_byte(byte: u8) -> Option<FrameKind> {
        use FrameKind::*;
        Some(match byte {
            1 => Bind,
            2 => Fence,
            3 => Join,
            4 => Append,
            5 => Ping,
            6 => Read,
            7 => Leave,
            8 => Status,
            9 => Invite,
            10 => Follow,
            11 => Records,
            12 => StoreView,
            13 => Resync,
            14 => Digests,
            15 => Blocks,
            16 => ResyncEnd,
            17 => Fetch,
            18 => Inquire,
            19 => Share,
            20 => Deposit,
            21 => Resize,
            22 => Put,
            23 => Get,
            24 => Gather,
            25 => Prove,
            26 => Drain,
            27 => Offer,
            64 => Bound,
            65 => Fenced,
            66 => Ack,
            67 => Pong,
            68 => Data,
            69 => LeaveAck,
            70 => Report,
            71 => Refuse,
            72 => Withdraw,
            73 => Listening,
            74 => Missing,
            75 => Following,
            76 => Flushed,
            77 => ViewStored,
            78 => DigestReply,
            79 => Stored,
            80 => Fetched,
            81 => BadBlocks,
            82 => Replica,
            83 => ShareAck,
            84 => DepositAck,
            85 => PutAck,
            86 => GetReply,
            87 => GatherReply,
            88 => ProbeReply,
            _ => return None,
        })
    }
}

/// Bits of a header's `flags` (except in `Refuse`, where the byte is a [`RefusalReason`]).
pub struct Flag;

impl Flag {
    /// `Fenced`, `ProbeReply`: the member has a window for this journal.
    pub const KNOWN: u8 = 1;
    /// `Fenced`, `ProbeReply`: that window was written to a disk and does not grow any more.
    pub const READ_ONLY: u8 = 2;
    /// `Ping` with epoch 0: asks what the member holds and which writer fenced it.
    pub const PROBE: u8 = 1;
    /// `Leave`: the journal has ended, and its fence is not needed any more.
    pub const ENDED: u8 = 1;
    /// `Leave`: the journal was closed cleanly: its writer's disk has everything, and its durable view names
    /// no member.
    pub const CLOSED_CLEAN: u8 = 2;
    /// `Leave`: refuse if another session serves the journal.
    pub const UNLESS_IN_USE: u8 = 4;
    /// `Ack`: the append began beyond what was received; send again from `stable` (received).
    pub const GAP: u8 = 2;
    /// `Withdraw`: the lender goes on lending, and wants some slots of the deposit back, or with `DRAINS`
    /// this journal's window.
    pub const PARTIAL: u8 = 1;
    /// `Withdraw`: the lender takes no new windows and pages, and serves until its operator stops it. Older
    /// clients take it for a stop.
    pub const DRAINS: u8 = 2;
    /// `Drain`: the lender takes windows and pages again.
    pub const UNDRAIN: u8 = 1;
    /// `Ack`, `Pong`: datagrams of the channel have arrived since the last such answer.
    pub const HEARD: u8 = 128;
    /// `Append`: everything before is on the writer's disk; a member that lacks some of it restarts its
    /// window here.
    pub const FRESH: u8 = 4;
    /// `Resync`: discard the replica's contents. `Follow`: create the replica if it does not exist.
    pub const FULL: u8 = 8;
    /// `StoreView`: the volume was closed, and the replica has all of it. `Follow`: a closed volume stays
    /// closed.
    pub const CLOSED: u8 = 16;
    /// `Blocks`: the body has only the numbers of blocks that are all zeros. `Fetch`, `Fetched`: instead of
    /// the blocks, one bit for each, set where it has data.
    pub const HOLES: u8 = 32;
    /// `Fetched`: the replica lacks the blocks too.
    pub const BAD: u8 = 64;
    /// `Fetched`: the replica cannot provide the blocks now, but may later.
    pub const LATER: u8 = 128;
}

/// Why a lender refused a request. The client's reaction differs for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RefusalReason {
    /// A newer writer fenced this member: stop. `epoch`: its epoch.
    Fenced = 1,
    /// The member holds no window for this journal: join first.
    NotJoined = 2,
    /// The lender has no free memory. `lsn`: bytes requested, `stable`: bytes free.
    NoRoom = 3,
    /// The requested window exceeds the quota of one journal. `lsn`: bytes requested, `stable`: the quota.
    OverQuota = 4,
    /// The lender already holds the maximum number of journals. `stable`: that number.
    TooManyJournals = 5,
    /// A record failed its check. `lsn`: its position.
    BadRecord = 6,
    /// The append exceeds the window. `lsn`: where the append would end, `stable`: where the window ends.
    Overrun = 7,
    /// The read lies outside the window. `lsn`, `stable`: the window's ends.
    OutOfWindow = 8,
    /// The frame is invalid at this point, or its lengths are. The session ends.
    Malformed = 9,
    /// The lender is stopping.
    Stopping = 10,
    /// The epoch has not fenced this member yet.
    NotFenced = 11,
    /// The lender does not serve the multicast group that a `ChannelInvite` names.
    NoGroup = 12,
    /// The lender stores no replicas, or not this one.
    NoReplica = 13,
    /// The replica's log and the client's have different histories. `lsn`: where they differ.
    Diverged = 14,
    /// The replica's disk failed or is full. `lsn`: the error number.
    DiskFailed = 15,
    /// This lender takes data sessions on another listener, with another key.
    DataElsewhere = 16,
    /// This listener accepts data sessions only.
    DataOnly = 17,
    /// This is a lender; it serves no shared region.
    NoRegion = 18,
    /// This is the server of a shared region; it lends no memory and stores no replicas.
    RegionOnly = 19,
    /// The lender accepts no deposits, or holds the maximum number. `stable`: that number.
    NoDeposit = 20,
    /// Another session serves the journal, so the journal has not ended.
    InUse = 21,
    /// The session has not proven that its client owns the journal, or a signature is wrong.
    NotOwner = 22,
    /// The client's name may not have what it asks for. `lsn`: the number of the
    /// [`ClientResource`](super::ClientResource), `stable`: the amount that it may have, zero if none.
    OverClientLimit = 23,
}

impl RefusalReason {
    /// The reason in the `flags` of a `Refuse` frame; `None` for an unknown byte.
    pub fn from_byte(byte: u8) -> Option<RefusalReason> {
        use RefusalReason::*;
        Some(match byte {
            1 => Fenced,
            2 => NotJoined,
            3 => NoRoom,
            4 => OverQuota,
            5 => TooManyJournals,
            6 => BadRecord,
            7 => Overrun,
            8 => OutOfWindow,
            9 => Malformed,
            10 => Stopping,
            11 => NotFenced,
            12 => NoGroup,
            13 => NoReplica,
            14 => Diverged,
            15 => DiskFailed,
            16 => DataElsewhere,
            17 => DataOnly,
            18 => NoRegion,
            19 => RegionOnly,
            20 => NoDeposit,
            21 => InUse,
            22 => NotOwner,
            23 => OverClientLimit,
            _ => return None,
        })
    }
}

/// The fixed part of every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The type of the frame.
    pub kind: FrameKind,
    /// Bits of [`Flag`], or a [`RefusalReason`].
    pub flags: u8,
    /// A position in the log.
    pub lsn: Lsn,
    /// The writer's epoch.
    pub epoch: Epoch,
    /// A chain value, a generation or a request's number, depending on the kind.
    pub mark: u32,
    /// A second position; its meaning depends on the kind.
    pub stable: Lsn,
    /// The writer's id (from a client) or the incarnation (from a lender).
    pub sender: u64,
}

/// A frame as received: a checked header and its body.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// The fixed part.
    pub header: FrameHeader,
    /// The bytes after the header; at most [`FRAME_BODY_BYTES_MAX`].
    pub body: &'a [u8],
}

/// Why bytes are not a frame. The session that sent them ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The packet is shorter than a header, or than the header's body length.
    Short,
    /// The packet is longer than the header's body length, or the body exceeds the limit.
    Long,
    /// This version does not know the frame's kind.
    UnknownKind(u8),
    /// Reserved bytes are not zero.
    Reserved,
}

impl core::fmt::Display for FrameError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            FrameError::Short => out.write_str("a frame shorter than its header says"),
            FrameError::Long => out.write_str("a frame longer than its header or the limit says"),
            FrameError::UnknownKind(kind) => write!(out, "a frame of unknown kind {kind}"),
            FrameError::Reserved => out.write_str("a frame with reserved bytes set"),
        }
    }
}

impl core::error::Error for FrameError {}

impl From<ShortInputError> for FrameError {
    fn from(_: ShortInputError) -> FrameError {
        FrameError::Short
    }
}

impl FrameHeader {
    /// A header of `kind` with every other field zero.
    pub const fn new(kind: FrameKind) -> FrameHeader {
        FrameHeader {
            kind,
            flags: 0,
            lsn: Lsn(0),
            epoch: Epoch(0),
            mark: 0,
            stable: Lsn(0),
            sender: 0,
        }
    }

    /// The header as bytes, for a body of `body` bytes.
    pub fn encode(&self, body: usize) -> [u8; FRAME_HEADER_BYTES] {
        assert!(body <= FRAME_BODY_BYTES_MAX);
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags;
        bytes[4..8].copy_from_slice(&(body as u32).to_le_bytes());
        bytes[8..16].copy_from_slice(&self.lsn.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.mark.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.stable.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.sender.to_le_bytes());
        bytes
    }
}

impl<'a> Frame<'a> {
    /// Checks that `packet` is exactly one frame.
    ///
    /// # Errors
    ///
    /// The packet is not exactly one frame, or its kind is unknown.
    pub fn parse(packet: &'a [u8]) -> Result<Frame<'a>, FrameError> {
        let mut cursor = ByteReader::new(packet);
        let kind = cursor.u8()?;
        let flags = cursor.u8()?;
        if cursor.u16()? != 0 {
            return Err(FrameError::Reserved);
        }
        let body = cursor.u32()? as usize;
        let header = FrameHeader {
            kind: FrameKind::from_byte(kind).ok_or(FrameError::UnknownKind(kind))?,
            flags,
            lsn: Lsn(cursor.u64()?),
            epoch: Epoch(cursor.u32()?),
            mark: cursor.u32()?,
            stable: Lsn(cursor.u64()?),
            sender: cursor.u64()?,
        };
        if body > FRAME_BODY_BYTES_MAX || cursor.rest().len() > body {
            return Err(FrameError::Long);
        }
        Ok(Frame {
            header,
            body: cursor.bytes(body)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn sample() -> FrameHeader {
        FrameHeader {
            kind: FrameKind::Append,
            flags: 3,
            lsn: Lsn(0x0102_0304_0506_0708),
            epoch: Epoch(9),
            mark: 0xDEAD_BEEF,
            stable: Lsn(77),
            sender: u64::MAX,
        }
    }

    #[test]
    fn a_frame_survives_encoding_and_parsing() {
        let mut packet: Vec<u8> = sample().encode(5).to_vec();
        packet.extend_from_slice(b"hello");
        let frame = Frame::parse(&packet).unwrap();
        assert_eq!(frame.header, sample());
        assert_eq!(frame.body, b"hello");
    }

    #[test]
    fn a_truncated_or_too_long_frame_is_refused() {
        let mut packet: Vec<u8> = sample().encode(5).to_vec();
        packet.extend_from_slice(b"hello");
        for cut in 0..packet.len() {
            assert_eq!(
                Frame::parse(&packet[..cut]).unwrap_err(),
                FrameError::Short,
                "cut at {cut}"
            );
        }
        packet.push(0);
        assert_eq!(Frame::parse(&packet).unwrap_err(), FrameError::Long);
    }

    #[test]
    fn unknown_kinds_set_reserved_bytes_and_huge_lengths_are_refused() {
        let mut packet = sample().encode(0);
        packet[0] = 200;
        assert_eq!(Frame::parse(&packet).unwrap_err(), FrameError::UnknownKind(200));
        let mut packet = sample().encode(0);
        packet[3] = 1;
        assert_eq!(Frame::parse(&packet).unwrap_err(), FrameError::Reserved);
        let mut packet = sample().encode(0);
        packet[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Frame::parse(&packet).unwrap_err(), FrameError::Long);
    }

    #[test]
    fn every_refusal_reason_survives_encoding() {
        for byte in 1..=23 {
            assert_eq!(
                RefusalReason::from_byte(byte).map(|refusal| refusal as u8),
                Some(byte)
            );
        }
        assert_eq!(RefusalReason::from_byte(0), None);
        assert_eq!(RefusalReason::from_byte(24), None);
    }
}
