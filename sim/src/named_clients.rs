//! A lender's clients that have names: the journal's, and others beside it. Their limits are in a file that
//! outlives the process and is read again; the accounts are those that ship.

use std::collections::BTreeMap;

use netram_proto::client::{ClientBook, ClientLimits, OverLimit, ResourceCharge, ServerTotals};
use netram_proto::member::Window;
use netram_proto::planted::FaultSwitch;
use netram_proto::wire::{ClientResource, Frame, FrameKind, RefusalReason};

use crate::lender::{PacketOutcome, SimLender};
use crate::window_ring::WindowRing;

/// Name of the journal's client.
pub(crate) const WRITER: &str = "db";
/// Names of the other clients.
pub(crate) const OTHERS: [&str; 2] = ["backup", "web"];
/// Number of sessions that a client may have.
const SESSIONS: u64 = 10_000;
/// Number of journals that a client may have.
const JOURNALS: u64 = 2;
/// Number of windows for which each client may have memory.
const WINDOWS: u64 = 2;

/// The cost of a journal for its client.
#[derive(Debug)]
pub(crate) struct JournalPayment {
    _slot: ResourceCharge,
    /// The bytes of its window.
    pub(crate) window: ResourceCharge,
}

/// The clients of one lender.
#[derive(Debug)]
pub(crate) struct NamedClients {
    /// Bytes of a window.
    window: u64,
    file: BTreeMap<Box<str>, ClientLimits>,
    book: ClientBook,
    /// The session of the journal's client on each connection.
    visits: BTreeMap<usize, ResourceCharge>,
    /// The windows of other clients: whose, and what each costs. They are kept like the journal's.
    others: Vec<(&'static str, ResourceCharge)>,
    /// The resource for which a session was last turned away, until the oracle asks.
    turned_away: Option<ClientResource>,
    /// Generation of the journal's window when its client was last revoked.
    pub(crate) revoked_at: Option<u32>,
}

impl NamedClients {
    /// Clients whose windows have `window` bytes. The lender has just started.
    pub(crate) fn new(window: u64) -> NamedClients {
        let mut clients = NamedClients {
            window,
            file: BTreeMap::new(),
            book: ClientBook::default(),
            visits: BTreeMap::new(),
            others: Vec::new(),
            turned_away: None,
            revoked_at: None,
        };
        clients.grant_all();
        clients
    }

    /// Writes a file in which every client has enough, and reads it.
    pub(crate) fn grant_all(&mut self) {
        for name in OTHERS.into_iter().chain([WRITER]) {
            let mut limits = ClientLimits::default();
            limits.set(ClientResource::Memory, Some(WINDOWS * self.window));
            limits.set(ClientResource::Journals, Some(JOURNALS));
            limits.set(ClientResource::Sessions, Some(SESSIONS));
            self.file.insert(name.into(), limits);
        }
        self.reload();
    }

    /// Changes a limit of the journal's client in the file, and reads it.
    pub(crate) fn set_limit(&mut self, resource: ClientResource, limit: u64) {
        if let Some(limits) = self.file.get_mut(WRITER) {
            limits.set(resource, Some(limit));
        }
        self.reload();
    }

    /// Takes the journal's client out of the file, and reads it.
    pub(crate) fn revoke(&mut self) {
        self.file.remove(WRITER);
        self.reload();
        self.visits.clear();
    }

    /// Whether the file names the journal's client.
    pub(crate) fn knows_writer(&self) -> bool {
        self.file.contains_key(WRITER)
    }

    /// The limit of a client in the file.
    pub(crate) fn limit(&self, name: &str, resource: ClientResource) -> u64 {
        let limits = self.file.get(name);
        limits.and_then(|limits| limits.get(resource)).unwrap_or(0)
    }

    /// Number of sessions of the journal's client.
    pub(crate) fn sessions(&self) -> u64 {
        self.visits.len() as u64
    }

    /// Bytes that another client has.
    pub(crate) fn bytes_of(&self, name: &str) -> u64 {
        let of = self.others.iter().filter(|(payer, _)| *payer == name);
        of.count() as u64 * self.window
    }

    /// Plants a fault in the accounts.
    pub(crate) fn plant(&mut self, planted: FaultSwitch) {
        self.book.plant(planted);
    }

    /// The resource for which a session was turned away since the last call.
    pub(crate) fn take_turned_away(&mut self) -> Option<ClientResource> {
        self.turned_away.take()
    }

    fn reload(&mut self) {
        self.book.replace(self.file.clone());
    }

    /// A process starts: it reads the file, and counts what an earlier process kept.
    fn start(&mut self, planted: FaultSwitch, kept: bool, ring: &mut WindowRing) {
        self.book = ClientBook::default();
        self.book.plant(planted);
        self.book.set_totals(ServerTotals::default());
        self.reload();
        for (name, charge) in &mut self.others {
            let account = self.book.account(name);
            *charge = account.take_kept(ClientResource::Memory, self.window);
        }
        let account = self.book.account(WRITER);
        ring.payment = kept.then(|| JournalPayment {
            _slot: account.take_kept(ClientResource::Journals, 1),
            window: account.take_kept(ClientResource::Memory, ring.capacity()),
        });
    }

    /// Another client asks for one more window.
    pub(crate) fn other_takes(&mut self, name: &'static str) -> Result<(), OverLimit> {
        let charge = self
            .book
            .account(name)
            .take(ClientResource::Memory, self.window)?;
        self.others.push((name, charge));
        Ok(())
    }

    /// Another client gives the window at `index` back, if there is one.
    pub(crate) fn other_gives(&mut self, index: usize) {
        if index < self.others.len() {
            self.others.remove(index);
        }
    }

    /// Makes the journal's client pay for a session, and for its journal if the lender does not know that.
    fn admit(&mut self, conn: usize, ring: &mut WindowRing) -> Result<(), OverLimit> {
        let account = self.book.account(WRITER);
        account.check(ClientResource::Sessions)?;
        let visit = account.take(ClientResource::Sessions, 1)?;
        if ring.payment.is_none() {
            ring.payment = Some(JournalPayment {
                _slot: account.take(ClientResource::Journals, 1)?,
                window: account.take(ClientResource::Memory, ring.capacity())?,
            });
        }
        self.visits.insert(conn, visit);
        Ok(())
    }
}

/// Whether `lender` turns a client away that says `frame` first on connection `conn`.
pub(crate) fn turns_away(
    lender: &mut SimLender,
    conn: usize,
    frame: &Frame<'_>,
    planted: FaultSwitch,
) -> bool {
    let Some(clients) = &mut lender.clients else {
        return false;
    };
    if frame.header.kind != FrameKind::Bind || clients.visits.contains_key(&conn) {
        return false;
    }
    clients.plant(planted);
    if !clients.knows_writer() {
        // Its key is no longer accepted.
        return true;
    }
    let admitted = clients.admit(conn, &mut lender.window);
    clients.turned_away = admitted.err().map(|over| over.resource);
    clients.turned_away.is_some()
}

/// The process of `lender` starts; `kept`: it finds a journal in its memory.
pub(crate) fn started(lender: &mut SimLender, planted: FaultSwitch, kept: bool) {
    if let Some(clients) = &mut lender.clients {
        clients.start(planted, kept, &mut lender.window);
    }
}

/// All sessions of `lender` have ended.
pub(crate) fn dismissed(lender: &mut SimLender) {
    if let Some(clients) = &mut lender.clients {
        clients.visits.clear();
    }
}

/// The process of `lender` ends, and with it its accounts.
pub(crate) fn stopped(lender: &mut SimLender) {
    lender.window.payment = None;
    if let Some(clients) = &mut lender.clients {
        clients.book = ClientBook::default();
    }
}

/// `lender` loses the memory of all windows.
pub(crate) fn lost(lender: &mut SimLender) {
    if let Some(clients) = &mut lender.clients {
        clients.others.clear();
        clients.revoked_at = None;
    }
}

/// Connection `conn` of `lender` has ended.
pub(crate) fn ended(lender: &mut SimLender, conn: usize) {
    if let Some(clients) = &mut lender.clients {
        clients.visits.remove(&conn);
    }
}

/// The resource that an answer says the client may not have more of.
pub(crate) fn refused_resource(outcome: &PacketOutcome) -> Option<ClientResource> {
    let PacketOutcome::Reply(packet) = outcome else {
        return None;
    };
    let Frame { header, .. } = Frame::parse(packet).ok()?;
    let over = header.kind == FrameKind::Refuse && header.flags == RefusalReason::OverClientLimit as u8;
    over.then(|| ClientResource::from_number(header.lsn.0)).flatten()
}
