//! What an owner has here of its pages: bytes that must not go yet, pages that have come and were not taken,
//! and who waits for which.
//!
//! A [`Shelf`] is a [`Depot`] with these, and with the way to seal and open a page: all of an owner but
//! sockets, threads and the clock. Commands: [`put`](Shelf::put), [`get`](Shelf::get),
//! [`gather`](Shelf::gather), [`prefetch`](Shelf::prefetch), [`forget`](Shelf::forget). What happened:
//! [`hear`](Shelf::hear), and what [`links`](Shelf::links) offers of links and time; after either,
//! [`settle`](Shelf::settle). What to do: [`next_frame`](Shelf::next_frame). What has come is given out by
//! [`take`](Shelf::take).

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

/// How pages are sealed before they leave, and proven when they come back.
pub trait PageSeal {
    /// A page in the clear.
    type Clear: Clone;
    /// A page as it rests at a lender. Cloned for each frame that carries it.
    type Sealed: Clone;

    /// A page that was never put.
    fn zeros() -> Box<Self::Clear>;

    /// Seals what leaves. The version is new.
    fn seal(&mut self, page: Page, version: u64, clear: &Self::Clear) -> Self::Sealed;

    /// What was sealed, if this is it. `None`: it is something else.
    fn open(&self, page: Page, version: u64, sealed: &[u8]) -> Option<Box<Self::Clear>>;

    /// Appends the marks of blocks of sealed pages, by which they are compared later. Of many at once, for
    /// ciphers are faster so.
    fn mac_blocks(&self, blocks: &[SealedBlock], marks: &mut Vec<BlockMac>);

    /// Keeps bytes that [`open`](Self::open) has opened.
    fn keep(&self, sealed: &[u8]) -> Self::Sealed;

    /// The bytes as a lender gets them.
    fn bytes(sealed: &Self::Sealed) -> &[u8];
}

/// Where a page was found that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PageLookup<C> {
    /// It was never put, or has been forgotten.
    Zeros,
    /// It has not left yet. `None`: its bytes are not what was put, so this machine's memory is at fault.
    Pending(Option<Box<C>>),
    /// Every place that it had is gone. These lenders had it.
    Lost(LenderSet),
    /// It will come, or has: [`Shelf::take`] gives it.
    Waits,
}

/// A frame to be sent: its header, and behind that for each page a head and its bytes, if it carries them.
#[derive(Clone, Debug)]
pub struct DepositFrame<T> {
    /// Complete but for `who`.
    pub header: FrameHeader,
    /// One a page.
    pub heads: Vec<[u8; PAGE_HEADER_BYTES]>,
    /// One a page in `Put`, else none.
    pub sealed: Vec<T>,
    /// In `Gather`, all of the body.
    pub runs: Vec<u8>,
}

/// What a frame of a lender's has brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrameEffects {
    /// A session stands.
    pub linked: bool,
    /// The lender has no more room.
    pub full: bool,
    /// Pages that somebody wants have come.
    pub fetched: usize,
    /// Blocks that somebody wants have come, of so many pages.
    pub gathered: usize,
    /// Requests of which nothing is missing any more.
    pub answered: usize,
    /// Pages are aside in order to get another place.
    pub repairing: usize,
    /// Pages that were not what had left: these places are gone.
    pub forged: Vec<Page>,
    /// Pages that have come home, and blocks of which were given before as what they are not.
    pub disproved: Vec<Page>,
}

/// Why a lender's link is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LenderViolation {
    /// It sent what answers nothing that it was asked.
    Misconduct,
    /// It is another one of the lenders, by another name.
    Twin,
    /// It refused; `None`: for a reason that is not known here.
    Refused(Option<RefusalReason>),
}

impl From<MisconductError> for LenderViolation {
    fn from(_: MisconductError) -> LenderViolation {
        LenderViolation::Misconduct
    }
}

/// An owner's pages.
#[derive(Clone, Debug)]
pub struct RemotePageClient<S: PageSeal> {
    directory: PageDirectory,
    seals: S,
    /// Sealed pages that must not go yet.
    pending: BTreeMap<Page, (u64, S::Sealed)>,
    /// How many wait for each page.
    waiters: BTreeMap<Page, usize>,
    /// Pages that are to come unasked.
    ahead: BTreeSet<Page>,
    /// What has come, until whoever waits has taken it.
    arrived: BTreeMap<Page, Result<Box<S::Clear>, LenderSet>>,
    unverified: UnverifiedBlocks,
    /// Blocks that have come in this frame and are not marked yet, and room for their marks.
    without_mac: (Vec<SealedBlock>, Vec<BlockMac>),
}

impl<S: PageSeal> RemotePageClient<S> {
    /// A shelf with nothing on it.
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

    /// Where pages are.
    pub fn directory(&self) -> &PageDirectory {
        &self.directory
    }

    /// For what becomes of links, and the time: `next_session`, `on_unlinked`, `tick`.
    pub fn links(&mut self) -> &mut PageDirectory {
        &mut self.directory
    }

    /// Pages whose bytes must not go yet.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// The version of a page that is aside, or has a place: one that need not leave again if it has not
    /// changed.
    pub fn current_version(&self, page: Page) -> Option<u64> {
        let stands = self.pending.contains_key(&page) || self.directory.places(page).next().is_some();
        self.directory.version(page).filter(|_| stands)
    }

    /// What seals.
    pub fn seals(&self) -> &S {
        &self.seals
    }

    /// What seals, to be told of what was sealed elsewhere.
    pub fn seals_mut(&mut self) -> &mut S {
        &mut self.seals
    }

    /// The page leaves, as it is. Whoever waits for it has it.
    pub fn put(&mut self, page: Page, clear: &S::Clear) {
        let version = self.reserve();
        let sealed = self.seals.seal(page, version, clear);
        self.put_sealed(page, version, sealed, clear);
    }

    /// A version for a page that is sealed while others have the shelf: then
    /// [`put_sealed`](Self::put_sealed), unless it need not leave.
    pub fn reserve(&mut self) -> u64 {
        self.directory.reserve()
    }

    /// As [`put`](Self::put), sealed already under a version that was reserved for it.
    pub fn put_sealed(&mut self, page: Page, version: u64, sealed: S::Sealed, clear: &S::Clear) {
        self.directory.put_as(page, version);
        self.pending.insert(page, (version, sealed));
        self.replace(page, || Box::new(clear.clone()));
    }

    /// The page is wanted. [`Sought::Waits`] is to be followed by one [`take`](Self::take).
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

    /// Whether [`take`](Self::take) has something to give.
    pub fn has_arrived(&self, page: Page) -> bool {
        self.arrived.contains_key(&page)
    }

    /// One who has waited takes what came, or goes without. The last one takes it away.
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

    /// Blocks of pages are wanted, and these stay where they are. To be followed by one
    /// [`take_words`](Self::take_words).
    pub fn gather(&mut self, wanted: BlockRequest) -> GatherTicket {
        self.directory
            .gather(wanted, |page| self.arrived.contains_key(&page))
    }

    /// Whether what is gathered can still be remembered until it is proven. If not, pages are to be fetched
    /// whole.
    pub fn may_gather(&self) -> bool {
        self.unverified.has_room()
    }

    /// Whether [`take_words`](Self::take_words) has something to give.
    pub fn has_words(&self, ticket: GatherTicket) -> bool {
        self.directory.has_gathered(ticket)
    }

    /// What came of blocks that were asked for, once, when something has become of all.
    pub fn take_words(&mut self, ticket: GatherTicket) -> Option<GatherResult> {
        self.directory.take_gathered(ticket)
    }

    /// Asks for pages that will be wanted soon. They wait here until they are, up to [`SHELF_AHEAD_MAX`] in
    /// all; beyond that none are asked for.
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

    /// The page is wanted no more: from now on it is zeros, also for whoever waits for it.
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

    /// A lender says something. On an offence its link is to be closed, and [`Depot::on_unlinked`] told.
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

    /// Whether the blocks of a page that were given before are in it.
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

    /// Lets go what need not be kept aside any more, and tells whoever waits for a page that it is lost.
    /// `told`: each of these.
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
                        // It may have been put anew since: then that is what they get.
                        self.arrived.entry(page).or_insert(Err(lenders));
                    }
                }
                DirectoryEvent::Gathered(_) => (),
            }
            told(&news);
        }
    }

    /// The next frame for a lender; `None`: there is none, or enough is on its way.
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
                        panic!("{:?} is to be sent, and was let go", item.page)
                    };
                    assert_eq!(*version, item.version, "the newest version is aside");
                    let bytes = S::bytes(sealed).len();
                    outgoing.heads.push(page_header(item.slot, item.version, bytes));
                    outgoing.sealed.push(sealed.clone());
                }
            }
        }
        Some(outgoing)
    }
}

/// Each of the blocks that were given.
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
    /// What stands behind the header, in order.
    pub fn parts<S: PageSeal<Sealed = T>>(&self) -> impl Iterator<Item = &[u8]> {
        let sealed = |index: usize| self.sealed.get(index).map_or(&[][..], S::bytes);
        let heads = self.heads.iter().enumerate();
        let pages = heads.flat_map(move |(index, head)| [&head[..], sealed(index)]);
        pages.chain((!self.runs.is_empty()).then_some(&self.runs[..]))
    }
}
