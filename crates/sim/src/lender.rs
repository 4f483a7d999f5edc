//! A lender's machine: the memory it lends, the process that speaks for it, and how both come and go.

use std::collections::BTreeMap;

use netram_proto::id::{Incarnation, JournalId, Lsn};
use netram_proto::member::{Member, MemberState, NoWindow, Reply, Window, copy_out};
use netram_proto::planted::Planted;
use netram_proto::session::{Admit, Session};
use netram_proto::time::Time;
use netram_proto::wire::{Frame, FrameKind, Header, Refusal};

use crate::check::Witness;

/// A window in a vector.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    bytes: Vec<u8>,
    /// Bytes that may be lent.
    pub limit: u64,
}

impl Window for Ring {
    fn reserve(&mut self, bytes: u64) -> Result<(), NoWindow> {
        self.bytes = Vec::new();
        if bytes > self.limit {
            return Err(NoWindow {
                refusal: Refusal::NoRoom,
                asked: bytes,
                limit: self.limit,
            });
        }
        self.bytes = vec![0; bytes as usize];
        Ok(())
    }

    fn release(&mut self) {
        self.bytes = Vec::new();
    }

    fn capacity(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn write(&mut self, at: Lsn, bytes: &[u8]) {
        let capacity = self.bytes.len();
        assert!(bytes.len() <= capacity, "a member writes within its window");
        let start = (at.0 % capacity as u64) as usize;
        let first = bytes.len().min(capacity - start);
        self.bytes[start..start + first].copy_from_slice(&bytes[..first]);
        self.bytes[..bytes.len() - first].copy_from_slice(&bytes[first..]);
    }

    fn piece(&self, at: Lsn, max: usize) -> &[u8] {
        let start = (at.0 % self.bytes.len() as u64) as usize;
        &self.bytes[start..self.bytes.len().min(start + max)]
    }
}

/// One lender.
#[derive(Debug)]
pub struct Lender {
    /// What feeds it.
    pub domain: String,
    /// The life of its memory.
    pub incarnation: Incarnation,
    /// Its memory.
    pub window: Ring,
    /// What its process remembers in shared memory; it outlives the process and not the machine.
    saved: Option<MemberState>,
    member: Option<Member>,
    sessions: BTreeMap<usize, Session>,
    /// Counts processes; a connection belongs to one.
    pub boot: u32,
    /// Whether the process runs.
    pub up: bool,
    /// It stands still until then.
    pub paused_until: Time,
    /// Memories that were lost, and what they had held: an acknowledgement may outlive its lender.
    pub lives: Vec<(Incarnation, MemberState)>,
    /// What the oracles know of it.
    pub witness: Witness,
}

/// Bytes that a lender has to lend to one journal.
pub const LENT_BYTES: u64 = 1 << 20;

impl Lender {
    /// A lender that has just started, with empty memory.
    pub fn new(domain: String, incarnation: Incarnation) -> Lender {
        Lender {
            domain,
            incarnation,
            window: Ring {
                bytes: Vec::new(),
                limit: LENT_BYTES,
            },
            saved: None,
            member: None,
            sessions: BTreeMap::new(),
            boot: 0,
            up: true,
            paused_until: Time(0),
            lives: Vec::new(),
            witness: Witness::default(),
        }
    }

    /// What the memory says, whether or not a process runs.
    pub fn state(&self) -> MemberState {
        self.member
            .as_ref()
            .map(|member| *member.state())
            .or(self.saved)
            .unwrap_or_default()
    }

    /// Copies `length` bytes of the window from `at`, if it has so many.
    pub fn window_bytes(&self, at: Lsn, length: usize) -> Option<Vec<u8>> {
        if length as u64 > self.window.capacity() {
            return None;
        }
        let mut bytes = vec![0; length];
        if length > 0 {
            copy_out(&self.window, at, &mut bytes);
        }
        Some(bytes)
    }

    /// The process dies; the memory stays. With `torn`, a frame that it was handling had reached the window and not
    /// the word for it.
    pub fn kill(&mut self) {
        self.up = false;
        self.member = None;
        self.sessions.clear();
        self.boot += 1;
    }

    /// The machine dies, and the memory with it.
    pub fn lose(&mut self, next: Incarnation) {
        self.lives.push((self.incarnation, self.state()));
        self.kill();
        self.saved = None;
        self.window.release();
        self.incarnation = next;
        self.witness = Witness::default();
    }

    /// A process starts. `false`: the memory did not bear out what was remembered, and begins anew as `next`.
    pub fn start(&mut self, journal: JournalId, next: Incarnation, planted: Planted) -> bool {
        self.up = true;
        let Some(state) = self.saved else { return true };
        match Member::restore(journal, self.incarnation, state, &self.window) {
            Some(mut member) => {
                member.plant(planted);
                self.saved = Some(*member.state());
                self.member = Some(member);
                true
            }
            None => {
                self.lose(next);
                self.up = true;
                false
            }
        }
    }

    /// Handles a frame that came over connection `conn`. Returns what to answer; `None`: the session ends.
    pub fn on_packet(
        &mut self,
        conn: usize,
        packet: &[u8],
        journal: JournalId,
        planted: Planted,
    ) -> Option<Vec<u8>> {
        let frame = Frame::parse(packet).ok()?;
        match self.sessions.entry(conn).or_default().handle(&frame) {
            Ok(Admit::Bind(bound, _)) => (bound == journal).then(|| {
                let header = Header {
                    who: self.incarnation.0,
                    ..Header::new(FrameKind::Bound)
                };
                packet_of(&header, self.domain.as_bytes())
            }),
            Ok(Admit::Status) => Some(packet_of(&Header::new(FrameKind::Report), b"{}")),
            Ok(Admit::Member(_)) => Some(self.on_member_frame(&frame, journal, planted)),
            Err(_) => None,
        }
    }

    fn on_member_frame(&mut self, frame: &Frame<'_>, journal: JournalId, planted: Planted) -> Vec<u8> {
        let before = self.state();
        let member = self.member.get_or_insert_with(|| {
            let mut member = Member::new(journal, self.incarnation);
            member.plant(planted);
            member
        });
        let reply = member.handle(frame, &mut self.window);
        let after = *member.state();
        self.saved = Some(after);
        let mut witness = core::mem::take(&mut self.witness);
        witness.after_frame(self, &before, frame, &reply, journal.into());
        self.witness = witness;
        match reply {
            Reply::Frame(header, body, length) => packet_of(&header, &body[..length]),
            Reply::Data(header, bytes) => {
                let body = self.window_bytes(header.lsn, bytes).unwrap_or_default();
                packet_of(&header, &body)
            }
        }
    }

    /// A connection is gone.
    pub fn forget(&mut self, conn: usize) {
        self.sessions.remove(&conn);
    }
}

/// A frame as it travels.
pub fn packet_of(header: &Header, body: &[u8]) -> Vec<u8> {
    let mut packet = Vec::with_capacity(40 + body.len());
    packet.extend_from_slice(&header.encode(body.len()));
    packet.extend_from_slice(body);
    packet
}
