//! A log file of fixed size that wraps: two superblock slots, then a data area in which LSN `n` lies at `n`
//! modulo the area's size.
//!
//! ```text
//!        0  superblock slot
//!     4096  superblock slot
//!     8192  data area, `capacity` bytes
//! ```

use alloc::vec;
use alloc::vec::Vec;

use crate::failure::{CallError, FailureClass, SystemCall};
use crate::id::{JournalId, Lsn};
use crate::limit::{
    LOG_ALIGN, LOG_BYTES_MAX, LOG_BYTES_MIN, LSN_LAST, PROOF_SAMPLE_BYTES, RECORD_ALIGN, RECORD_HEADER_BYTES,
    SLOT_BYTES, WINDOW_BYTES_MAX,
};
use crate::planted::FaultSwitch;
use crate::port::{IoError, StorageFile};
use crate::wire::{
    ByteReader, ChainPoint, CheckedRecord, CrcSeed, RecordHeader, ScanStep, ShortInputError, scan_step,
};

use super::slot_pair::{SlotError, SlotPair};

const MAGIC: [u8; 8] = *b"NETRAMLG";
const FORMAT: u16 = 1;
const DATA_OFFSET: u64 = SlotPair::bytes(SLOT_BYTES);
/// Bytes read at once when scanning: large enough that the disk streams, small enough to stay in the cache.
const SCAN_BYTES: usize = 512 * 1024;

/// The contents of the superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogSuperblock {
    /// The journal that the log belongs to.
    pub journal: JournalId,
    /// Bytes of the data area.
    pub capacity: u64,
    /// Start of the oldest record kept, and the chain value before it.
    pub head: ChainPoint,
    /// Everything below was on the disk when the superblock was written.
    pub stable: Lsn,
    /// Maximum distance, in bytes, from what the writer knew to be on the disk to the end of any record of
    /// this log. Zero: unknown, up to [`WINDOW_BYTES_MAX`].
    pub window: u64,
}

/// Why a file is not a usable log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFileError {
    /// The file failed.
    Io(IoError),
    /// The file is not a netram log.
    NotALog,
    /// The log has another version of the format.
    Format(u16),
    /// Both superblocks are damaged.
    Damaged,
    /// The file is shorter than its superblock says.
    Truncated {
        /// Bytes it should have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// The log belongs to another journal.
    OtherJournal {
        /// The journal expected.
        expected: JournalId,
        /// The journal found.
        found: JournalId,
    },
    /// The requested size of a log is out of bounds.
    Size(u64),
}

impl core::fmt::Display for LogFileError {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            LogFileError::Io(error) => error.fmt(out),
            LogFileError::NotALog => out.write_str("not a netram log; name a log file that netram created"),
            LogFileError::Format(found) => {
                write!(
                    out,
                    "the log has format {found}, this version reads {FORMAT}; open it with the version that wrote it"
                )
            }
            LogFileError::Damaged => {
                out.write_str("both superblocks of the log are damaged; restore the log file from a copy")
            }
            LogFileError::Truncated { expected, found } => {
                write!(
                    out,
                    "the log file has {found} bytes but should have {expected}; it was truncated: restore it from a copy"
                )
            }
            LogFileError::OtherJournal { expected, found } => {
                write!(
                    out,
                    "the log belongs to journal {found}, not to {expected}; put the right log file back"
                )
            }
            LogFileError::Size(asked) => write!(
                out,
                "a log of {asked} bytes is out of bounds; choose {LOG_BYTES_MIN} to {LOG_BYTES_MAX} bytes, a multiple of {LOG_ALIGN}"
            ),
        }
    }
}

impl core::error::Error for LogFileError {}

impl From<IoError> for LogFileError {
    fn from(error: IoError) -> LogFileError {
        LogFileError::Io(error)
    }
}

impl From<CallError> for LogFileError {
    fn from(failure: CallError) -> LogFileError {
        LogFileError::Io(failure.error)
    }
}

impl From<ShortInputError> for LogFileError {
    fn from(_: ShortInputError) -> LogFileError {
        LogFileError::Damaged
    }
}

impl From<SlotError> for LogFileError {
    fn from(error: SlotError) -> LogFileError {
        match error {
            SlotError::Io(error) => LogFileError::Io(error),
            SlotError::Foreign => LogFileError::NotALog,
            SlotError::Damaged => LogFileError::Damaged,
        }
    }
}

/// The result of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogScan {
    /// End of the valid prefix.
    pub end: ChainPoint,
    /// Number of records visited.
    pub records: u64,
    /// The highest LSN below which some record proves that everything was on the disk.
    pub proof: Lsn,
    /// The error at which the scan ended, if the disk could not read the bytes there.
    pub unreadable: Option<IoError>,
}

/// Access to a log file by LSN. The writer of superblocks keeps their [`SlotPair`] separately, so that data
/// can be written at the same time.
#[derive(Debug)]
pub struct LogFile<F> {
    file: F,
    capacity: u64,
    /// The superblock's `window`.
    window: u64,
    seed: CrcSeed,
    planted: FaultSwitch,
}

impl<F: StorageFile> LogFile<F> {
    /// Size of a log file whose data area has `capacity` bytes.
    pub const fn file_bytes(capacity: u64) -> u64 {
        DATA_OFFSET + capacity
    }

    /// Writes the superblocks of an empty log into `file`, which already has its full size, and syncs.
    ///
    /// # Errors
    ///
    /// The size is out of bounds, or the file failed or is too short.
    pub fn create(
        file: F,
        journal: JournalId,
        capacity: u64,
    ) -> Result<(LogFile<F>, SlotPair), LogFileError> {
        LogFile::create_at(file, journal, capacity, ChainPoint::default())
    }

    /// Creates a log as [`LogFile::create`] does, whose first record, written elsewhere, begins at `head`.
    ///
    /// # Errors
    ///
    /// The size is out of bounds, or the file failed or is too short.
    pub fn create_at(
        file: F,
        journal: JournalId,
        capacity: u64,
        head: ChainPoint,
    ) -> Result<(LogFile<F>, SlotPair), LogFileError> {
        if !(LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&capacity) || !capacity.is_multiple_of(LOG_ALIGN) {
            return Err(LogFileError::Size(capacity));
        }
        let superblock = LogSuperblock {
            journal,
            capacity,
            head,
            stable: head.lsn,
            window: 0,
        };
        check_size(&file, capacity)?;
        let slots = SlotPair::create(&file, MAGIC, SLOT_BYTES, &superblock.encode())?;
        Ok((
            LogFile {
                file,
                capacity,
                window: 0,
                seed: journal.into(),
                planted: FaultSwitch::NONE,
            },
            slots,
        ))
    }

    /// Opens a log file.
    ///
    /// # Errors
    ///
    /// The file is not a log of this format, is damaged or truncated, or cannot be read.
    pub fn open(file: F) -> Result<(LogFile<F>, SlotPair, LogSuperblock), LogFileError> {
        let (slots, payload) = SlotPair::open(&file, MAGIC, SLOT_BYTES)?;
        let superblock = LogSuperblock::decode(&payload)?;
        check_size(&file, superblock.capacity)?;
        let log = LogFile {
            file,
            capacity: superblock.capacity,
            window: superblock.window,
            seed: superblock.journal.into(),
            planted: FaultSwitch::NONE,
        };
        Ok((log, slots, superblock))
    }

    /// Plants a fault (simulator tests only).
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Bytes of the data area.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// The journal's contribution to its records' CRCs.
    pub fn seed(&self) -> CrcSeed {
        self.seed
    }

    /// The file itself.
    pub fn file(&self) -> &F {
        &self.file
    }

    /// The same file with a data area of another size, which its superblock already has.
    pub(super) fn with_capacity(self, capacity: u64) -> LogFile<F> {
        LogFile { capacity, ..self }
    }

    /// Writes `bytes` at `at`, in two pieces where the area wraps. Not durable before [`LogFile::sync`].
    ///
    /// # Errors
    ///
    /// The error of the write. Part of `bytes` may have been written.
    pub fn write(&self, at: Lsn, bytes: &[u8]) -> Result<(), IoError> {
        assert!(bytes.len() as u64 <= self.capacity);
        let (first, second) = bytes.split_at(self.before_wrap(at, bytes.len()));
        self.file.write_at(self.offset(at), first)?;
        if !second.is_empty() {
            self.file.write_at(DATA_OFFSET, second)?;
        }
        Ok(())
    }

    /// Fills `into` from `at`.
    ///
    /// # Errors
    ///
    /// The error of the read.
    pub fn read(&self, at: Lsn, into: &mut [u8]) -> Result<(), IoError> {
        assert!(into.len() as u64 <= self.capacity);
        let cut = self.before_wrap(at, into.len());
        let (first, second) = into.split_at_mut(cut);
        self.file.read_at(self.offset(at), first)?;
        if !second.is_empty() {
            self.file.read_at(DATA_OFFSET, second)?;
        }
        Ok(())
    }

    /// Reads the bytes from `from` to `to` and writes them again.
    ///
    /// # Errors
    ///
    /// The error of the read or the write.
    pub fn rewrite(&self, from: Lsn, to: Lsn) -> Result<(), IoError> {
        let mut buffer = vec![0; to.since(from).min(SCAN_BYTES as u64) as usize];
        let mut at = from;
        while at < to {
            let length = to.since(at).min(SCAN_BYTES as u64) as usize;
            self.read(at, &mut buffer[..length])?;
            self.write(at, &buffer[..length])?;
            at = at.plus(length as u64);
        }
        Ok(())
    }

    /// Writes zeros from `from` to `to`.
    ///
    /// # Errors
    ///
    /// The error of the write.
    pub fn erase(&self, from: Lsn, to: Lsn) -> Result<(), IoError> {
        let zeros = vec![0; to.since(from).min(SCAN_BYTES as u64) as usize];
        let mut at = from;
        while at < to {
            let length = to.since(at).min(SCAN_BYTES as u64) as usize;
            self.write(at, &zeros[..length])?;
            at = at.plus(length as u64);
        }
        Ok(())
    }

    /// Makes everything written durable.
    ///
    /// # Errors
    ///
    /// The sync failed. Nothing written since the last good sync may be assumed to be on the disk.
    pub fn sync(&self) -> Result<(), IoError> {
        self.file.sync()
    }

    /// Makes `superblock` durable.
    ///
    /// # Errors
    ///
    /// The write or the sync failed, as for [`SlotPair::store`].
    pub fn store(&self, slots: &mut SlotPair, superblock: &LogSuperblock) -> Result<(), CallError> {
        slots.store(&self.file, &superblock.encode())
    }

    /// Passes every valid record from `from` to `visit`, up to `limit`, until one is invalid or `visit`
    /// returns `false`.
    pub fn scan(
        &self,
        from: ChainPoint,
        limit: Lsn,
        visit: &mut dyn FnMut(CheckedRecord<'_>) -> bool,
    ) -> LogScan {
        let mut scan = LogScan {
            end: from,
            records: 0,
            proof: Lsn(0),
            unreadable: None,
        };
        let mut buffer: Vec<u8> = vec![0; SCAN_BYTES];
        let mut filled = 0;
        let mut at = 0;
        loop {
            match scan_step(&buffer[at..filled], scan.end, self.seed, self.planted) {
                ScanStep::Record(header) => {
                    if !visit(CheckedRecord {
                        header,
                        bytes: &buffer[at..at + header.length],
                    }) {
                        return scan;
                    }
                    at += header.length;
                    scan.end = header.next_point();
                    scan.records += 1;
                    scan.proof = scan.proof.max(header.stable);
                }
                ScanStep::Bad(_) => return scan,
                ScanStep::Incomplete(length) => {
                    let there = limit.since(scan.end.lsn);
                    if length as u64 > there {
                        return scan;
                    }
                    let wanted = there.min(length.max(SCAN_BYTES) as u64) as usize;
                    buffer.resize(wanted.max(buffer.len()), 0);
                    at = 0;
                    filled = wanted;
                    if self.read(scan.end.lsn, &mut buffer[..wanted]).is_err() {
                        // A long read may fail because of a sector beyond the present record.
                        filled = length;
                        if let Err(error) = self.read(scan.end.lsn, &mut buffer[..length]) {
                            scan.unreadable = Some(error);
                            return scan;
                        }
                    }
                }
            }
        }
    }

    /// Looks for valid records beyond an invalid one at `bad`. Returns the highest LSN below which one of
    /// them proves that everything was on the disk. If that lies above `bad`, the invalid record is damage
    /// and not the end (rule 8).
    ///
    /// Reads a bounded part, however long the log is. A record that ends more than the writer's window above
    /// `bad` has a stable LSN above `bad`, so the proof begins within the window. If that part is damaged
    /// too, samples are read at doubling distances. Damage is then told from the end if at least as many
    /// bytes of records follow it as it is long.
    ///
    /// # Errors
    ///
    /// The system refused a read. The proof may lie in those bytes, and a later attempt may read them (rule
    /// 17).
    pub fn proof_beyond(&self, bad: Lsn, limit: Lsn) -> Result<Lsn, IoError> {
        let reach = match self.window {
            0 => WINDOW_BYTES_MAX,
            window => 2 * window,
        };
        let mut proof = self.proof_between(bad, limit.min(bad.plus(reach)), limit)?;
        let (mut from, mut distance) = (bad.plus(reach), reach);
        while proof <= bad && from < limit {
            let sample = from.plus(PROOF_SAMPLE_BYTES as u64);
            proof = proof.max(self.proof_between(from, limit.min(sample), limit)?);
            distance *= 2;
            from = bad.plus(distance);
        }
        Ok(proof)
    }

    /// The proof found in records that begin between `from` and `to`.
    fn proof_between(&self, mut from: Lsn, to: Lsn, limit: Lsn) -> Result<Lsn, IoError> {
        let mut proof = Lsn(0);
        // The header of a record that begins just before `to` lies beyond it.
        let bytes = |from: Lsn| (to.since(from) + RECORD_HEADER_BYTES as u64).min(SCAN_BYTES as u64);
        let mut buffer = vec![0; bytes(from) as usize];
        while from < to && from.plus(RECORD_HEADER_BYTES as u64) <= limit {
            let length = limit.since(from).min(bytes(from)) as usize;
            if self.gives(from, &mut buffer[..length])? {
                proof = proof.max(self.proof_in(&buffer[..length], from, limit)?);
            }
            from = from.plus((length - RECORD_HEADER_BYTES + RECORD_ALIGN) as u64 / 8 * 8);
        }
        Ok(proof)
    }

    /// Fills `into` from `at`. `false` if the disk cannot read these bytes; an error if the system refused
    /// the call.
    fn gives(&self, at: Lsn, into: &mut [u8]) -> Result<bool, IoError> {
        match self.read(at, into) {
            Ok(()) => Ok(true),
            Err(error) if SystemCall::Read.class(error) == FailureClass::Retry => Err(error),
            Err(_) => Ok(false),
        }
    }

    fn proof_in(&self, bytes: &[u8], from: Lsn, limit: Lsn) -> Result<Lsn, IoError> {
        let mut proof = Lsn(0);
        for at in (0..bytes.len()).step_by(RECORD_ALIGN) {
            let Some(front) = bytes[at..].first_chunk::<RECORD_HEADER_BYTES>() else {
                break;
            };
            let lsn = from.plus(at as u64);
            // Eight bytes that match by chance are one in 2^64; the CRC then decides.
            if front[8..16] != lsn.0.to_le_bytes() {
                continue;
            }
            let Ok(header) = RecordHeader::parse(front) else {
                continue;
            };
            if header.length as u64 > limit.since(lsn) {
                continue;
            }
            let mut record = vec![0; header.length];
            let link = ChainPoint {
                lsn,
                chain: header.chain,
            };
            if self.gives(lsn, &mut record)?
                && matches!(
                    scan_step(&record, link, self.seed, FaultSwitch::NONE),
                    ScanStep::Record(_)
                )
            {
                proof = proof.max(header.stable);
            }
        }
        Ok(proof)
    }

    fn offset(&self, at: Lsn) -> u64 {
        DATA_OFFSET + at.0 % self.capacity
    }

    fn before_wrap(&self, at: Lsn, length: usize) -> usize {
        length.min((self.capacity - at.0 % self.capacity) as usize)
    }
}

pub(super) fn check_size<F: StorageFile>(file: &F, capacity: u64) -> Result<(), LogFileError> {
    let (expected, found) = (LogFile::<F>::file_bytes(capacity), file.size()?);
    if found < expected {
        Err(LogFileError::Truncated { expected, found })
    } else {
        Ok(())
    }
}

impl LogSuperblock {
    /// The superblock for a writer whose ring has `ring` bytes and that appends after `end`. It must be
    /// durable before the writer appends.
    pub fn for_ring(&self, ring: u64, end: Lsn) -> LogSuperblock {
        let window = match self.window {
            _ if end == self.head.lsn => ring,
            // An earlier release wrote there, with a ring of unknown size.
            0 => 0,
            window => window.max(ring),
        };
        LogSuperblock { window, ..*self }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(&self.head.chain.to_le_bytes());
        bytes.extend_from_slice(&self.journal.0.to_le_bytes());
        bytes.extend_from_slice(&self.capacity.to_le_bytes());
        bytes.extend_from_slice(&self.head.lsn.0.to_le_bytes());
        bytes.extend_from_slice(&self.stable.0.to_le_bytes());
        bytes.extend_from_slice(&self.window.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<LogSuperblock, LogFileError> {
        let mut cursor = ByteReader::new(bytes);
        let format = cursor.u16()?;
        if format != FORMAT {
            return Err(LogFileError::Format(format));
        }
        cursor.u16()?;
        let chain = cursor.u32()?;
        let journal = JournalId(cursor.u128()?);
        let capacity = cursor.u64()?;
        let head = ChainPoint {
            lsn: Lsn(cursor.u64()?),
            chain,
        };
        let stable = Lsn(cursor.u64()?);
        // Earlier releases end here.
        let window = cursor.u64().unwrap_or(0);
        let sizes = (LOG_BYTES_MIN..=LOG_BYTES_MAX).contains(&capacity) && capacity.is_multiple_of(LOG_ALIGN);
        if !sizes || stable < head.lsn || stable > LSN_LAST || window > WINDOW_BYTES_MAX {
            return Err(LogFileError::Damaged);
        }
        Ok(LogSuperblock {
            journal,
            capacity,
            head,
            stable,
            window,
        })
    }
}
