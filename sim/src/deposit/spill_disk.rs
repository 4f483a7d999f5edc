//! The disk of an owner's spill file, which is slow, fills up, and fails.

use std::collections::VecDeque;

use netram_far_machine::deposit::SpillServer;
use netram_proto::id::{Epoch, Incarnation};
use netram_proto::time::Time;
use netram_proto::wire::Frame;

use super::kernel::{DepositKernel, Event};
use super::owner::deposit_of;
use super::spill::SimSpillFile;
use crate::event::FrameDirection;

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

impl SpillDisk {
    /// The spill file of an owner that begins. `None`: owners of this world have none.
    pub(super) fn new(kernel: &DepositKernel, life: u64) -> Option<SpillDisk> {
        let room = kernel.profile.spill;
        let file = SimSpillFile::new(room);
        let mut spill = SpillServer::new(deposit_of(life), Incarnation(!life), file);
        spill.plant(kernel.planted());
        (room > 0).then_some(SpillDisk {
            spill,
            requests: VecDeque::new(),
            answers: VecDeque::new(),
            last: [kernel.now(); 2],
            open: false,
            paused_until: Time(0),
        })
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Begins a session.
    pub(super) fn open(&mut self) {
        self.open = true;
    }

    /// Ends the session.
    pub(super) fn close(&mut self) {
        self.open = false;
    }

    /// Whether it has no fault.
    pub(super) fn is_sound(&self, now: Time) -> bool {
        let told = self.answers.iter().all(|(_, answer)| answer.is_some());
        self.open && told && self.paused_until <= now
    }

    /// Sends a request of the owner, which would arrive at `at` by itself.
    pub(super) fn send(
        &mut self,
        kernel: &mut DepositKernel,
        (arena, life): (usize, u64),
        packet: Vec<u8>,
        at: Time,
    ) {
        self.requests.push_back(packet);
        let way = FrameDirection::Up;
        kernel.push(self.after(0, at), Event::Disk { arena, life, way });
    }

    /// Handles the next request. Its answer would arrive at `at` by itself.
    pub(super) fn serve(&mut self, kernel: &mut DepositKernel, (arena, life): (usize, u64), at: Time) {
        let Some(packet) = self.requests.pop_front() else {
            return;
        };
        let Ok(frame) = Frame::parse(&packet) else {
            unreachable!("owners send frames")
        };
        let answer = self.spill.handle(&frame);
        if answer.is_none() {
            kernel.hit("far: writes to a spill file that failed");
        }
        self.answers.push_back((frame.header.epoch, answer));
        let way = FrameDirection::Down;
        kernel.push(self.after(1, at), Event::Disk { arena, life, way });
    }

    /// Takes the next answer, without bytes if a write failed. `None`: the answer belongs to an earlier
    /// session.
    pub(super) fn take_answer(&mut self, session: Epoch) -> Option<Option<Vec<u8>>> {
        let (epoch, answer) = self.answers.pop_front()?;
        (epoch == session && self.open).then_some(answer)
    }

    /// Arrival time of a packet, behind those sent before it.
    fn after(&mut self, way: usize, at: Time) -> Time {
        self.last[way] = at.max(Time(self.last[way].0 + 1));
        self.last[way]
    }
}
