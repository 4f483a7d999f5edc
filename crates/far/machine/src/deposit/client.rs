//! An owner's client for its remote pages: the page directory, with the bytes that are pending or have
//! arrived, and the waiters of each page.
//!
//! A [`RemotePageClient`] is a [`PageDirectory`] with these and with the sealing of pages: all of an owner
//! except sockets, threads and the clock. Its methods come in four kinds:
//!
//! - commands: [`put`](RemotePageClient::put), [`get`](RemotePageClient::get),
//!   [`gather`](RemotePageClient::gather), [`prefetch`](RemotePageClient::prefetch),
//!   [`forget`](RemotePageClient::forget);
//! - events: [`handle_frame`](RemotePageClient::handle_frame), and those of links and time through
//!   [`links`](RemotePageClient::links); [`settle`](RemotePageClient::settle) follows either;
//! - what to send: [`next_frame`](RemotePageClient::next_frame);
//! - results: [`take`](RemotePageClient::take), [`take_words`](RemotePageClient::take_words).

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::unverified::UnverifiedBlocks;
use super::{
    BlockMac, BlockRequest, DepositCommand, DirectoryEvent, DirectoryLookup, FramePages, GatherResult,
    GatherTicket, GatheredBlocks, LenderSet, MisconductError, Page, PageDirectory, SealedBlock, page_header,
};
use crate::limit::{PAGE_HEADER_BYTES, PREFETCHED_PAGES_MAX};
use netram_proto::id::{Incarnation, Lsn};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind, RefusalReason};

/// Seals pages before they leave, and verifies them when they come back.
pub trait PageSeal {
    /// A page in clear text.
    type Clear: Clone;
    /// A page as a lender stores it. Cloned for each frame that carries it.
    type Sealed: Clone;

    /// A page that was never put: zeros.
    fn zeros() -> Box<Self::Clear>;

    /// Seals a page. `version` is new, since it serves as the nonce.
    fn seal(&mut self, page: Page, version: u64, clear: &Self::Clear) -> Self::Sealed;

    /// Opens a sealed page. `None`: the bytes are not what was sealed.
    fn open(&self, page: Page, version: u64, sealed: &[u8]) -> Option<Box<Self::Clear>>;

    /// Appends the MACs of blocks of sealed pages. Takes many blocks at once, which ciphers do faster.
    fn mac_blocks(&self, blocks: &[SealedBlock], marks: &mut Vec<BlockMac>);

    /// Keeps sealed bytes that [`open`](Self::open) has verified.
    fn keep(&self, sealed: &[u8]) -> Self::Sealed;

    /// The bytes that a lender gets.
    fn bytes(sealed: &Self::Sealed) -> &[u8];
}

/// Result of looking up a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageLookup<C> {
    /// The page was never put, or was forgotten.
    Zeros,
    /// The page is pending here. `None`: its sealed bytes do not verify, so this machine's memory is faulty.
    Pending(Option<Box<C>>),
    /// Every copy of the page is gone. These lenders had one.
    Lost(LenderSet),
    /// The page is requested or has arrived; [`RemotePageClient::take`] returns it.
    Waits,
}

/// A frame to send: its header, then for each page a page header and, in `Put`, its bytes.
#[derive(Clone, Debug)]
pub struct DepositFrame<T> {
    /// Complete except for `who`.
    pub header: FrameHeader,
    /// Page headers, one per page.
    pub heads: Vec<[u8; PAGE_HEADER_BYTES]>,
    /// Sealed bytes, one per page in `Put`, otherwise empty.
    pub sealed: Vec<T>,
    /// Whole body of a `Gather`, otherwise empty.
    pub runs: Vec<u8>,
}

/// Effects of a frame from a lender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameEffects {
    /// The session has begun.
    pub linked: bool,
    /// The lender has no more room.
    pub full: bool,
    /// Number of arrived pages that a thread waits for.
    pub fetched: usize,
    /// Number of pages of which requested blocks arrived.
    pub gathered: usize,
    /// Number of gather requests that are complete.
    pub answered: usize,
    /// Pages have become pending in order to get another copy.
    pub repairing: usize,
    /// Pages that were not what was sent: these copies are gone.
    pub forged: Vec<Page>,
    /// Pages that arrived and disprove blocks which a lender gave of them before.
    pub disproved: Vec<Page>,
}

/// Why a lender's link must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LenderViolation {
    /// The lender sent an answer to nothing that it was asked.
    Misconduct,
    /// Two configured lenders are the same process.
    Twin,
    /// The lender refused. `None`: for a reason unknown to this version.
    Refused(Option<RefusalReason>),
}

impl From<MisconductError> for LenderViolation {
    fn from(_: MisconductError) -> LenderViolation {
        LenderViolation::Misconduct
    }
}

/// An owner's client for its remote pages.
#[derive(Clone, Debug)]
pub struct RemotePageClient<S: PageSeal> {
    directory: PageDirectory,
    seals: S,
    /// Sealed pages whose bytes must be kept, with their versions.
    pending: BTreeMap<Page, (u64, S::Sealed)>,
    /// Number of waiters of each page.
    waiters: BTreeMap<Page, usize>,
    /// Pages requested by prefetch.
    ahead: BTreeSet<Page>,
    /// Arrived pages, until the last waiter has taken them.
    arrived: BTreeMap<Page, Result<Box<S::Clear>, LenderSet>>,
    unverified: UnverifiedBlocks,
    /// Blocks of the current frame without a MAC yet, and room for their MACs.
    without_mac: (Vec<SealedBlock>, Vec<BlockMac>),
}

impl<S: PageSeal> RemotePageClient<S> {
    /// A client without pages.
    pub fn new(depot: PageDirectory, seals: S) -> RemotePageClient<S> {
        RemotePageClient {
            directory: depot,
            seals,
            pending: BTreeMap::new(),
            waiters: BTreeMap::new(),
            ahead: BTreeSet::new(),
            arrived: BTreeMap::new(),
            unverified: UnverifiedBlocks::default(),
            without_mac: (Vec::new(), Vec::new()),
        }
    }

    /// The page directory.
    pub fn directory(&self) -> &PageDirectory {
        &self.directory
    }

    /// The page directory, for events of links and time: `next_session`, `on_unlinked`, `tick`.
    pub fn links(&mut self) -> &mut PageDirectory {
        &mut self.directory
    }

    /// Number of pages whose bytes must be kept.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Version of a page that is pending or has a copy. Such a page need not be sent again unless it has
    /// changed.
    pub fn current_version(&self, page: Page) -> Option<u64> {
        let stands = self.pending.contains_key(&page) || self.directory.places(page).next().is_some();
        self.directory.version(page).filter(|_| stands)
    }

    /// The sealer.
    pub fn seals(&self) -> &S {
        &self.seals
    }

    /// The sealer, to be told of pages that were sealed elsewhere.
    pub fn seals_mut(&mut self) -> &mut S {
        &mut self.seals
    }

    /// Puts a page. Its waiters get this content.
    pub fn put(&mut self, page: Page, clear: &S::Clear) {
        let version = self.reserve();
        let sealed = self.seals.seal(page, version, clear);
        self.put_sealed(page, version, sealed, clear);
    }

    /// Reserves a version for a page that is sealed without the client's lock. Followed by
    /// [`put_sealed`](Self::put_sealed), unless the page need not leave.
    pub fn reserve(&mut self) -> u64 {
        self.directory.reserve()
    }

    /// As [`put`](Self::put), for a page sealed already under a reserved version.
    pub fn put_sealed(&mut self, page: Page, version: u64, sealed: S::Sealed, clear: &S::Clear) {
        self.directory.put_as(page, version);
        self.pending.insert(page, (version, sealed));
        self.replace(page, || Box::new(clear.clone()));
    }

    /// Looks up a page. [`PageLookup::Waits`] must be followed by one [`take`](Self::take).
    pub fn get(&mut self, page: Page) -> PageLookup<S::Clear> {
        self.ahead.remove(&page);
        if !self.arrived.contains_key(&page) {
            match self.directory.get(page) {
                DirectoryLookup::Never => return PageLookup::Zeros,
                DirectoryLookup::Pending => {
                    let aside = self.pending.get(&page);
                    let open = |(version, sealed): &(u64, S::Sealed)| {
                        self.seals.open(page, *version, S::bytes(sealed))
                    };
                    return PageLookup::Pending(aside.and_then(open));
                }
                DirectoryLookup::Lost(lenders) => return PageLookup::Lost(lenders),
                DirectoryLookup::Requested => (),
            }
        }
        *self.waiters.entry(page).or_default() += 1;
        PageLookup::Waits
    }

    /// Whether [`take`](Self::take) has a result.
    pub fn has_arrived(&self, page: Page) -> bool {
        self.arrived.contains_key(&page)
    }

    /// Takes the result for one waiter, or gives up waiting. The last waiter removes it.
    pub fn take(&mut self, page: Page) -> Option<Result<Box<S::Clear>, LenderSet>> {
        match self.waiters.get_mut(&page) {
            Some(count) if *count > 1 => {
                *count -= 1;
                self.arrived.get(&page).cloned()
            }
            _ => {
                self.waiters.remove(&page);
                self.arrived.remove(&page)
            }
        }
    }

    /// Requests blocks of pages that stay remote. Must be followed by one [`take_words`](Self::take_words).
    pub fn gather(&mut self, wanted: BlockRequest) -> GatherTicket {
        self.directory
            .gather(wanted, |page| self.arrived.contains_key(&page))
    }

    /// Whether gathered blocks can still be remembered until they are verified. If not, fetch whole pages.
    pub fn may_gather(&self) -> bool {
        self.unverified.has_room()
    }

    /// Whether [`take_words`](Self::take_words) has a result.
    pub fn has_words(&self, ticket: GatherTicket) -> bool {
        self.directory.has_gathered(ticket)
    }

    /// Takes the result of a gather, once, when every page has an outcome.
    pub fn take_words(&mut self, ticket: GatherTicket) -> Option<GatherResult> {
        self.directory.take_gathered(ticket)
    }

    /// Requests pages that will be wanted soon. They are kept until they are, at most
    /// [`PREFETCHED_PAGES_MAX`] in all; further ones are not requested.
    pub fn prefetch(&mut self, pages: impl IntoIterator<Item = Page>) {
        for page in pages {
            if self.ahead.len() >= PREFETCHED_PAGES_MAX {
                return;
            }
            let known = self.arrived.contains_key(&page) || self.waiters.contains_key(&page);
            if !known && self.directory.get(page) == DirectoryLookup::Requested {
                self.ahead.insert(page);
            }
        }
    }

    /// Forgets a page: it is zeros from now on, also for its waiters.
    pub fn forget(&mut self, page: Page) {
        self.directory.forget(page);
        self.pending.remove(&page);
        self.replace(page, S::zeros);
    }

    fn replace(&mut self, page: Page, clear: impl FnOnce() -> Box<S::Clear>) {
        self.unverified.drop(page);
        self.ahead.remove(&page);
        if self.waiters.contains_key(&page) {
            self.arrived.insert(page, Ok(clear()));
        } else {
            self.arrived.remove(&page);
        }
    }

    /// Handles a frame from a lender.
    ///
    /// # Errors
    ///
    /// [`LenderViolation`]: close the lender's link and call [`PageDirectory::on_unlinked`].
    pub fn handle_frame(
        &mut self,
        lender: usize,
        frame: &Frame<'_>,
        now: Time,
    ) -> Result<FrameEffects, LenderViolation> {
        self.directory.look(now);
        let header = &frame.header;
        let slots = |lsn: Lsn| u32::try_from(lsn.0).map_err(|_| LenderViolation::Misconduct);
        let mut heard = FrameEffects::default();
        match header.kind {
            FrameKind::DepositAck if self.directory.is_linked(lender) => {
                self.directory.on_resized(lender, slots(header.lsn)?)?;
            }
            FrameKind::DepositAck => {
                let lease = Nanos::from_ms(u64::from(header.mark) * 1000);
                let life = Incarnation(header.stable.0);
                let linked = self.directory.on_linked(lender, life, slots(header.lsn)?, lease);
                linked.map_err(|MisconductError| LenderViolation::Twin)?;
                heard.linked = true;
            }
            FrameKind::PutAck => self.directory.on_stashed(lender, header.mark)?,
            FrameKind::GetReply => {
                let cut = FramePages::parse(frame.body).map_err(|_| LenderViolation::Misconduct)?;
                self.on_got(lender, header.mark, &cut, &mut heard)?;
            }
            FrameKind::GatherReply => self.on_gathered(lender, header.mark, frame.body, &mut heard)?,
            FrameKind::Pong => (),
            FrameKind::Withdraw if header.flags & Flag::PARTIAL != 0 => {
                self.directory.on_asked_back(lender, slots(header.lsn)?);
            }
            FrameKind::Withdraw => self.directory.on_withdraw(lender),
            FrameKind::Refuse => match RefusalReason::from_byte(header.flags) {
                Some(RefusalReason::NoRoom) => {
                    self.directory.on_no_room(lender, slots(header.stable)?, now)?;
                    heard.full = true;
                }
                refusal => return Err(LenderViolation::Refused(refusal)),
            },
            _ => return Err(LenderViolation::Misconduct),
        }
        Ok(heard)
    }

    fn on_gathered(
        &mut self,
        lender: usize,
        number: u32,
        body: &[u8],
        heard: &mut FrameEffects,
    ) -> Result<(), MisconductError> {
        let (blocks, marks) = &mut self.without_mac;
        blocks.clear();
        heard.answered = self.directory.on_gathered(lender, number, body, |given| {
            heard.gathered += 1;
            blocks.extend(sealed_blocks(given));
        })?;
        marks.clear();
        self.seals.mac_blocks(blocks, marks);
        self.unverified.add_all(blocks, marks);
        Ok(())
    }

    /// Whether the page contains the blocks that were given of it before.
    fn proves(&mut self, page: Page, version: u64, sealed: &[u8]) -> bool {
        let (blocks, marks) = &mut self.without_mac;
        blocks.clear();
        let (all, _) = sealed.as_chunks();
        for (number, _) in self.unverified.macs(page) {
            let Some(bytes) = all.get(usize::from(number)) else {
                return false;
            };
            blocks.push(SealedBlock {
                page,
                version,
                number,
                bytes: *bytes,
            });
        }
        marks.clear();
        self.seals.mac_blocks(blocks, marks);
        let given = self.unverified.macs(page).map(|(_, mark)| mark);
        given.eq(marks.iter().copied())
    }

    fn on_got(
        &mut self,
        lender: usize,
        number: u32,
        cut: &FramePages<'_>,
        heard: &mut FrameEffects,
    ) -> Result<(), MisconductError> {
        for due in self.directory.on_got(lender, number, cut)? {
            let (page, version) = (due.page, due.version);
            let sealed = cut.pages()[due.index].bytes;
            let Some(clear) = self.seals.open(page, version, sealed) else {
                self.directory.damaged(lender, page, version);
                heard.forged.push(page);
                continue;
            };
            if !self.proves(page, version, sealed) {
                heard.disproved.push(page);
            }
            self.unverified.drop(page);
            let taken = self.directory.take(lender, page, version);
            if taken.pending {
                self.pending.insert(page, (version, self.seals.keep(sealed)));
                heard.repairing += 1;
            }
            if taken.wanted && (self.waiters.contains_key(&page) || self.ahead.contains(&page)) {
                self.arrived.insert(page, Ok(clear));
                heard.fetched += 1;
            }
        }
        Ok(())
    }

    /// Drops pending bytes that are no longer needed, and tells waiters of lost pages. `told` is called for
    /// each event.
    pub fn settle(&mut self, mut told: impl FnMut(&DirectoryEvent)) {
        while let Some(news) = self.directory.next_event() {
            match news {
                DirectoryEvent::Stashed(page, version, _) => {
                    if self.pending.get(&page).is_some_and(|aside| aside.0 == version) {
                        self.pending.remove(&page);
                    }
                }
                DirectoryEvent::Lost(page, lenders) => {
                    self.ahead.remove(&page);
                    if self.waiters.contains_key(&page) {
                        // If the page was put anew meanwhile, its waiters get that.
                        self.arrived.entry(page).or_insert(Err(lenders));
                    }
                }
                DirectoryEvent::Gathered(_) => (),
            }
            told(&news);
        }
    }

    /// The next frame for a lender. `None`: there is none, or enough is in flight.
    pub fn next_frame(&mut self, lender: usize, now: Time) -> Option<DepositFrame<S::Sealed>> {
        let send = self.directory.poll(lender, now)?;
        let mut outgoing = DepositFrame {
            header: FrameHeader::new(FrameKind::Resize),
            heads: Vec::new(),
            sealed: Vec::new(),
            runs: Vec::new(),
        };
        let header = &mut outgoing.header;
        header.epoch = self.directory.session(lender);
        match send {
            DepositCommand::Resize(slots) => header.lsn = Lsn(slots.into()),
            DepositCommand::Get(number, items) => {
                (header.kind, header.mark) = (FrameKind::Get, number);
                let heads = items.iter().map(|item| page_header(item.slot, item.version, 0));
                outgoing.heads.extend(heads);
            }
            DepositCommand::Gather(number, body) => {
                (header.kind, header.mark) = (FrameKind::Gather, number);
                outgoing.runs = body;
            }
            DepositCommand::Put(number, items) => {
                (header.kind, header.mark) = (FrameKind::Put, number);
                for item in items {
                    let Some((version, sealed)) = self.pending.get(&item.page) else {
                        panic!("the bytes of {:?} are to be sent, but were dropped", item.page)
                    };
                    assert_eq!(*version, item.version, "the newest version is pending");
                    let bytes = S::bytes(sealed).len();
                    outgoing.heads.push(page_header(item.slot, item.version, bytes));
                    outgoing.sealed.push(sealed.clone());
                }
            }
        }
        Some(outgoing)
    }
}

/// The blocks that were given, one by one.
fn sealed_blocks(given: GatheredBlocks<'_>) -> impl Iterator<Item = SealedBlock> {
    let (bytes, _) = given.bytes.as_chunks();
    let (page, version) = (given.page, given.version);
    { given.numbers.iter().zip(bytes) }.map(move |(number, bytes)| SealedBlock {
        page,
        version,
        number: *number,
        bytes: *bytes,
    })
}

impl<T> DepositFrame<T> {
    /// The parts of the body, in order.
    pub fn parts<S: PageSeal<Sealed = T>>(&self) -> impl Iterator<Item = &[u8]> {
        let sealed = |index: usize| self.sealed.get(index).map_or(&[][..], S::bytes);
        let heads = self.heads.iter().enumerate();
        let pages = heads.flat_map(move |(index, head)| [&head[..], sealed(index)]);
        pages.chain((!self.runs.is_empty()).then_some(&self.runs[..]))
    }
}
