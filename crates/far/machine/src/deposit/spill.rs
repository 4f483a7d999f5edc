//! The spill file's side: a deposit on the owner's own disk.
//!
//! To the page directory it is one more lender with the same frames, but it fails differently. It lives no
//! longer than its owner, so nothing must be found again and nothing is synced. A write may fail or be
//! incomplete; that ends the session: frames in flight are void, their pages go elsewhere, and the next
//! session begins. A page that cannot be read, or has changed, counts as missing: the owner's seal detects
//! it.

use alloc::vec::Vec;

use super::pages::{FramePages, SlotRequest, StoredPage, page_header};
use super::server::{DepositReply, DepositServer, NoSlotsError, SlotMemory};
use netram_proto::id::{DepositId, Incarnation};
use netram_proto::planted::{FaultSwitch, PlantedFault};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Frame, FrameKind};

/// The deposit never ends by itself: 136 years.
const LEASE: Nanos = Nanos::from_ms(u32::MAX as u64 * 1000);

/// A file of slots.
pub trait SlotFile {
    /// Resizes to `slots` slots and allocates their space; the content of remaining slots stays.
    ///
    /// # Errors
    ///
    /// Fails without a change if the space is not available.
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError>;

    /// Stores the pages of one frame; no slot occurs twice. `false`: some were not stored, and the old
    /// content of these slots is lost.
    fn write(&mut self, pages: &[StoredPage<'_>]) -> bool;

    /// Calls `each` for every page, in order, with the stored bytes; with none if they cannot be read.
    fn read(&mut self, pages: &[SlotRequest], each: &mut dyn FnMut(&[u8]));
}

/// The spill file of one owner.
#[derive(Clone, Debug)]
pub struct SpillServer<F> {
    server: DepositServer,
    file: F,
    /// Whether a write has failed in this session.
    failed: bool,
    planted: FaultSwitch,
}

impl<F: SlotFile> SpillServer<F> {
    /// An empty spill file.
    pub fn new(id: DepositId, life: Incarnation, file: F) -> SpillServer<F> {
        SpillServer {
            server: DepositServer::new(id, life, Time(0)),
            file,
            failed: false,
            planted: FaultSwitch::NONE,
        }
    }

    /// Plants a fault, for tests of the simulator.
    pub fn plant(&mut self, planted: FaultSwitch) {
        self.planted = planted;
    }

    /// The deposit: which version is in which slot.
    pub fn server(&self) -> &DepositServer {
        &self.server
    }

    /// The file of the slots.
    pub fn file(&mut self) -> &mut F {
        &mut self.file
    }

    /// Handles a frame by reading and writing, and returns the encoded reply. `None`: a write failed, so the
    /// session is over.
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
            DepositReply::Blocks(..) => {
                unreachable!("only whole pages are requested of it (`GatherOutcome::Spilled`)")
            }
        }
    }

    fn write(&mut self, body: &[u8]) -> bool {
        let Ok(cut) = FramePages::parse(body) else {
            unreachable!("the deposit has accepted these pages")
        };
        self.file.write(cut.pages()) || self.planted.is(PlantedFault::UnwrittenCounts)
    }

    fn read(&mut self, asked: &[SlotRequest]) -> Vec<u8> {
        let mut body = Vec::new();
        let mut heads = asked.iter();
        self.file.read(asked, &mut |bytes| {
            let Some(asked) = heads.next() else {
                unreachable!("one reply per page")
            };
            body.extend_from_slice(&page_header(asked.slot, asked.version, bytes.len()));
            body.extend_from_slice(bytes);
        });
        body
    }
}

/// Slot memory that stores nothing: the pages of a frame are written together, after the deposit has accepted
/// it.
struct Unwritten<'a, F>(&'a mut F);

impl<F: SlotFile> SlotMemory for Unwritten<'_, F> {
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError> {
        self.0.resize(slots)
    }

    fn write(&mut self, _: u32, _: &[u8]) {}

    fn read(&self, _: u32, _: usize, _: &mut [u8]) {
        unreachable!("only whole pages are requested of it (`GatherOutcome::Spilled`)")
    }
}
