//! Lenders: their deposit servers and the memory of each deposit.

use std::collections::BTreeMap;

use netram_far_machine::deposit::{
    DepositReply, DepositServer, NoSlotsError, SlotMemory, level, page_header, slots_to_keep,
};
use netram_far_machine::limit::DEPOSIT_SLOTS_MAX;
use netram_proto::id::{DepositId, Epoch, Incarnation, WriterId};
use netram_proto::planted::FaultSwitch;
use netram_proto::time::Time;
use netram_proto::wire::{Frame, FrameHeader, FrameKind};

use super::kernel::LEASE;
use super::owner::PAGE;
use crate::rng::Rng;

/// Slots of one deposit, taken from a lender's room.
#[derive(Clone, Debug, Default)]
struct LenderMemory {
    pages: Vec<Vec<u8>>,
    /// Slots that the lender has left for this deposit, set while a frame is handled.
    free: u32,
}

impl SlotMemory for LenderMemory {
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError> {
        let possible = self.pages.len() as u32 + self.free;
        if slots > possible {
            return Err(NoSlotsError { possible });
        }
        self.pages.resize(slots as usize, Vec::new());
        Ok(())
    }

    fn write(&mut self, slot: u32, bytes: &[u8]) {
        self.pages[slot as usize] = bytes.to_vec();
    }

    fn read(&self, slot: u32, at: usize, into: &mut [u8]) {
        into.copy_from_slice(&self.pages[slot as usize][at..at + into.len()]);
    }
}

pub(super) struct DepositLender {
    pub(super) up: bool,
    /// Number of the lender's current process; connections to an earlier one are dead.
    pub(super) boot: u32,
    pub(super) room: u32,
    pub(super) paused_until: Time,
    pub(super) leaving: bool,
    /// Maximum number of slots that all deposits together may keep; `None` if there is no limit.
    pub(super) limit: Option<u32>,
    /// Number of changes of `limit`.
    pub(super) limit_changes: u64,
    hostile: bool,
    deposits: BTreeMap<DepositId, (DepositServer, LenderMemory)>,
    /// Bytes of an earlier page. A lying lender returns them.
    stale_page: Vec<u8>,
}

impl DepositLender {
    pub(super) fn new(room: u32, hostile: bool) -> DepositLender {
        DepositLender {
            up: true,
            boot: 0,
            room,
            paused_until: Time(0),
            leaving: false,
            limit: None,
            limit_changes: 0,
            hostile,
            deposits: BTreeMap::new(),
            stale_page: vec![0; PAGE],
        }
    }

    pub(super) fn is_hostile(&self) -> bool {
        self.hostile
    }

    /// Kills the lender; its deposits are lost.
    pub(super) fn die(&mut self) {
        self.up = false;
        self.leaving = false;
        self.limit = None;
        self.boot += 1;
        self.deposits.clear();
    }

    /// Ends all its faults.
    pub(super) fn heal(&mut self, room: u32) {
        self.up = true;
        self.room = room;
        self.paused_until = Time(0);
        self.leaving = false;
        self.limit = None;
    }

    pub(super) fn end_leases(&mut self, now: Time) {
        self.deposits.retain(|_, (holder, _)| !holder.is_over(now, LEASE));
    }

    /// Number of slots that all deposits use.
    pub(super) fn slots_used(&self) -> u32 {
        self.deposits
            .values()
            .map(|(_, memory)| memory.pages.len() as u32)
            .sum()
    }

    pub(super) fn deposit(&self, id: DepositId) -> Option<&DepositServer> {
        self.deposits.get(&id).map(|(holder, _)| holder)
    }

    pub(super) fn leave(&mut self, id: DepositId, epoch: Epoch, now: Time) {
        if let Some((holder, _)) = self.deposits.get_mut(&id) {
            holder.end_session(epoch, now);
        }
    }

    /// The reclaim frame due to a deposit, unless it was sent already.
    pub(super) fn poll_reclaim(&mut self, id: DepositId, epoch: Epoch) -> Option<FrameHeader> {
        let sizes = self.deposits.values();
        let sizes = sizes.map(|(holder, _)| u64::from(holder.slots()));
        let level = { self.limit }.map(|limit| level(sizes, limit.into()));
        let level = level.map(|level| level.min(DEPOSIT_SLOTS_MAX.into()) as u32);
        let (holder, _) = self.deposits.get_mut(&id)?;
        let keep = slots_to_keep(holder.slots(), holder.keep(), level);
        (holder.epoch() == epoch).then(|| holder.ask_back(keep)).flatten()
    }

    /// Handles a session's first frame; a new deposit gets the number `life`.
    pub(super) fn open(
        &mut self,
        frame: &Frame<'_>,
        id: DepositId,
        life: u64,
        now: Time,
        planted: FaultSwitch,
    ) -> Vec<u8> {
        let (holder, _) = self.deposits.entry(id).or_insert_with(|| {
            let mut holder = DepositServer::new(id, Incarnation(life), now);
            holder.plant(planted);
            (holder, LenderMemory::default())
        });
        holder.open(&frame.header, LEASE).encode(0).to_vec()
    }

    /// Handles any other frame. `None`: the deposit has ended, and so does the session.
    pub(super) fn handle(&mut self, frame: &Frame<'_>, id: DepositId, rng: &mut Rng) -> Option<Vec<u8>> {
        let room = self.room.min(self.limit.unwrap_or(u32::MAX));
        let free = room.saturating_sub(self.slots_used());
        let hostile = self.hostile;
        let (holder, memory) = self.deposits.get_mut(&id)?;
        memory.free = free;
        if frame.header.kind == FrameKind::Put {
            self.stale_page = frame
                .body
                .get(16..)
                .unwrap_or_default()
                .iter()
                .take(PAGE)
                .copied()
                .collect();
        }
        match holder.handle(frame, memory) {
            DepositReply::Frame(header) => Some(header.encode(0).to_vec()),
            DepositReply::Pong(header, number) => {
                Some([&header.encode(8)[..], &number.to_le_bytes()].concat())
            }
            DepositReply::Blocks(header, mut body) => {
                // A hostile lender changes the answer now and then, or sends nonsense.
                if hostile && rng.chance(150) {
                    let at = rng.index(body.len());
                    body[at] ^= 1;
                }
                Some([&header.encode(body.len())[..], &body].concat())
            }
            DepositReply::Pages(header, asked, count) => {
                let mut body = Vec::new();
                for asked in &asked[..count] {
                    let mut bytes = memory.pages[asked.slot as usize][..usize::from(asked.bytes)].to_vec();
                    if hostile {
                        corrupt(&mut bytes, &self.stale_page, rng);
                    }
                    body.extend_from_slice(&page_header(asked.slot, asked.version, bytes.len()));
                    body.extend_from_slice(&bytes);
                }
                Some([&header.encode(body.len())[..], &body].concat())
            }
        }
    }
}

/// Changes a hostile lender's answer: nothing, an earlier page, or a flipped bit; mostly it stays true.
fn corrupt(bytes: &mut Vec<u8>, old: &[u8], rng: &mut Rng) {
    match rng.below(12) {
        0 => bytes.clear(),
        1 => *bytes = old.to_vec(),
        2 if !bytes.is_empty() => {
            let at = rng.index(bytes.len());
            bytes[at] ^= 1;
        }
        _ => (),
    }
}

/// A frame from an owner.
pub(super) fn frame(kind: FrameKind, epoch: Epoch, owner: WriterId) -> FrameHeader {
    FrameHeader {
        epoch,
        sender: owner.0,
        ..FrameHeader::new(kind)
    }
}
