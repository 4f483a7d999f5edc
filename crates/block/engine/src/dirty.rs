//! The dirty map: blocks that the data lender must be sent because the journal no longer has their records.
//! Kept on disk only, since the map of a large volume is large.
//!
//! The file has two slots (`SlotPair`) with the header, then pages of 4096 bytes for 16,320 blocks each. A
//! page that was never written is a hole, and clean.
//!
//! ```text
//! header:  0  format u32 | flags u32      flag 1: every block is dirty; flag 2: some marks are of lost blocks
//!          8  volume (16)
//!         24  from u64 | to u64           every record of [from, to) has its blocks in the map
//!
//! page:    0  crc32c u32 | page u32       crc over the volume's id and all behind itself
//!          8  zeros (8)
//!         16  marked (2040)               bit n: block `16320 page + n`
//!       2056  sending (2040)
//! ```
//!
//! *Marked* are blocks whose records were trimmed; *sending* are those of the current resync. A block is
//! dirty if it is either. A resync begins by moving *marked* bits to *sending*, and ends by clearing
//! *sending*. Blocks marked during a resync stay marked, or are moved when that resync sends them too. A page
//! that fails its checksum, or that the disk cannot read, counts as all dirty; an unreadable header makes
//! every block dirty. A page that the disk lost as zeros counts as clean.
//!
//! A whole copy that has followed to `to` needs no *marked* block, so the marks are cleared. Marks of *lost*
//! blocks stay, because one of the two sides has no good bytes there. *Sending* bits stay too, because an
//! interrupted resync may have found such blocks.
//!
//! Marks are synced before the header counts them, and the header is stored before the journal is trimmed. If
//! that fails, the journal is trimmed all the same: `to` then lies behind the journal's head, and the map
//! does not count as complete.

use netram_proto::id::Lsn;
use netram_proto::journal::{SlotError, SlotPair};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::port::IoError;
use netram_proto::wire::Crc;

use crate::error::FileKind;
use crate::image::{SparseFile, magic};
use crate::superblock::{FORMAT, VolumeId};

const HEADER_BYTES: usize = 40;
const PAGES_OFFSET: u64 = SlotPair::bytes(SLOT_BYTES);
const PAGE: usize = 4096;
const PLANE: usize = 2040;
const MARKED: usize = 16;
const SENDING: usize = MARKED + PLANE;
/// Number of blocks of a page.
pub(crate) const PAGE_BLOCKS: u64 = PLANE as u64 * 8;

const _: () = assert!(SENDING + PLANE == PAGE);

type Page = [u8; PAGE];

/// Header: the range of the journal for which the map is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    volume: VolumeId,
    whole: bool,
    lost: bool,
    from: Lsn,
    to: Lsn,
}

/// The dirty map of one volume.
#[derive(Debug)]
pub(crate) struct DirtyMap<F> {
    file: F,
    slots: SlotPair,
    /// Whether a header could not be stored. The next one recreates both slots, so that nothing depends on
    /// what the disk has of it.
    torn: bool,
    header: Header,
    /// Number of pages that the file may have data in; all others are clean.
    pages: u64,
    /// Number of dirty blocks by the bits.
    count: u64,
    /// Whether there may be *marked* blocks.
    marks: bool,
    /// Blocks that [`DirtyMap::send`] was to move to *sending* when the disk refused. It may have moved them.
    unsent: Option<(u64, u64)>,
    /// Head of the journal when the current resync began.
    begun: Option<Lsn>,
    /// Whether lost blocks were marked since.
    lost_since: bool,
}

impl<F: SparseFile> DirtyMap<F> {
    /// Creates the map for a data lender that has no block yet (`whole`), or everything below `head`.
    pub(crate) fn create(file: F, volume: VolumeId, whole: bool, head: Lsn) -> Result<DirtyMap<F>, IoError> {
        let header = Header {
            volume,
            whole,
            lost: false,
            from: head,
            to: head,
        };
        file.extend(PAGES_OFFSET)?;
        let size = file.size()?;
        if size > PAGES_OFFSET {
            file.punch(PAGES_OFFSET, size - PAGES_OFFSET)?;
            file.sync()?;
        }
        let slots = SlotPair::create(&file, *magic(FileKind::Dirty), SLOT_BYTES, &header.encode())?;
        let mut map = DirtyMap::of(file, slots, header);
        map.measure()?;
        Ok(map)
    }

    /// Opens the volume's map. If the file is new, damaged, unreadable or of another volume, every block
    /// counts as dirty.
    pub(crate) fn open(file: F, volume: VolumeId, head: Lsn) -> Result<DirtyMap<F>, IoError> {
        let opened = match file.size()? {
            0 => None,
            _ => match SlotPair::open(&file, *magic(FileKind::Dirty), SLOT_BYTES) {
                Ok((slots, payload)) => Header::decode(&payload).map(|header| (slots, header)),
                Err(SlotError::Foreign | SlotError::Damaged | SlotError::Io(IoError::EIO)) => None,
                Err(SlotError::Io(error)) => return Err(error),
            },
        };
        let Some((slots, header)) = opened.filter(|(_, header)| header.volume == volume) else {
            return DirtyMap::create(file, volume, true, head);
        };
        let mut map = DirtyMap::of(file, slots, header);
        map.measure()?;
        map.recount()?;
        // What was read may exist only in the page cache, marked clean there by a failed sync.
        if map.store(map.header).is_err() {
            // The map must not be used as complete before it could be stored.
            map.header.whole = true;
        }
        Ok(map)
    }

    fn of(file: F, slots: SlotPair, header: Header) -> DirtyMap<F> {
        DirtyMap {
            file,
            slots,
            torn: false,
            header,
            pages: 0,
            count: 0,
            marks: true,
            unsent: None,
            begun: None,
            lost_since: false,
        }
    }

    fn measure(&mut self) -> Result<(), IoError> {
        let bytes = self.file.size()?.saturating_sub(PAGES_OFFSET);
        self.pages = bytes.div_ceil(PAGE as u64);
        Ok(())
    }

    fn recount(&mut self) -> Result<(), IoError> {
        self.count = 0;
        let mut number = 0;
        while let Some(next) = self.next_page(number)? {
            self.count += count(&self.read(next)?);
            number = next + 1;
        }
        Ok(())
    }

    /// First page from `number` that may have a bit set.
    fn next_page(&self, number: u64) -> Result<Option<u64>, IoError> {
        if number >= self.pages {
            return Ok(None);
        }
        let end = page_offset(self.pages);
        let data = match self.file.next_data(page_offset(number), end) {
            // Reading the page will decide how the error is handled.
            Err(IoError::EIO) => page_offset(number),
            data => data?,
        };
        let next = (data - PAGES_OFFSET) / PAGE as u64;
        Ok((next < self.pages).then_some(next))
    }

    fn read(&self, number: u64) -> Result<Page, IoError> {
        let mut page = [0; PAGE];
        if number >= self.pages {
            return Ok(page);
        }
        match self.file.read_at(page_offset(number), &mut page) {
            // A crash left the last page incomplete.
            Ok(()) | Err(IoError::EOF) => (),
            Err(IoError::EIO) => {
                page[MARKED..].fill(u8::MAX);
                return Ok(page);
            }
            Err(error) => return Err(error),
        }
        if page != [0; PAGE] && page[..8] != self.front(number, &page) {
            page[MARKED..].fill(u8::MAX);
        }
        Ok(page)
    }

    /// First eight bytes that a valid page must have.
    fn front(&self, number: u64, page: &Page) -> [u8; 8] {
        let mut front = [0; 8];
        front[4..].copy_from_slice(&(number as u32).to_le_bytes());
        let mut crc = Crc::new();
        crc.update(&self.header.volume.0.to_le_bytes());
        crc.update(&front[4..]);
        crc.update(&page[8..]);
        front[..4].copy_from_slice(&crc.finish().to_le_bytes());
        front
    }

    fn write(&mut self, number: u64, page: &mut Page) -> Result<(), IoError> {
        let front = self.front(number, page);
        page[..8].copy_from_slice(&front);
        self.file.extend(page_offset(number + 1))?;
        self.pages = self.pages.max(number + 1);
        self.file.write_at(page_offset(number), &page[..])
    }

    /// Marks runs of blocks; each run is its first block and the one behind its last. Durable after
    /// [`DirtyMap::cover`].
    pub(crate) fn mark(&mut self, runs: &mut [(u64, u64)]) -> Result<(), IoError> {
        runs.sort_unstable();
        self.marks |= !runs.is_empty();
        let mut open: Option<(u64, Page)> = None;
        for (first, behind) in runs.iter().copied() {
            let mut block = first;
            while block < behind {
                let number = block / PAGE_BLOCKS;
                let end = behind.min((number + 1) * PAGE_BLOCKS);
                if open.as_ref().is_none_or(|(other, _)| *other != number) {
                    self.put_back(open.take())?;
                    let page = self.read(number)?;
                    self.count = self.count.saturating_sub(count(&page));
                    open = Some((number, page));
                }
                if let Some((_, page)) = &mut open {
                    (block..end).for_each(|block| set(page, MARKED, block % PAGE_BLOCKS));
                }
                block = end;
            }
        }
        self.put_back(open)
    }

    /// Writes a page whose bits were subtracted from the count.
    fn put_back(&mut self, open: Option<(u64, Page)>) -> Result<(), IoError> {
        let Some((number, mut page)) = open else {
            return Ok(());
        };
        self.count += count(&page);
        self.write(number, &mut page)
    }

    /// Marks runs of blocks that one side lost. Durable on return.
    pub(crate) fn mark_lost(&mut self, runs: &mut [(u64, u64)]) -> Result<(), IoError> {
        if runs.is_empty() {
            return Ok(());
        }
        self.lost_since = true;
        if !self.header.lost {
            let lost = true;
            self.store(Header { lost, ..self.header })?;
        }
        self.mark(runs)?;
        self.file.sync()
    }

    /// A whole copy has everything below `flushed`, so blocks marked only because of their records are clean.
    pub(crate) fn on_copy_flushed(&mut self, flushed: Lsn) -> Result<(), IoError> {
        let Header { whole, lost, to, .. } = self.header;
        if !self.marks || whole || lost || flushed < to {
            return Ok(());
        }
        // Stored first, so that an older copy does not seem to need only the remaining blocks.
        self.complete_only_from(to)?;
        self.each_page(|page| {
            let had = page[MARKED..SENDING] != [0; PLANE];
            page[MARKED..SENDING].fill(0);
            had
        })?;
        self.marks = false;
        self.file.sync()
    }

    /// Stores durably that blocks of records below `from` may not be in the map.
    fn complete_only_from(&mut self, from: Lsn) -> Result<(), IoError> {
        match self.header.from < from {
            true => self.store(Header { from, ..self.header }),
            false => Ok(()),
        }
    }

    /// The marks include every record from `head`, where the journal begins, up to `to`. Durable on return.
    pub(crate) fn cover(&mut self, head: Lsn, to: Lsn) -> Result<(), IoError> {
        self.file.sync()?;
        let from = self.complete_from(head);
        self.store(Header {
            from,
            to,
            ..self.header
        })
    }

    /// LSN from which on every record below the journal's head `head` has its blocks in the map.
    pub(crate) fn complete_from(&self, head: Lsn) -> Lsn {
        match self.header.to >= head {
            true => self.header.from.min(head),
            // Records trimmed in between are not in the map.
            false => head,
        }
    }

    fn store(&mut self, header: Header) -> Result<(), IoError> {
        let payload = header.encode();
        let stored = match self.torn {
            false => self.slots.store(&self.file, &payload).map_err(IoError::from),
            true => SlotPair::create(&self.file, *magic(FileKind::Dirty), SLOT_BYTES, &payload)
                .map(|slots| self.slots = slots),
        };
        self.torn = stored.is_err();
        stored?;
        self.header = header;
        Ok(())
    }

    /// Begins a resync of the dirty blocks, or of every block: the map is complete from `head` on.
    pub(crate) fn begin(&mut self, whole: bool, head: Lsn) -> Result<(), IoError> {
        if whole {
            let (from, to) = (head, head);
            self.store(Header {
                whole,
                from,
                to,
                ..self.header
            })?;
        }
        (self.begun, self.lost_since, self.unsent) = (Some(head), false, None);
        self.each_page(|page| {
            let marked: [u8; PLANE] = std::array::from_fn(|at| page[MARKED + at]);
            let moved = marked != [0; PLANE];
            for (at, bits) in marked.into_iter().enumerate() {
                page[SENDING + at] |= bits;
            }
            page[MARKED..SENDING].fill(0);
            moved
        })
    }

    /// The current resync continues with a copy whose journal now begins at `head`. Returns the number of
    /// blocks marked and not yet sent. `None`: the map is incomplete for a copy that has everything below
    /// `flushed`.
    pub(crate) fn go_on(&mut self, flushed: Lsn, head: Lsn) -> Result<Option<u64>, IoError> {
        if self.begun.is_none() || self.complete_from(head) > flushed {
            return Ok(None);
        }
        self.begun = Some(head);
        let (mut number, mut marked) = (0, 0);
        while let Some(next) = self.next_page(number)? {
            let page = self.read(next)?;
            let ones = page[MARKED..SENDING].iter().map(|byte| byte.count_ones());
            marked += u64::from(ones.sum::<u32>());
            number = next + 1;
        }
        Ok(Some(marked))
    }

    /// The current resync is about to send these blocks: marks set from here on were not sent.
    pub(crate) fn send(&mut self, first: u64, behind: u64) -> Result<(), IoError> {
        let (earlier, later) = self.unsent.unwrap_or((first, behind));
        // A refused write may have been done, and then nothing but this says that they are still to be sent.
        self.unsent = Some((first.min(earlier), behind.max(later)));
        let mut block = first;
        while block < behind {
            let number = block / PAGE_BLOCKS;
            let end = behind.min((number + 1) * PAGE_BLOCKS);
            let mut page = self.read(number)?;
            for at in (block..end).map(|block| block % PAGE_BLOCKS) {
                set(&mut page, SENDING, at);
                clear(&mut page, MARKED, at);
            }
            self.write(number, &mut page)?;
            block = end;
        }
        let (earlier, later) = match first <= earlier {
            true => (earlier.max(behind), later),
            false => (earlier, later.min(first)),
        };
        self.unsent = (earlier < later).then_some((earlier, later));
        Ok(())
    }

    /// The resync has ended: the data lender has all blocks that it began with. Durable on return.
    pub(crate) fn finish(&mut self) -> Result<(), IoError> {
        let Some(begun) = self.begun else { return Ok(()) };
        // A copy that was whole before the resync began needs the blocks whose bits are now cleared.
        self.complete_only_from(begun)?;
        self.each_page(|page| {
            let had = page[SENDING..] != [0; PLANE];
            page[SENDING..].fill(0);
            had
        })?;
        self.file.sync()?;
        self.begun = None;
        let lost = self.header.lost && self.lost_since;
        let header = Header {
            whole: false,
            lost,
            ..self.header
        };
        match header == self.header {
            true => Ok(()),
            false => self.store(header),
        }
    }

    /// Calls `change` for every page that may have a bit, and writes the page if it returns `true`.
    fn each_page(&mut self, mut change: impl FnMut(&mut Page) -> bool) -> Result<(), IoError> {
        let mut number = 0;
        while let Some(next) = self.next_page(number)? {
            let mut page = self.read(next)?;
            self.count = self.count.saturating_sub(count(&page));
            let changed = change(&mut page);
            self.count += count(&page);
            if changed {
                self.write(next, &mut page)?;
            }
            number = next + 1;
        }
        Ok(())
    }

    /// Next run of blocks of the current resync, from `from` on, of a volume of `blocks`.
    pub(crate) fn next_sending(&self, from: u64, blocks: u64) -> Result<Option<(u64, u64)>, IoError> {
        match self.header.whole {
            true => Ok((from < blocks).then_some((from, blocks))),
            false => self.next_run(SENDING, from, blocks),
        }
    }

    /// Next run of blocks that were marked since they were last sent.
    pub(crate) fn next_marked(&self, from: u64, blocks: u64) -> Result<Option<(u64, u64)>, IoError> {
        let marked = self.next_run(MARKED, from, blocks)?;
        let unsent = self.unsent.filter(|(_, behind)| from < *behind);
        let unsent = unsent.map(|(first, behind)| (first.max(from), behind));
        Ok(match (marked, unsent) {
            (Some(marked), Some(unsent)) => Some(marked.min(unsent)),
            (marked, unsent) => marked.or(unsent),
        })
    }

    fn next_run(&self, plane: usize, from: u64, blocks: u64) -> Result<Option<(u64, u64)>, IoError> {
        let mut block = from;
        while let Some(number) = self.next_page(block / PAGE_BLOCKS)? {
            let start = number * PAGE_BLOCKS;
            let page = self.read(number)?;
            let has = |at: &u64| is_set(&page, plane, *at);
            let first = (block.max(start) - start..PAGE_BLOCKS).find(has);
            let Some(first) = first.filter(|first| start + first < blocks) else {
                block = start + PAGE_BLOCKS;
                continue;
            };
            let behind = (first..PAGE_BLOCKS).find(|at| !has(at));
            let behind = start + behind.unwrap_or(PAGE_BLOCKS);
            return Ok(Some((start + first, behind.min(blocks))));
        }
        Ok(None)
    }

    /// Whether the data lender's block may be older than the journal's head.
    pub(crate) fn is_dirty(&self, block: u64) -> Result<bool, IoError> {
        if self.header.whole {
            return Ok(true);
        }
        let (page, at) = (self.read(block / PAGE_BLOCKS)?, block % PAGE_BLOCKS);
        Ok(is_set(&page, MARKED, at) || is_set(&page, SENDING, at))
    }

    /// Number of dirty blocks that a whole copy, which has everything below `flushed`, does not get by
    /// records.
    pub(crate) fn left(&self, flushed: Lsn, blocks: u64) -> u64 {
        match flushed < self.header.to {
            true => 0,
            false => self.count(blocks),
        }
    }

    /// Whether every block is dirty.
    pub(crate) fn is_whole(&self) -> bool {
        self.header.whole
    }

    /// Number of dirty blocks of a volume of `blocks`.
    pub(crate) fn count(&self, blocks: u64) -> u64 {
        match self.header.whole {
            true => blocks,
            // A page that counts as all dirty may cover more blocks than the volume has.
            false => self.count.min(blocks),
        }
    }
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut payload = [0; HEADER_BYTES];
        payload[0..4].copy_from_slice(&FORMAT.to_le_bytes());
        payload[4..8].copy_from_slice(&(u32::from(self.whole) | u32::from(self.lost) << 1).to_le_bytes());
        payload[8..24].copy_from_slice(&self.volume.0.to_le_bytes());
        payload[24..32].copy_from_slice(&self.from.0.to_le_bytes());
        payload[32..40].copy_from_slice(&self.to.0.to_le_bytes());
        payload
    }

    /// `None`: not of this version.
    fn decode(payload: &[u8]) -> Option<Header> {
        let payload: &[u8; HEADER_BYTES] = payload.try_into().ok()?;
        let half = |at: usize| {
            payload[at..]
                .first_chunk()
                .map(|bytes| u32::from_le_bytes(*bytes))
        };
        let word = |at: usize| {
            payload[at..]
                .first_chunk()
                .map(|bytes| u64::from_le_bytes(*bytes))
        };
        let id = payload[8..].first_chunk()?;
        if half(0) != Some(FORMAT) {
            return None;
        }
        let flags = half(4)?;
        Some(Header {
            volume: VolumeId(u128::from_le_bytes(*id)),
            whole: flags & 1 != 0,
            lost: flags & 2 != 0,
            from: Lsn(word(24)?),
            to: Lsn(word(32)?),
        })
    }
}

fn page_offset(number: u64) -> u64 {
    PAGES_OFFSET + number * PAGE as u64
}

fn set(page: &mut Page, plane: usize, at: u64) {
    page[plane + (at / 8) as usize] |= 1 << (at % 8);
}

fn clear(page: &mut Page, plane: usize, at: u64) {
    page[plane + (at / 8) as usize] &= !(1 << (at % 8));
}

fn is_set(page: &Page, plane: usize, at: u64) -> bool {
    page[plane + (at / 8) as usize] & 1 << (at % 8) != 0
}

/// Number of dirty blocks of the page.
fn count(page: &Page) -> u64 {
    let either = |at: usize| (page[MARKED + at] | page[SENDING + at]).count_ones();
    (0..PLANE).map(either).sum::<u32>().into()
}
