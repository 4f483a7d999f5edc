//! The spill file's side: a deposit on this machine's own disk.
//!
//! To the depot it is one more lender, and what it says is the same. Different is what can go wrong: it lives
//! as long as its owner, so nothing of it has to be found again, and nothing is synced; but a write may fail,
//! or do half of what it should. A write that fails ends the session: what was on its way is void, goes
//! elsewhere, and comes again with the next one. What cannot be read, or is not what was written, is a page
//! that is not there: the owner's seal tells.

use alloc::vec::Vec;

use super::pages::{FramePages, SlotRequest, StoredPage, page_header};
use super::server::{DepositReply, DepositServer, NoSlotsError, SlotMemory};
use netram_proto::id::{DepositId, Incarnation};
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Frame, FrameKind};

/// It never ends of itself: 136 years.
const LEASE: Nanos = Nanos::from_ms(u32::MAX as u64 * 1000);

/// Slots in a file.
pub trait SlotFile {
    /// Makes it `slots` large, with the room that it needs. What is in slots below stays. On refusal nothing
    /// changes.
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError>;

    /// Stores pages of one frame: no slot is named twice. `false`: some are not there, and what these slots
    /// had is not either.
    fn write(&mut self, pages: &[StoredPage<'_>]) -> bool;

    /// Calls `each` for each page, in order, with the bytes that lie there; with none if it cannot be read.
    fn read(&mut self, pages: &[SlotRequest], each: &mut dyn FnMut(&[u8]));
}

/// The spill file of one owner.
#[derive(Clone, Debug)]
pub struct SpillServer<F> {
    server: DepositServer,
    file: F,
    /// A write has failed in this session.
    failed: bool,
    planted: FaultSwitch,
}

impl<F: SlotFile> SpillServer<F> {
    /// Nothing in an empty file.
    pub fn new(id: DepositId, life: Incarnation, file: F) -> SpillServer<F> {
        SpillServer {
            server: DepositServer::new(id, life, Time(0)),
            file,
            failed: false,
            planted: FaultSwitch::NONE,
        }
    }

    /// Plants a fault (tests of the simulator only).
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// Which version is in which slot.
    pub fn server(&self) -> &DepositServer {
        &self.server
    }

    /// Where the slots are.
    pub fn file(&mut self) -> &mut F {
        &mut self.file
    }

    /// Takes a frame, and gives the frame that answers it. `None`: the session is over, for something could
    /// not be written. Reads and writes.
    pub fn handle(&mut self, frame: &Frame<'_>) -> Option<Vec<u8>> {
        if frame.header.kind == FrameKind::Deposit {
            self.failed = false;
            return Some(self.server.open(&frame.header, LEASE).encode(0).to_vec());
        }
        if self.failed {
            return None;
        }
        match self.server.handle(frame, &mut Unwritten(&mut self.file)) {
            DepositReply::Frame(header) => {
                if header.kind == FrameKind::PutAck && !self.write(frame.body) {
                    self.failed = true;
                    return None;
                }
                Some(header.encode(0).to_vec())
            }
            DepositReply::Pong(header, number) => {
                Some([&header.encode(8)[..], &number.to_le_bytes()].concat())
            }
            DepositReply::Pages(header, asked, count) => {
                let body = self.read(&asked[..count]);
                Some([&header.encode(body.len())[..], &body].concat())
            }
            DepositReply::Blocks(..) => unreachable!("it is asked for whole pages only (`Outcome::Spilled`)"),
        }
    }

    fn write(&mut self, body: &[u8]) -> bool {
        let Ok(cut) = FramePages::parse(body) else {
            unreachable!("the holder has taken these pages")
        };
        self.file.write(cut.pages()) || self.planted.is(PlantedFault::UnwrittenCounts)
    }

    fn read(&mut self, asked: &[SlotRequest]) -> Vec<u8> {
        let mut body = Vec::new();
        let mut heads = asked.iter();
        self.file.read(asked, &mut |bytes| {
            let Some(asked) = heads.next() else {
                unreachable!("one answer a page")
            };
            body.extend_from_slice(&page_header(asked.slot, asked.version, bytes.len()));
            body.extend_from_slice(bytes);
        });
        body
    }
}

/// The file to its holder: what is written comes together, behind it.
struct Unwritten<'a, F>(&'a mut F);

impl<F: SlotFile> SlotMemory for Unwritten<'_, F> {
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError> {
        self.0.resize(slots)
    }

    fn write(&mut self, _: u32, _: &[u8]) {}

    fn read(&self, _: u32, _: usize, _: &mut [u8]) {
        unreachable!("it is asked for whole pages only (`Outcome::Spilled`)")
    }
}
