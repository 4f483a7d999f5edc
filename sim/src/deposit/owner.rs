//! An owner: its page client, its memory, and the expected contents of its pages.

use std::collections::{BTreeMap, BTreeSet};

use netram_far_machine::deposit::{
    BlockMac, DirectorySettings, GatherTicket, Page, PageDirectory, PageSeal, RemotePageClient, SealedBlock,
};
use netram_proto::id::{DepositId, WriterId};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::crc32c;

use super::gather::{LieCertainty, PendingGather};
use super::kernel::{DepositKernel, LEASE};
use super::spill_disk::SpillDisk;

/// Bytes of a page in this world: owner, page number, version, content, and a checksum.
pub(super) const PAGE: usize = 36;
/// Tolerance of timers: a link that is gone for the lease less this may be one whose deposit is gone.
const SLACK: Nanos = Nanos::from_ms(500);

/// The deposit of an owner's life.
pub(super) fn deposit_of(life: u64) -> DepositId {
    DepositId(0xFA12 << 64 | u128::from(life))
}

/// Seals a page's content (0 for zeros) with a checksum instead of a key. Lenders in this world do not know
/// how to compute it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChecksumSeal {
    life: u64,
}

impl ChecksumSeal {
    fn sealed(self, page: Page, version: u64, content: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PAGE);
        bytes.extend_from_slice(&self.life.to_le_bytes());
        bytes.extend_from_slice(&u64::from(page.0).to_le_bytes());
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&content.to_le_bytes());
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        bytes
    }
}

impl PageSeal for ChecksumSeal {
    type Clear = u64;
    type Sealed = Vec<u8>;

    fn zeros() -> Box<u64> {
        Box::new(0)
    }

    fn seal(&mut self, page: Page, version: u64, content: &u64) -> Vec<u8> {
        self.sealed(page, version, *content)
    }

    fn open(&self, page: Page, version: u64, bytes: &[u8]) -> Option<Box<u64>> {
        let content = u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?);
        (self.sealed(page, version, content) == bytes).then(|| Box::new(content))
    }

    fn mac_blocks(&self, blocks: &[SealedBlock], marks: &mut Vec<BlockMac>) {
        marks.extend(blocks.iter().map(|block| {
            let of = self.sealed(block.page, block.version, block.number.into());
            crc32c(&[&of, &block.bytes[..]].concat()).to_le_bytes()
        }));
    }

    fn keep(&self, sealed: &[u8]) -> Vec<u8> {
        sealed.to_vec()
    }

    fn bytes(sealed: &Vec<u8>) -> &[u8] {
        sealed
    }
}

/// One owner's process.
pub(super) struct DepositOwner {
    pub(super) id: DepositId,
    pub(super) life: u64,
    pub(super) page_client: RemotePageClient<ChecksumSeal>,
    pub(super) conns: Vec<Option<usize>>,
    /// The owner's spill file.
    pub(super) disk: Option<SpillDisk>,
    /// Time at which the link to each lender was last up; meaningless while it is up.
    linked_until: Vec<Time>,
    /// Lenders that were away for nearly the lease; pages that they still have may be given up.
    away_too_long: Vec<bool>,
    /// Expected content of each page; 0 for zeros.
    expected: BTreeMap<Page, u64>,
    /// Pages in local memory.
    resident: BTreeSet<Page>,
    /// Pages that the program waits for, and since when.
    pub(super) waiting: BTreeMap<Page, Time>,
    /// Requests of blocks that the program waits for.
    pub(super) gathers: BTreeMap<GatherTicket, PendingGather>,
    /// Pages with delivered false blocks that must be detected when the page arrives.
    pub(super) undetected_lies: BTreeMap<Page, LieCertainty>,
}

impl DepositOwner {
    /// An owner without pages.
    pub(super) fn new(kernel: &DepositKernel, life: u64) -> DepositOwner {
        let profile = &kernel.profile;
        let mut directory = PageDirectory::new(&DirectorySettings {
            copies: profile.copies,
            slots_max: vec![profile.slots_max; profile.lenders],
            grow: profile.grow,
            spill_max: profile.spill,
        });
        directory.plant(kernel.planted());
        DepositOwner {
            id: deposit_of(life),
            life,
            page_client: RemotePageClient::new(directory, ChecksumSeal { life }),
            conns: vec![None; profile.lenders],
            disk: SpillDisk::new(kernel, life),
            linked_until: vec![kernel.now(); profile.lenders],
            away_too_long: vec![false; profile.lenders],
            expected: BTreeMap::new(),
            resident: BTreeSet::new(),
            waiting: BTreeMap::new(),
            gathers: BTreeMap::new(),
            undetected_lies: BTreeMap::new(),
        }
    }

    pub(super) fn writer(&self) -> WriterId {
        WriterId(self.life)
    }

    /// Records that a link to a lender is gone.
    pub(super) fn on_unlinked(&mut self, lender: usize, now: Time) {
        self.conns[lender] = None;
        if self.directory().is_linked(lender) {
            self.linked_until[lender] = now;
        }
        self.directory_mut().on_unlinked(lender, now);
    }

    /// Records whether a lender has been away for nearly the lease.
    pub(super) fn note_absence(&mut self, lender: usize, now: Time) {
        self.away_too_long[lender] |= self.is_away_too_long(lender, now);
    }

    /// Whether a lender was never away for so long that it may have given up pages of this owner.
    pub(super) fn has_stayed(&self, lender: usize, now: Time) -> bool {
        !self.is_away_too_long(lender, now) && !self.away_too_long[lender]
    }

    /// Whether the link to a lender has been gone for nearly the lease, whatever state the lender is in.
    fn is_away_too_long(&self, lender: usize, now: Time) -> bool {
        !self.directory().is_linked(lender) && now.since(self.linked_until[lender] - SLACK) >= LEASE
    }

    /// The page directory.
    pub(super) fn directory(&self) -> &PageDirectory {
        self.page_client.directory()
    }

    /// The page directory, to report links and time.
    pub(super) fn directory_mut(&mut self) -> &mut PageDirectory {
        self.page_client.links()
    }

    pub(super) fn expected_content(&self, page: Page) -> u64 {
        self.expected.get(&page).copied().unwrap_or(0)
    }

    /// The page's sealed bytes, as a lender keeps them.
    pub(super) fn sealed_page(&self, page: Page, version: u64) -> Vec<u8> {
        let life = self.life;
        ChecksumSeal { life }.sealed(page, version, self.expected_content(page))
    }

    /// Makes a page of zeros.
    pub(super) fn forget(&mut self, page: Page) {
        self.expected.remove(&page);
        self.resident.remove(&page);
        self.undetected_lies.remove(&page);
        self.page_client.forget(page);
    }

    /// Handles the report that a page is lost: it is one of zeros now.
    pub(super) fn lose(&mut self, page: Page) {
        self.waiting.remove(&page);
        self.undetected_lies.remove(&page);
        self.expected.remove(&page);
        self.page_client.forget(page);
    }

    /// Drops an unchanged page from local memory; its copies are still valid.
    pub(super) fn drop_unchanged(&mut self, page: Page) {
        self.resident.remove(&page);
    }

    /// Asks for some pages ahead.
    pub(super) fn prefetch(&mut self, pages: impl Iterator<Item = Page>) {
        let cold: Vec<Page> = pages.filter(|page| !self.resident.contains(page)).collect();
        self.page_client.prefetch(cold);
    }

    /// Puts a page that has come back into local memory.
    pub(super) fn receive(&mut self, page: Page) {
        self.resident.insert(page);
        self.waiting.remove(&page);
    }

    /// Changes a page and evicts it.
    pub(super) fn evict(&mut self, page: Page, content: u64) {
        self.expected.insert(page, content);
        self.resident.remove(&page);
        self.undetected_lies.remove(&page);
        self.gathers.values_mut().for_each(|asked| {
            if asked.has(page) {
                asked.renew(page);
            }
        });
        self.page_client.put(page, &content);
    }

    /// Whether the program waits for the page, or for blocks of it.
    pub(super) fn is_waited_for(&self, page: Page) -> bool {
        self.waiting.contains_key(&page) || self.gathers.values().any(|asked| asked.has(page))
    }

    /// Whether the page was evicted and is not in local memory.
    pub(super) fn is_remote(&self, page: Page) -> bool {
        !self.resident.contains(&page) && self.expected.contains_key(&page)
    }

    /// Pages that the program waits for, and that have arrived.
    pub(super) fn arrived(&self) -> Vec<Page> {
        let waiting = self.waiting.keys().copied();
        waiting
            .filter(|page| self.page_client.has_arrived(*page))
            .collect()
    }

    /// The next packet due to a lender, or to the spill file, which is the last.
    pub(super) fn next_packet(&mut self, lender: usize, now: Time) -> Option<Vec<u8>> {
        let mut outgoing = self.page_client.next_frame(lender, now)?;
        outgoing.header.sender = self.life;
        let body: Vec<&[u8]> = outgoing.parts::<ChecksumSeal>().collect();
        let body = body.concat();
        Some([&outgoing.header.encode(body.len())[..], &body].concat())
    }

    pub(super) fn pages(&self) -> Vec<Page> {
        self.expected.keys().copied().collect()
    }

    pub(super) fn is_resident(&self, page: Page) -> bool {
        self.resident.contains(&page)
    }

    pub(super) fn pending_pages(&self) -> usize {
        self.page_client.pending()
    }
}
