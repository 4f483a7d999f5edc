//! An owner's spill file and its disk, which is slow, fills up, and fails.

use std::collections::VecDeque;

use netram_far_machine::deposit::{NoSlotsError, SlotFile, SlotRequest, SpillServer, StoredPage};
use netram_proto::id::{Epoch, Incarnation};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Frame, FrameKind};

use super::lenders::frame;
use super::owner::{DepositOwner, deposit_of};
use super::{Event, World};
use crate::event::FrameDirection;

/// The disk's next fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpillFault {
    /// A write fails, with half of it done.
    WriteError,
    /// A write is done by half and reported as done.
    TornWrite,
    /// A page cannot be read.
    ReadError,
}

#[derive(Clone, Debug, Default)]
pub(super) struct SimSpillFile {
    pages: Vec<Vec<u8>>,
    pub(super) room: u32,
    pub(super) next_fault: Option<SpillFault>,
    /// Whether the disk has ever lost bytes that it reported as written.
    pub(super) faulty: bool,
}

impl SlotFile for SimSpillFile {
    fn resize(&mut self, slots: u32) -> Result<(), NoSlotsError> {
        let possible = self.room.max(self.pages.len() as u32);
        if slots > possible {
            return Err(NoSlotsError { possible });
        }
        self.pages.resize(slots as usize, Vec::new());
        Ok(())
    }

    fn write(&mut self, pages: &[StoredPage<'_>]) -> bool {
        let fault = self.next_fault.filter(|next| *next != SpillFault::ReadError);
        if fault.is_some() {
            self.next_fault = None;
        }
        for (index, page) in pages.iter().enumerate() {
            let kept = &mut self.pages[page.slot as usize];
            match fault {
                Some(_) if index % 2 == 0 => {
                    kept.resize(page.bytes.len(), 0);
                    let half = page.bytes.len() / 2;
                    kept[..half].copy_from_slice(&page.bytes[..half]);
                }
                Some(_) => (),
                None => *kept = page.bytes.to_vec(),
            }
        }
        self.faulty |= fault == Some(SpillFault::TornWrite);
        fault != Some(SpillFault::WriteError)
    }

    fn read(&mut self, pages: &[SlotRequest], each: &mut dyn FnMut(&[u8])) {
        for page in pages {
            if self.next_fault == Some(SpillFault::ReadError) {
                (self.next_fault, self.faulty) = (None, true);
                each(&[]);
                continue;
            }
            let kept = &self.pages[page.slot as usize];
            each(kept.get(..page.bytes.into()).unwrap_or(kept));
        }
    }
}

/// The spill file, with requests and answers in transit, in order.
pub(super) struct SpillDisk {
    pub(super) spill: SpillServer<SimSpillFile>,
    requests: VecDeque<Vec<u8>>,
    /// Session and bytes of each answer; no bytes if a write failed.
    answers: VecDeque<(Epoch, Option<Vec<u8>>)>,
    last: [Time; 2],
    /// Whether a session is up or about to be.
    open: bool,
    pub(super) paused_until: Time,
}

impl World {
    /// The spill file of an owner that begins.
    pub(super) fn new_disk(&self, life: u64) -> Option<SpillDisk> {
        let file = SimSpillFile {
            room: self.profile.spill,
            ..SimSpillFile::default()
        };
        let mut spill = SpillServer::new(deposit_of(life), Incarnation(!life), file);
        spill.plant(self.planted);
        (self.profile.spill > 0).then_some(SpillDisk {
            spill,
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            last: [self.now; 2],
            open: false,
            paused_until: Time(0),
        })
    }

    fn disk_of(&mut self, arena: usize, life: u64) -> Option<(&mut DepositOwner, usize)> {
        let owner = self.arenas[arena].as_mut().filter(|owner| owner.life == life)?;
        let spill = owner.directory().spill()?;
        Some((owner, spill))
    }

    pub(super) fn open_disk(&mut self, arena: usize, life: u64) {
        let Some((owner, spill)) = self.disk_of(arena, life) else {
            return;
        };
        let epoch = owner.directory_mut().next_session(spill);
        let packet = frame(FrameKind::Deposit, epoch, owner.writer())
            .encode(0)
            .to_vec();
        if let Some(disk) = &mut owner.disk {
            disk.open = true;
        }
        self.send_to_disk(arena, packet);
    }

    /// Sends a request to the disk.
    pub(super) fn send_to_disk(&mut self, arena: usize, packet: Vec<u8>) {
        let at = self.now + Nanos::from_us(self.rng.between(5, 20_000));
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        let life = owner.life;
        if let Some(disk) = &mut owner.disk {
            disk.requests.push_back(packet);
            let at = disk.after(0, at);
            self.queue.push(
                at,
                Event::Disk {
                    arena,
                    life,
                    way: FrameDirection::Up,
                },
            );
        }
    }

    pub(super) fn is_disk_open(&self, arena: usize) -> bool {
        let disk = self.arenas[arena].as_ref().and_then(|owner| owner.disk.as_ref());
        disk.is_some_and(|disk| disk.open)
    }

    pub(super) fn on_disk(&mut self, arena: usize, life: u64, way: FrameDirection) {
        let now = self.now;
        let Some((owner, spill)) = self.disk_of(arena, life) else {
            return;
        };
        let epoch = owner.directory().session(spill);
        let Some(disk) = &mut owner.disk else { return };
        match way {
            FrameDirection::Up if disk.paused_until > now => {
                let until = disk.paused_until;
                self.queue.push(until, Event::Disk { arena, life, way });
            }
            FrameDirection::Up => self.run_disk(arena, life),
            FrameDirection::Down => match disk.answers.pop_front() {
                Some((session, answer)) if session == epoch && disk.open => match answer {
                    Some(packet) => self.owner_reads(arena, spill, &packet),
                    None => self.close_disk(arena),
                },
                // The answer belongs to an earlier session.
                _ => (),
            },
        }
    }

    fn run_disk(&mut self, arena: usize, life: u64) {
        let at = self.now + Nanos::from_us(self.rng.between(1, 50));
        let disk = self.arenas[arena].as_mut().and_then(|owner| owner.disk.as_mut());
        let Some(disk) = disk else { return };
        let Some(packet) = disk.requests.pop_front() else {
            return;
        };
        let Ok(frame) = Frame::parse(&packet) else {
            unreachable!("owners send frames")
        };
        let answer = disk.spill.handle(&frame);
        if answer.is_none() {
            self.coverage.hit("far: writes to a spill file that failed");
        }
        disk.answers.push_back((frame.header.epoch, answer));
        let at = disk.after(1, at);
        self.queue.push(
            at,
            Event::Disk {
                arena,
                life,
                way: FrameDirection::Down,
            },
        );
    }

    fn owner_reads(&mut self, arena: usize, spill: usize, packet: &[u8]) {
        let Ok(frame) = Frame::parse(packet) else {
            unreachable!("the spill file answers in frames")
        };
        match frame.header.kind {
            FrameKind::GetReply => self.coverage.hit("far: pages read from a spill file"),
            FrameKind::PutAck => self.coverage.hit("far: pages written to a spill file"),
            FrameKind::Refuse => self.coverage.hit("far: disks that were full"),
            _ => (),
        }
        if let Err(offence) = self.on_lender_frame(arena, spill, &frame) {
            self.fail(format!("the spill file sent an unexpected message: {offence:?}"));
        }
        self.settle(arena);
    }

    /// Ends the disk's session, after a failed write or too long a silence.
    pub(super) fn close_disk(&mut self, arena: usize) {
        let now = self.now;
        let Some(owner) = &mut self.arenas[arena] else {
            return;
        };
        let (life, spill) = (owner.life, owner.directory().spill());
        if let (Some(disk), Some(spill)) = (&mut owner.disk, spill) {
            disk.open = false;
            owner.directory_mut().on_unlinked(spill, now);
            let ms = self.rng.pick(&[1, 300, 2500]);
            self.at(Nanos::from_ms(ms), Event::OpenDisk { arena, life });
            self.settle(arena);
        }
    }

    /// Injects a fault into the disk.
    pub(super) fn inject_disk_fault(&mut self, arena: usize, fault: SpillFault) {
        let disk = self.arenas[arena].as_mut().and_then(|owner| owner.disk.as_mut());
        if let Some(disk) = disk {
            disk.spill.file().next_fault = Some(fault);
            self.coverage.hit(match fault {
                SpillFault::WriteError => "far: disks that are to fail",
                SpillFault::TornWrite => "far: disks that are to tear a write",
                SpillFault::ReadError => "far: disks that are to lose a page",
            });
        }
    }

    /// Makes the disk stand still.
    pub(super) fn stall_disk(&mut self, arena: usize, span: Nanos) {
        let until = self.now + span;
        let disk = self.arenas[arena].as_mut().and_then(|owner| owner.disk.as_mut());
        if let Some(disk) = disk {
            disk.paused_until = until;
            self.coverage.hit("far: disks that stood still");
        }
    }

    /// Gives the disk less room, or more.
    pub(super) fn fill_disk(&mut self, arena: usize) {
        let room = self.rng.between(0, self.profile.spill.into()) as u32;
        let disk = self.arenas[arena].as_mut().and_then(|owner| owner.disk.as_mut());
        if let Some(disk) = disk {
            disk.spill.file().room = room;
        }
    }

    /// Whether no disk has a fault.
    pub(super) fn disks_are_sound(&self) -> bool {
        let mut disks = { self.arenas.iter().flatten() }.filter_map(|owner| owner.disk.as_ref());
        disks.all(|disk| {
            let told = disk.answers.iter().all(|(_, answer)| answer.is_some());
            disk.open && told && disk.paused_until <= self.now
        })
    }

    /// Cancels the pending faults of all disks.
    pub(super) fn cancel_disk_faults(&mut self) {
        for disk in { self.arenas.iter_mut().flatten() }.filter_map(|owner| owner.disk.as_mut()) {
            disk.spill.file().next_fault = None;
        }
    }

    /// Ends all faults of all disks.
    pub(super) fn heal_disks(&mut self) {
        for disk in { self.arenas.iter_mut().flatten() }.filter_map(|owner| owner.disk.as_mut()) {
            disk.paused_until = Time(0);
            let file = disk.spill.file();
            (file.room, file.next_fault) = (self.profile.spill, None);
        }
    }
}

impl SpillDisk {
    /// Arrival time of a packet, behind those sent before it.
    fn after(&mut self, way: usize, at: Time) -> Time {
        self.last[way] = at.max(Time(self.last[way].0 + 1));
        self.last[way]
    }
}
