//! A lender's side of one deposit.

use alloc::vec::Vec;

use super::blocks;
use super::pages::{FramePages, SlotRequest};
use crate::limit::{BLOCK_BYTES, DEPOSIT_SLOTS_MAX, FRAME_PAGES_MAX};
use netram_proto::id::{DepositId, Epoch, Incarnation, Lsn, WriterId};
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Flag, Frame, FrameHeader, FrameKind, RefusalReason};

/// Memory for the slots of a deposit.
pub trait SlotMemory {
    /// Resizes to `slots` slots; the content of remaining slots stays.
    ///
    /// # Errors
    ///
    /// Fails without a change if the memory is not available.
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError>;

    /// Stores at most a page of bytes.
    fn write(&mut self, slot: u32, bytes: &[u8]);

    /// Copies bytes of a written slot, from offset `at` on.
    fn read(&self, slot: u32, at: usize, into: &mut [u8]);

    /// Prefetch hint: the byte at `at` of `slot` will be read soon.
    fn prefetch(&self, _slot: u32, _at: usize) {}
}

/// Distance in runs of blocks between the prefetch hint and the read. Each run is in another page and would
/// otherwise wait for memory.
const READ_AHEAD: usize = 8;

/// The requested number of slots is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSlotsError {
    /// Number of slots that this deposit could have in all.
    pub possible: u32,
}

/// Record of a slot.
#[derive(Clone, Copy, Debug, Default)]
struct SlotRecord {
    /// 0: empty.
    version: u64,
    bytes: u16,
}

/// Reply to a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "one value per frame, short-lived: a box would cost an allocation per fault"
)]
pub enum DepositReply {
    /// A frame without a body.
    Frame(FrameHeader),
    /// A `Pong` with the ping's number.
    Pong(FrameHeader, u64),
    /// A `Got` frame with the first pages of the array; their number.
    Pages(FrameHeader, [SlotRequest; FRAME_PAGES_MAX], usize),
    /// A `Gathered` frame with this body.
    Blocks(FrameHeader, Vec<u8>),
}

impl DepositReply {
    /// Header of the reply.
    pub fn header(&self) -> &FrameHeader {
        match self {
            DepositReply::Frame(header)
            | DepositReply::Pong(header, _)
            | DepositReply::Pages(header, ..)
            | DepositReply::Blocks(header, _) => header,
        }
    }
}

/// One deposit at one lender. The [`SlotMemory`] has the bytes of its slots; their versions are here.
///
/// It obeys one session at a time, the one with the highest number. Frames of an earlier session may still be
/// queued when the next has begun; they must neither overwrite nor answer anything. The deposit ends when its
/// session has been over for the lease, or at once if it has no slots.
#[derive(Clone, Debug)]
pub struct DepositServer {
    id: DepositId,
    life: Incarnation,
    owner: WriterId,
    epoch: Epoch,
    slots: Vec<SlotRecord>,
    used: u32,
    /// Time when its session ended; `None`: it stands.
    ended_at: Option<Time>,
    /// Number of slots that the owner was told to keep; `None`: any number.
    keep: Option<u32>,
    planted: FaultSwitch,
}

impl DepositServer {
    /// A deposit without slots or session. `life` is drawn anew for each, so that a returning owner learns
    /// that its pages are gone.
    pub fn new(id: DepositId, life: Incarnation, now: Time) -> DepositServer {
        DepositServer {
            id,
            life,
            owner: WriterId(0),
            epoch: Epoch(0),
            slots: Vec::new(),
            used: 0,
            ended_at: Some(now),
            keep: None,
            planted: FaultSwitch::NONE,
        }
    }

    /// Plants a fault, for tests of the simulator.
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Id of the deposit.
    pub fn id(&self) -> DepositId {
        self.id
    }

    /// Life of its content.
    pub fn life(&self) -> Incarnation {
        self.life
    }

    /// Number of the session that it obeys.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Number of slots.
    pub fn slots(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Number of slots with a page.
    pub fn used_slots(&self) -> u32 {
        self.used
    }

    /// Whether a session stands.
    pub fn has_session(&self) -> bool {
        self.ended_at.is_none()
    }

    /// Version in a slot. `None`: the slot is empty or does not exist.
    pub fn version(&self, slot: u32) -> Option<u64> {
        let slot = self.slots.get(slot as usize)?;
        (slot.version > 0).then_some(slot.version)
    }

    /// Begins a session with its first frame and returns the reply. A refused session changes nothing; an
    /// accepted one ends any before it.
    pub fn open(&mut self, header: &FrameHeader, lease: Nanos) -> FrameHeader {
        assert_eq!(header.kind, FrameKind::Deposit);
        if header.epoch <= self.epoch {
            return self.refuse(RefusalReason::Fenced, 0, 0);
        }
        self.epoch = header.epoch;
        self.owner = WriterId(header.sender);
        self.ended_at = None;
        self.keep = None;
        let mut answer = self.deposited();
        answer.mark = (lease.ms() / 1000) as u32;
        answer
    }

    /// Ends the session `epoch`.
    pub fn end_session(&mut self, epoch: Epoch, now: Time) {
        if epoch == self.epoch {
            self.ended_at.get_or_insert(now);
        }
    }

    /// Whether the deposit has ended: without a session for the lease, or without slots.
    pub fn is_over(&self, now: Time, lease: Nanos) -> bool {
        self.ended_at
            .is_some_and(|left| self.slots.is_empty() || now.since(left) >= lease)
    }

    /// Sets the number of slots that the owner should keep; `None`: any number. Returns the frame that says
    /// so, unless the owner knows already or has no session. The owner moves its pages first,
    /// and keeps those without another place.
    pub fn ask_back(&mut self, keep: Option<u32>) -> Option<FrameHeader> {
        if self.ended_at.is_some() || keep == self.keep {
            return None;
        }
        self.keep = keep;
        let mut header = self.header(FrameKind::Withdraw);
        header.flags = Flag::PARTIAL;
        header.lsn = Lsn(keep.unwrap_or(DEPOSIT_SLOTS_MAX).into());
        Some(header)
    }

    /// Number of slots that the owner was told to keep.
    pub fn keep(&self) -> Option<u32> {
        self.keep.filter(|_| self.ended_at.is_none())
    }

    /// Number of slots that were asked back and are not given back yet.
    pub fn asked_back(&self) -> u32 {
        let more = |keep| self.slots().saturating_sub(keep);
        self.keep().map_or(0, more)
    }

    /// Handles a frame of a session and returns the reply. Costs about one copy of each page; only `Resize`
    /// and `Gather` allocate.
    pub fn handle<M: SlotMemory>(&mut self, frame: &Frame<'_>, memory: &mut M) -> DepositReply {
        let header = &frame.header;
        let fenced = (header.epoch, WriterId(header.sender)) != (self.epoch, self.owner);
        if fenced && !self.planted.is(PlantedFault::SessionUnfenced) {
            return DepositReply::Frame(self.refuse(RefusalReason::Fenced, 0, 0));
        }
        match header.kind {
            FrameKind::Put => self.on_put(frame, memory),
            FrameKind::Get => self.on_get(frame),
            FrameKind::Gather => self.on_gather(frame, memory),
            FrameKind::Resize => DepositReply::Frame(self.on_resize(header.lsn.0, memory)),
            FrameKind::Ping => DepositReply::Pong(self.header(FrameKind::Pong), header.lsn.0),
            _ => self.malformed(),
        }
    }

    fn on_put<M: SlotMemory>(&mut self, frame: &Frame<'_>, memory: &mut M) -> DepositReply {
        let Ok(cut) = FramePages::parse(frame.body) else {
            return self.malformed();
        };
        let sound = |page: &super::StoredPage<'_>| {
            page.slot < self.slots() && page.version > 0 && !page.bytes.is_empty()
        };
        if !cut.pages().iter().all(sound) {
            return self.malformed();
        }
        for page in cut.pages() {
            let slot = &mut self.slots[page.slot as usize];
            self.used += u32::from(slot.version == 0);
            *slot = SlotRecord {
                version: page.version,
                bytes: page.bytes.len() as u16,
            };
            memory.write(page.slot, page.bytes);
        }
        let mut answer = self.header(FrameKind::PutAck);
        answer.mark = frame.header.mark;
        DepositReply::Frame(answer)
    }

    fn on_get(&self, frame: &Frame<'_>) -> DepositReply {
        let Ok(cut) = FramePages::parse(frame.body) else {
            return self.malformed();
        };
        let mut asked = [SlotRequest::default(); FRAME_PAGES_MAX];
        for (asked, page) in asked.iter_mut().zip(cut.pages()) {
            let Some(slot) = self
                .slots
                .get(page.slot as usize)
                .filter(|_| page.bytes.is_empty())
            else {
                return self.malformed();
            };
            let there = slot.version == page.version;
            *asked = SlotRequest {
                slot: page.slot,
                version: page.version,
                bytes: if there { slot.bytes } else { 0 },
            };
        }
        let mut answer = self.header(FrameKind::GetReply);
        answer.mark = frame.header.mark;
        DepositReply::Pages(answer, asked, cut.pages().len())
    }

    fn on_gather<M: SlotMemory>(&self, frame: &Frame<'_>, memory: &M) -> DepositReply {
        let Ok(runs) = blocks::parse(frame.body) else {
            return self.malformed();
        };
        if !runs.iter().all(|run| run.slot < self.slots()) {
            return self.malformed();
        }
        let mut body = Vec::with_capacity(blocks::answer_bytes(&runs));
        for (index, run) in runs.iter().enumerate() {
            if let Some(later) = runs.get(index + READ_AHEAD) {
                memory.prefetch(later.slot, later.blocks().next().unwrap_or(0) * BLOCK_BYTES);
            }
            let slot = self.slots[run.slot as usize];
            let whole = |block: usize| (block + 1) * BLOCK_BYTES <= usize::from(slot.bytes);
            let there = slot.version == run.version && run.blocks().all(whole);
            let count = if there { run.count } else { 0 };
            body.extend_from_slice(&(count as u16).to_le_bytes());
            for block in run.blocks().take(count) {
                let mut bytes = [0; BLOCK_BYTES];
                memory.read(run.slot, block * BLOCK_BYTES, &mut bytes);
                body.extend_from_slice(&bytes);
            }
        }
        let mut answer = self.header(FrameKind::GatherReply);
        answer.mark = frame.header.mark;
        DepositReply::Blocks(answer, body)
    }

    fn on_resize<M: SlotMemory>(&mut self, slots: u64, memory: &mut M) -> FrameHeader {
        let Some(wanted) = u32::try_from(slots)
            .ok()
            .filter(|slots| *slots <= DEPOSIT_SLOTS_MAX)
        else {
            return self.refuse(RefusalReason::NoRoom, slots, DEPOSIT_SLOTS_MAX.into());
        };
        if let Err(no) = memory.resize(wanted) {
            return self.refuse(RefusalReason::NoRoom, slots, no.possible.into());
        }
        if let Some(gone) = self.slots.get(wanted as usize..) {
            self.used -= gone.iter().filter(|slot| slot.version > 0).count() as u32;
        }
        self.slots.resize(wanted as usize, SlotRecord::default());
        self.slots.shrink_to_fit();
        self.deposited()
    }

    fn deposited(&self) -> FrameHeader {
        let mut header = self.header(FrameKind::DepositAck);
        header.lsn = Lsn(self.slots().into());
        header.stable = Lsn(self.life.0);
        header
    }

    fn malformed(&self) -> DepositReply {
        DepositReply::Frame(self.refuse(RefusalReason::Malformed, 0, 0))
    }

    fn refuse(&self, refusal: RefusalReason, asked: u64, possible: u64) -> FrameHeader {
        let mut header = self.header(FrameKind::Refuse);
        header.flags = refusal as u8;
        header.lsn = Lsn(asked);
        header.stable = Lsn(possible);
        header
    }

    fn header(&self, kind: FrameKind) -> FrameHeader {
        FrameHeader {
            epoch: self.epoch,
            sender: self.life.0,
            ..FrameHeader::new(kind)
        }
    }
}
