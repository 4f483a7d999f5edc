//! Byte formats. All input from a peer or a disk is checked here, once, and becomes a type that carries the
//! proof; the machines accept only these types.
//!
//! `docs/design/protocol.md` draws the frames, `docs/design/journal.md` the records.

mod bytes;
mod crc;
mod frame;
mod record;
mod resource;

pub use bytes::{ByteReader, ShortInputError, put_varint};
pub use crc::{Crc, crc32c};
pub use frame::{Flag, Frame, FrameError, FrameHeader, FrameKind, RefusalReason};
pub use record::{
    ChainPoint, CheckedRecord, CrcSeed, RecordError, RecordHeader, ScanStep, check_record, finish_record,
    record_bytes, scan_step,
};
pub use resource::{ClientLimitRefusal, ClientResource};
