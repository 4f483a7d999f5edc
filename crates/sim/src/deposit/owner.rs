//! A depot, the bytes aside, and a program that knows what each page should be.

use std::collections::{BTreeMap, BTreeSet};

use netram_proto::deposit::{
    Cut, Depot, Found, LenderSet, Misconduct, News, Page, Send, Settings, page_head,
};
use netram_proto::id::{DepositId, Incarnation, Lsn, WriterId};
use netram_proto::time::{Span, Time};
use netram_proto::wire::{Frame, FrameKind, Refusal, crc32c};

use super::lenders::frame;
use super::{Event, LEASE, World};
use crate::net::Way;

/// Bytes of a page in this world: whose, which, its version, what is in it, and a sum over these.
const PAGE: usize = 36;
/// A link that is gone for nearly the lease may be one whose deposit is gone.
const SLACK: Span = Span::from_ms(500);

/// The deposit of an owner's life.
pub(super) fn deposit_of(life: u64) -> DepositId {
    DepositId(0xFA12 << 64 | u128::from(life))
}

/// One owner's process.
pub(super) struct Arena {
    pub(super) id: DepositId,
    pub(super) life: u64,
    pub(super) depot: Depot,
    pub(super) conns: Vec<Option<usize>>,
    /// When a link to each lender stood last; of one that stands it means nothing.
    pub(super) linked_until: Vec<Time>,
    /// Sealed bytes that must not go yet.
    aside: BTreeMap<Page, (u64, Vec<u8>)>,
    /// What each page should be; 0: zeros.
    truth: BTreeMap<Page, u64>,
    /// Pages that are here.
    hot: BTreeSet<Page>,
    /// Pages that the program waits for.
    pub(super) waiting: BTreeSet<Page>,
}

impl Arena {
    pub(super) fn writer(&self) -> WriterId {
        WriterId(self.life)
    }

    fn seal(&self, page: Page, version: u64, content: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(PAGE);
        bytes.extend_from_slice(&self.life.to_le_bytes());
        bytes.extend_from_slice(&u64::from(page.0).to_le_bytes());
        bytes.extend_from_slice(&version.to_le_bytes());
        bytes.extend_from_slice(&content.to_le_bytes());
        bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// What is in a page, if it is this one of ours in this version.
    fn open(&self, page: Page, version: u64, bytes: &[u8]) -> Option<u64> {
        let content = u64::from_le_bytes(bytes.get(24..32)?.try_into().ok()?);
        (self.seal(page, version, content) == bytes).then_some(content)
    }

    fn should_be(&self, page: Page) -> u64 {
        self.truth.get(&page).copied().unwrap_or(0)
    }

    /// The program changes the page, and it leaves.
    fn evict(&mut self, page: Page, content: u64) {
        self.truth.insert(page, content);
        self.hot.remove(&page);
        let version = self.depot.put(page);
        let sealed = self.seal(page, version, content);
        self.aside.insert(page, (version, sealed));
    }

    pub(super) fn pages(&self) -> Vec<Page> {
        self.truth.keys().copied().collect()
    }

    pub(super) fn is_hot(&self, page: Page) -> bool {
        self.hot.contains(&page)
    }

    pub(super) fn aside(&self) -> usize {
        self.aside.len()
    }
}

impl World {
    pub(super) fn start_arena(&mut self, arena: usize) {
        self.lives += 1;
        let life = self.lives;
        let mut depot = Depot::new(&Settings {
            copies: self.nature.copies,
            slots_max: vec![self.nature.slots_max; self.nature.lenders],
            grow: self.nature.grow,
        });
        depot.plant(self.planted);
        self.arenas[arena] = Some(Arena {
            id: deposit_of(life),
            life,
            depot,
            conns: vec![None; self.nature.lenders],
            linked_until: vec![self.now; self.nature.lenders],
            aside: BTreeMap::new(),
            truth: BTreeMap::new(),
            hot: BTreeSet::new(),
            waiting: BTreeSet::new(),
        });
        for lender in 0..self.nature.lenders {
            self.at(Span(1), Event::Dial { arena, life, lender });
        }
        self.at(Span(2), Event::Program { arena, life });
    }

    pub(super) fn on_program(&mut self, arena: usize, life: u64) {
        let alive = self.arenas[arena]
            .as_ref()
            .is_some_and(|arena| arena.life == life);
        if !alive || self.calm {
            return;
        }
        let page = Page(self.rng.below(self.nature.pages.into()) as u32);
        self.reference(arena, page);
        self.settle(arena);
        let us = self.rng.between(1, self.nature.pace_us);
        self.at(Span::from_us(us), Event::Program { arena, life });
    }

    fn reference(&mut self, arena: usize, page: Page) {
        let (draw, content) = (self.rng.below(100), self.rng.draw() | 1);
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        if owner.waiting.contains(&page) {
            return;
        }
        if !owner.hot.contains(&page) && owner.truth.contains_key(&page) {
            return self.fault(arena, page);
        }
        match draw {
            0..5 => {
                owner.truth.remove(&page);
                owner.hot.remove(&page);
                owner.aside.remove(&page);
                owner.depot.forget(page);
                self.coverage.hit("far: pages forgotten");
            }
            // Nothing has changed in it: what is in its places is still it.
            5..30 if owner.hot.contains(&page) => {
                owner.hot.remove(&page);
            }
            _ => owner.evict(page, content),
        }
    }

    /// The program wants a page that is not here.
    pub(super) fn fault(&mut self, arena: usize, page: Page) {
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        match owner.depot.get(page) {
            Found::Never => self.fail(format!("{page:?} was put, and is said to be zeros")),
            Found::Aside => {
                let Some((version, bytes)) = owner.aside.get(&page) else {
                    self.fail(format!("{page:?} is said to be aside, and is not"))
                };
                let content = owner.open(page, *version, bytes);
                self.coverage.hit("far: pages found aside");
                self.arrives(arena, page, content);
            }
            Found::Asked => {
                owner.waiting.insert(page);
            }
            Found::Lost(lenders) => self.lost(arena, page, lenders),
        }
    }

    /// What the program gets must be what it put last.
    fn arrives(&mut self, arena: usize, page: Page, content: Option<u64>) {
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        let should = owner.should_be(page);
        if content != Some(should) {
            self.fail(format!("{page:?} should be {should:x}, and is {content:x?}"));
        }
        owner.hot.insert(page);
        owner.waiting.remove(&page);
    }

    /// A page is said to be lost. That is no fault if nobody can have it any more.
    fn lost(&mut self, arena: usize, page: Page, lenders: LenderSet) {
        self.tell(|| format!("owner {arena}: {page:?} is lost by {lenders:?}"));
        self.coverage.hit("far: pages lost");
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        let version = owner.depot.version(page);
        if self.nature.within {
            self.fail(format!("{page:?} was lost, and never was all of it gone"));
        }
        if lenders == LenderSet::default() {
            self.fail(format!("{page:?} was lost by nobody"));
        }
        for (index, machine) in self.machines.iter().enumerate() {
            let Some(holder) = machine.deposit(owner.id) else {
                continue;
            };
            let has = (0..holder.slots()).any(|slot| holder.version(slot) == version);
            let reachable =
                owner.conns[index].is_some() || self.now.since(owner.linked_until[index] - SLACK) < LEASE;
            // What lies in a slot that was given up may be there by chance.
            if has && reachable && lenders.contains(index) && !machine.is_hostile() {
                self.fail(format!(
                    "{page:?} is said to be lost by lender {index}, which has it"
                ));
            }
        }
        owner.waiting.remove(&page);
        owner.truth.remove(&page);
        owner.depot.forget(page);
    }

    /// What a lender says. An error ends the link.
    pub(super) fn hear(&mut self, arena: usize, lender: usize, frame: &Frame<'_>) -> Result<(), Misconduct> {
        let now = self.now;
        let Some(owner) = &mut self.arenas[arena] else {
            return Ok(());
        };
        let header = &frame.header;
        let slots = u32::try_from(header.lsn.0).map_err(|_| Misconduct);
        match header.kind {
            FrameKind::Deposited if owner.depot.is_linked(lender) => {
                owner.depot.on_resized(lender, slots?)
            }
            FrameKind::Deposited => {
                let lease = Span::from_ms(u64::from(header.mark) * 1000);
                let life = Incarnation(header.stable.0);
                owner.depot.on_linked(lender, life, slots?, lease)?;
                self.coverage.hit("far: sessions");
                Ok(())
            }
            FrameKind::Stashed => owner.depot.on_stashed(lender, header.mark),
            FrameKind::Got => {
                let cut = Cut::parse(frame.body).map_err(|_| Misconduct)?;
                let due = owner.depot.on_got(lender, header.mark, &cut)?;
                for due in due {
                    self.judge(arena, lender, due.page, due.version, cut.pages()[due.index].bytes);
                }
                Ok(())
            }
            FrameKind::Withdraw => {
                owner.depot.on_withdraw(lender);
                Ok(())
            }
            FrameKind::Refuse if Refusal::from_byte(header.flags) == Some(Refusal::NoRoom) => {
                self.coverage.hit("far: lenders that were full");
                let possible = u32::try_from(header.stable.0).map_err(|_| Misconduct)?;
                owner.depot.on_no_room(lender, possible, now)
            }
            _ => Err(Misconduct),
        }
    }

    fn judge(&mut self, arena: usize, lender: usize, page: Page, version: u64, bytes: &[u8]) {
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        let Some(content) = owner.open(page, version, bytes) else {
            self.coverage.hit("far: lies found");
            owner.depot.damaged(lender, page, version);
            return;
        };
        let taken = owner.depot.take(lender, page, version);
        if taken.aside {
            owner.aside.insert(page, (version, bytes.to_vec()));
            self.coverage.hit("far: pages mended");
        }
        if taken.wanted {
            self.coverage.hit("far: pages fetched");
            self.arrives(arena, page, Some(content));
        }
    }

    /// Sends what is to be sent, and hears what became of pages.
    pub(super) fn settle(&mut self, arena: usize) {
        while let Some(news) = self.arenas[arena].as_mut().and_then(|owner| owner.depot.news()) {
            match news {
                News::Stashed(page, version, copies) => {
                    self.trace.mark(self.now, 32, version);
                    self.coverage.hit(if copies > 1 {
                        "far: pages in two places"
                    } else {
                        "far: pages in one place"
                    });
                    let owner = self.arenas[arena].as_mut();
                    if let Some(owner) =
                        owner.filter(|owner| owner.aside.get(&page).is_some_and(|it| it.0 == version))
                    {
                        owner.aside.remove(&page);
                    }
                }
                News::Lost(page, lenders) => self.lost(arena, page, lenders),
            }
        }
        for lender in 0..self.nature.lenders {
            while let Some(conn) = self.arenas[arena].as_ref().and_then(|owner| owner.conns[lender])
                && self.has_room(conn)
                && let Some(packet) = self.next_packet(arena, conn)
            {
                self.send(conn, Way::Up, packet);
            }
        }
    }

    fn next_packet(&mut self, arena: usize, conn: usize) -> Option<Vec<u8>> {
        let (lender, epoch) = (self.conns[conn].lender, self.conns[conn].epoch);
        let owner = self.arenas[arena].as_mut()?;
        let mut body = Vec::new();
        let mut header = match owner.depot.poll(lender, self.now)? {
            Send::Resize(slots) => {
                let mut header = frame(FrameKind::Resize, epoch, owner.writer());
                header.lsn = Lsn(slots.into());
                header
            }
            Send::Put(number, items) => {
                for item in items {
                    let sealed = owner
                        .aside
                        .get(&item.page)
                        .filter(|(version, _)| *version == item.version);
                    let Some((_, sealed)) = sealed else {
                        self.fail(format!("{:?} is to be sent, and was let go", item.page))
                    };
                    body.extend_from_slice(&page_head(item.slot, item.version, sealed.len()));
                    body.extend_from_slice(sealed);
                }
                let mut header = frame(FrameKind::Put, epoch, owner.writer());
                header.mark = number;
                header
            }
            Send::Get(number, items) => {
                for item in items {
                    body.extend_from_slice(&page_head(item.slot, item.version, 0));
                }
                let mut header = frame(FrameKind::Get, epoch, owner.writer());
                header.mark = number;
                header
            }
        };
        header.who = owner.writer().0;
        Some([&header.encode(body.len())[..], &body].concat())
    }
}
