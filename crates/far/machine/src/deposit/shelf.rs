//! What an owner has here of its pages: bytes that must not go yet, pages that have come and were not taken, and who waits for which.
//!
//! A [`Shelf`] is a [`Depot`] with these, and with the way to seal and open a page: all of an owner but sockets, threads and the clock.
//! Commands: [`put`](Shelf::put), [`get`](Shelf::get), [`gather`](Shelf::gather), [`prefetch`](Shelf::prefetch), [`forget`](Shelf::forget). What happened:
//! [`hear`](Shelf::hear), and what [`links`](Shelf::links) offers of links and time; after either, [`settle`](Shelf::settle). What to do:
//! [`next_frame`](Shelf::next_frame). What has come is given out by [`take`](Shelf::take).

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::unproven::Unproven;
use super::{
    Cut, Depot, Found, Gathered, Given, LenderSet, Mark, Misconduct, News, Page, SealedBlock, Send, Ticket,
    Wanted, page_head,
};
use crate::limit::{PAGE_HEADER_BYTES, SHELF_AHEAD_MAX};
use netram_proto::id::{Incarnation, Lsn};
use netram_proto::time::{Span, Time};
use netram_proto::wire::{Flag, Frame, FrameKind, Header, Refusal};

/// How pages are sealed before they leave, and proven when they come back.
pub trait Seals {
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

    /// Appends the marks of blocks of sealed pages, by which they are compared later. Of many at once, for ciphers are faster so.
    fn mark(&self, blocks: &[SealedBlock], marks: &mut Vec<Mark>);

    /// Keeps bytes that [`open`](Self::open) has opened.
    fn keep(&self, sealed: &[u8]) -> Self::Sealed;

    /// The bytes as a lender gets them.
    fn bytes(sealed: &Self::Sealed) -> &[u8];
}

/// Where a page was found that somebody wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sought<C> {
    /// It was never put, or has been forgotten.
    Zeros,
    /// It has not left yet. `None`: its bytes are not what was put, so this machine's memory is at fault.
    Aside(Option<Box<C>>),
    /// Every place that it had is gone. These lenders had it.
    Lost(LenderSet),
    /// It will come, or has: [`Shelf::take`] gives it.
    Waits,
}

/// A frame to be sent: its header, and behind that for each page a head and its bytes, if it carries them.
#[derive(Clone, Debug)]
pub struct Outgoing<T> {
    /// Complete but for `who`.
    pub header: Header,
    /// One a page.
    pub heads: Vec<[u8; PAGE_HEADER_BYTES]>,
    /// One a page in `Put`, else none.
    pub sealed: Vec<T>,
    /// In `Gather`, all of the body.
    pub runs: Vec<u8>,
}

/// What a frame of a lender's has brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
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
    pub mended: usize,
    /// Pages that were not what had left: these places are gone.
    pub forged: Vec<Page>,
    /// Pages that have come home, and blocks of which were given before as what they are not.
    pub lies: Vec<Page>,
}

/// Why a lender's link is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offence {
    /// It sent what answers nothing that it was asked.
    Misconduct,
    /// It is another one of the lenders, by another name.
    Twin,
    /// It refused; `None`: for a reason that is not known here.
    Refused(Option<Refusal>),
}

impl From<Misconduct> for Offence {
    fn from(_: Misconduct) -> Offence {
        Offence::Misconduct
    }
}

/// An owner's pages.
#[derive(Clone, Debug)]
pub struct Shelf<S: Seals> {
    depot: Depot,
    seals: S,
    /// Sealed pages that must not go yet.
    aside: BTreeMap<Page, (u64, S::Sealed)>,
    /// How many wait for each page.
    waiters: BTreeMap<Page, usize>,
    /// Pages that are to come unasked.
    ahead: BTreeSet<Page>,
    /// What has come, until whoever waits has taken it.
    came: BTreeMap<Page, Result<Box<S::Clear>, LenderSet>>,
    unproven: Unproven,
    /// Blocks that have come in this frame and are not marked yet, and room for their marks.
    unmarked: (Vec<SealedBlock>, Vec<Mark>),
}

impl<S: Seals> Shelf<S> {
    /// A shelf with nothing on it.
    pub fn new(depot: Depot, seals: S) -> Shelf<S> {
        Shelf {
            depot,
            seals,
            aside: BTreeMap::new(),
            waiters: BTreeMap::new(),
            ahead: BTreeSet::new(),
            came: BTreeMap::new(),
            unproven: Unproven::default(),
            unmarked: (Vec::new(), Vec::new()),
        }
    }

    /// Where pages are.
    pub fn depot(&self) -> &Depot {
        &self.depot
    }

    /// For what becomes of links, and the time: `next_session`, `on_unlinked`, `tick`.
    pub fn links(&mut self) -> &mut Depot {
        &mut self.depot
    }

    /// Pages whose bytes must not go yet.
    pub fn aside(&self) -> usize {
        self.aside.len()
    }

    /// The version of a page that is aside, or has a place: one that need not leave again if it has not changed.
    pub fn standing(&self, page: Page) -> Option<u64> {
        let stands = self.aside.contains_key(&page) || self.depot.places(page).next().is_some();
        self.depot.version(page).filter(|_| stands)
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

    /// A version for a page that is sealed while others have the shelf: then [`put_sealed`](Self::put_sealed), unless it need not leave.
    pub fn reserve(&mut self) -> u64 {
        self.depot.reserve()
    }

    /// As [`put`](Self::put), sealed already under a version that was reserved for it.
    pub fn put_sealed(&mut self, page: Page, version: u64, sealed: S::Sealed, clear: &S::Clear) {
        self.depot.put_as(page, version);
        self.aside.insert(page, (version, sealed));
        self.replace(page, || Box::new(clear.clone()));
    }

    /// The page is wanted. [`Sought::Waits`] is to be followed by one [`take`](Self::take).
    pub fn get(&mut self, page: Page) -> Sought<S::Clear> {
        self.ahead.remove(&page);
        if !self.came.contains_key(&page) {
            match self.depot.get(page) {
                Found::Never => return Sought::Zeros,
                Found::Aside => {
                    let aside = self.aside.get(&page);
                    let open = |(version, sealed): &(u64, S::Sealed)| {
                        self.seals.open(page, *version, S::bytes(sealed))
                    };
                    return Sought::Aside(aside.and_then(open));
                }
                Found::Lost(lenders) => return Sought::Lost(lenders),
                Found::Asked => (),
            }
        }
        *self.waiters.entry(page).or_default() += 1;
        Sought::Waits
    }

    /// Whether [`take`](Self::take) has something to give.
    pub fn has_come(&self, page: Page) -> bool {
        self.came.contains_key(&page)
    }

    /// One who has waited takes what came, or goes without. The last one takes it away.
    pub fn take(&mut self, page: Page) -> Option<Result<Box<S::Clear>, LenderSet>> {
        match self.waiters.get_mut(&page) {
            Some(count) if *count > 1 => {
                *count -= 1;
                self.came.get(&page).cloned()
            }
            _ => {
                self.waiters.remove(&page);
                self.came.remove(&page)
            }
        }
    }

    /// Blocks of pages are wanted, and these stay where they are. To be followed by one [`take_words`](Self::take_words).
    pub fn gather(&mut self, wanted: Wanted) -> Ticket {
        self.depot.gather(wanted, |page| self.came.contains_key(&page))
    }

    /// Whether what is gathered can still be remembered until it is proven. If not, pages are to be fetched whole.
    pub fn may_gather(&self) -> bool {
        self.unproven.has_room()
    }

    /// Whether [`take_words`](Self::take_words) has something to give.
    pub fn has_words(&self, ticket: Ticket) -> bool {
        self.depot.has_gathered(ticket)
    }

    /// What came of blocks that were asked for, once, when something has become of all.
    pub fn take_words(&mut self, ticket: Ticket) -> Option<Gathered> {
        self.depot.take_gathered(ticket)
    }

    /// Asks for pages that will be wanted soon. They wait here until they are, up to [`SHELF_AHEAD_MAX`] in all; beyond that none are asked
    /// for.
    pub fn prefetch(&mut self, pages: impl IntoIterator<Item = Page>) {
        for page in pages {
            if self.ahead.len() >= SHELF_AHEAD_MAX {
                return;
            }
            let known = self.came.contains_key(&page) || self.waiters.contains_key(&page);
            if !known && self.depot.get(page) == Found::Asked {
                self.ahead.insert(page);
            }
        }
    }

    /// The page is wanted no more: from now on it is zeros, also for whoever waits for it.
    pub fn forget(&mut self, page: Page) {
        self.depot.forget(page);
        self.aside.remove(&page);
        self.replace(page, S::zeros);
    }

    fn replace(&mut self, page: Page, clear: impl FnOnce() -> Box<S::Clear>) {
        self.unproven.drop(page);
        self.ahead.remove(&page);
        if self.waiters.contains_key(&page) {
            self.came.insert(page, Ok(clear()));
        } else {
            self.came.remove(&page);
        }
    }

    /// A lender says something. On an offence its link is to be closed, and [`Depot::on_unlinked`] told.
    pub fn hear(&mut self, lender: usize, frame: &Frame<'_>, now: Time) -> Result<Heard, Offence> {
        self.depot.look(now);
        let header = &frame.header;
        let slots = |lsn: Lsn| u32::try_from(lsn.0).map_err(|_| Offence::Misconduct);
        let mut heard = Heard::default();
        match header.kind {
            FrameKind::Deposited if self.depot.is_linked(lender) => {
                self.depot.on_resized(lender, slots(header.lsn)?)?;
            }
            FrameKind::Deposited => {
                let lease = Span::from_ms(u64::from(header.mark) * 1000);
                let life = Incarnation(header.stable.0);
                let linked = self.depot.on_linked(lender, life, slots(header.lsn)?, lease);
                linked.map_err(|Misconduct| Offence::Twin)?;
                heard.linked = true;
            }
            FrameKind::Stashed => self.depot.on_stashed(lender, header.mark)?,
            FrameKind::Got => {
                let cut = Cut::parse(frame.body).map_err(|_| Offence::Misconduct)?;
                self.on_got(lender, header.mark, &cut, &mut heard)?;
            }
            FrameKind::Gathered => self.on_gathered(lender, header.mark, frame.body, &mut heard)?,
            FrameKind::Pong => (),
            FrameKind::Withdraw if header.flags & Flag::SOME != 0 => {
                self.depot.on_asked_back(lender, slots(header.lsn)?);
            }
            FrameKind::Withdraw => self.depot.on_withdraw(lender),
            FrameKind::Refuse => match Refusal::from_byte(header.flags) {
                Some(Refusal::NoRoom) => {
                    self.depot.on_no_room(lender, slots(header.stable)?, now)?;
                    heard.full = true;
                }
                refusal => return Err(Offence::Refused(refusal)),
            },
            _ => return Err(Offence::Misconduct),
        }
        Ok(heard)
    }

    fn on_gathered(
        &mut self,
        lender: usize,
        number: u32,
        body: &[u8],
        heard: &mut Heard,
    ) -> Result<(), Misconduct> {
        let (blocks, marks) = &mut self.unmarked;
        blocks.clear();
        heard.answered = self.depot.on_gathered(lender, number, body, |given| {
            heard.gathered += 1;
            blocks.extend(sealed_blocks(given));
        })?;
        marks.clear();
        self.seals.mark(blocks, marks);
        self.unproven.add_all(blocks, marks);
        Ok(())
    }

    /// Whether the blocks of a page that were given before are in it.
    fn proves(&mut self, page: Page, version: u64, sealed: &[u8]) -> bool {
        let (blocks, marks) = &mut self.unmarked;
        blocks.clear();
        let (all, _) = sealed.as_chunks();
        for (number, _) in self.unproven.marks(page) {
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
        self.seals.mark(blocks, marks);
        let given = self.unproven.marks(page).map(|(_, mark)| mark);
        given.eq(marks.iter().copied())
    }

    fn on_got(
        &mut self,
        lender: usize,
        number: u32,
        cut: &Cut<'_>,
        heard: &mut Heard,
    ) -> Result<(), Misconduct> {
        for due in self.depot.on_got(lender, number, cut)? {
            let (page, version) = (due.page, due.version);
            let sealed = cut.pages()[due.index].bytes;
            let Some(clear) = self.seals.open(page, version, sealed) else {
                self.depot.damaged(lender, page, version);
                heard.forged.push(page);
                continue;
            };
            if !self.proves(page, version, sealed) {
                heard.lies.push(page);
            }
            self.unproven.drop(page);
            let taken = self.depot.take(lender, page, version);
            if taken.aside {
                self.aside.insert(page, (version, self.seals.keep(sealed)));
                heard.mended += 1;
            }
            if taken.wanted && (self.waiters.contains_key(&page) || self.ahead.contains(&page)) {
                self.came.insert(page, Ok(clear));
                heard.fetched += 1;
            }
        }
        Ok(())
    }

    /// Lets go what need not be kept aside any more, and tells whoever waits for a page that it is lost. `told`: each of these.
    pub fn settle(&mut self, mut told: impl FnMut(&News)) {
        while let Some(news) = self.depot.news() {
            match news {
                News::Stashed(page, version, _) => {
                    if self.aside.get(&page).is_some_and(|aside| aside.0 == version) {
                        self.aside.remove(&page);
                    }
                }
                News::Lost(page, lenders) => {
                    self.ahead.remove(&page);
                    if self.waiters.contains_key(&page) {
                        // It may have been put anew since: then that is what they get.
                        self.came.entry(page).or_insert(Err(lenders));
                    }
                }
                News::Gathered(_) => (),
            }
            told(&news);
        }
    }

    /// The next frame for a lender; `None`: there is none, or enough is on its way.
    pub fn next_frame(&mut self, lender: usize, now: Time) -> Option<Outgoing<S::Sealed>> {
        let send = self.depot.poll(lender, now)?;
        let mut outgoing = Outgoing {
            header: Header::new(FrameKind::Resize),
            heads: Vec::new(),
            sealed: Vec::new(),
            runs: Vec::new(),
        };
        let header = &mut outgoing.header;
        header.epoch = self.depot.session(lender);
        match send {
            Send::Resize(slots) => header.lsn = Lsn(slots.into()),
            Send::Get(number, items) => {
                (header.kind, header.mark) = (FrameKind::Get, number);
                let heads = items.iter().map(|item| page_head(item.slot, item.version, 0));
                outgoing.heads.extend(heads);
            }
            Send::Gather(number, body) => {
                (header.kind, header.mark) = (FrameKind::Gather, number);
                outgoing.runs = body;
            }
            Send::Put(number, items) => {
                (header.kind, header.mark) = (FrameKind::Put, number);
                for item in items {
                    let Some((version, sealed)) = self.aside.get(&item.page) else {
                        panic!("{:?} is to be sent, and was let go", item.page)
                    };
                    assert_eq!(*version, item.version, "the newest version is aside");
                    let bytes = S::bytes(sealed).len();
                    outgoing.heads.push(page_head(item.slot, item.version, bytes));
                    outgoing.sealed.push(sealed.clone());
                }
            }
        }
        Some(outgoing)
    }
}

/// Each of the blocks that were given.
fn sealed_blocks(given: Given<'_>) -> impl Iterator<Item = SealedBlock> {
    let (bytes, _) = given.bytes.as_chunks();
    let (page, version) = (given.page, given.version);
    { given.numbers.iter().zip(bytes) }.map(move |(number, bytes)| SealedBlock {
        page,
        version,
        number: *number,
        bytes: *bytes,
    })
}

impl<T> Outgoing<T> {
    /// What stands behind the header, in order.
    pub fn parts<S: Seals<Sealed = T>>(&self) -> impl Iterator<Item = &[u8]> {
        let sealed = |index: usize| self.sealed.get(index).map_or(&[][..], S::bytes);
        let heads = self.heads.iter().enumerate();
        let pages = heads.flat_map(move |(index, head)| [&head[..], sealed(index)]);
        pages.chain((!self.runs.is_empty()).then_some(&self.runs[..]))
    }
}
