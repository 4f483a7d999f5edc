//! The window of a client that a lender takes for silent: it goes to a file while the lender runs, its memory
//! goes to others, and it comes back with its client. A file may stay although its window was released.

use netram_proto::id::{Incarnation, JournalId};
use netram_proto::member::{Member, MemberState, Window};
use netram_proto::planted::FaultSwitch;
use netram_proto::spill::{BindAnswer, FileVerdict, SilentWindow, WindowPlace, judge_file};
use netram_proto::time::Nanos;

use crate::check::rule02::MemberObserver;
use crate::event::WorldEvent;
use crate::lender::SimLender;
use crate::window_ring::WindowRing;
use crate::world::World;

/// The file of a window.
#[derive(Clone, Debug)]
struct WindowFile {
    member: Incarnation,
    state: MemberState,
    window: WindowRing,
    observer: MemberObserver,
}

/// A lender's file of the journal's window, and where that window is.
#[derive(Debug, Default)]
pub(crate) struct SilentFile {
    window: SilentWindow,
    file: Option<WindowFile>,
    /// Whether the file stays on the disk when its window is released.
    stays: bool,
    /// Whether the window is to be read, since its client has come.
    reading_due: bool,
}

/// A step of the lender's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowStep {
    Written,
    RoomWanted,
    Read,
}

impl SimLender {
    /// Whether the journal is served to a client that asks for it.
    pub(crate) fn serves_window(&mut self) -> bool {
        let answer = self.silent.window.on_bind();
        self.silent.reading_due |= answer == BindAnswer::Read;
        answer == BindAnswer::Serve
    }

    /// Copies bytes of the window from its file, if they are only there.
    pub(crate) fn file_window(&self) -> Option<&WindowRing> {
        let is_away = matches!(
            self.silent.window.place(),
            WindowPlace::Disk | WindowPlace::Reading
        );
        self.silent
            .file
            .as_ref()
            .filter(|_| is_away)
            .map(|file| &file.window)
    }

    /// The member has handled a frame: a window that it has let go of needs no file.
    pub(crate) fn follow_release(&mut self, before: &MemberState) {
        let after = self.state();
        let had = before.joined && before.spilled;
        if had && !(after.joined && after.spilled) && self.silent.window.on_release() && !self.silent.stays {
            self.silent.file = None;
        }
    }

    /// Takes up what a start finds on the disk. Returns the member if its window is only there.
    pub(crate) fn take_up_window(&mut self, journal: JournalId, planted: FaultSwitch) -> Option<Member> {
        self.silent.window = SilentWindow::default();
        self.silent.reading_due = false;
        let member = self.take_up_file(journal, planted);
        if member.is_none() && self.window.capacity() == 0 {
            // Its operator gives up a window whose file is missing: an old spill was put back here.
            if let Some(state) = self.saved.as_mut().filter(|state| state.joined && state.spilled) {
                (state.joined, state.spilled) = (false, false);
                self.observer = MemberObserver::default();
                self.answer_as_memory();
            }
        }
        member
    }

    fn take_up_file(&mut self, journal: JournalId, planted: FaultSwitch) -> Option<Member> {
        let file = self.silent.file.clone()?;
        match judge_file(self.saved.as_ref(), &file.state) {
            FileVerdict::TakeUp => {
                self.lost_memories.push((self.incarnation, self.state()));
                self.window.release();
                self.incarnation = file.member;
                self.observer = file.observer;
                self.saved = Some(MemberState {
                    spilled: true,
                    received: file.state.held,
                    ..file.state
                });
            }
            FileVerdict::Same => (),
            // With a memory that lived on, a lender does not start; its operator moves the file away.
            FileVerdict::Stale | FileVerdict::LivedOn => {
                self.silent.file = None;
                return None;
            }
        }
        let is_away = self.window.capacity() == 0;
        self.silent.window = SilentWindow::found(match is_away {
            true => WindowPlace::Disk,
            false => WindowPlace::Both,
        });
        let state = self.saved.filter(|_| is_away)?;
        let mut member = Member::of_file(journal, (self.incarnation, self.store), state);
        member.plant(planted);
        Some(member)
    }

    fn freeze(&mut self) -> bool {
        let Some(member) = self.member.as_mut().filter(|member| member.state().joined) else {
            return false;
        };
        if !self.silent.window.on_silence() {
            return false;
        }
        member.freeze();
        self.saved = Some(*member.state());
        true
    }

    fn write_window(&mut self) {
        if self.silent.window.place() == WindowPlace::Writing
            && let Some(state) = self.saved
        {
            self.silent.file = Some(WindowFile {
                member: self.incarnation,
                state,
                window: self.window.clone(),
                observer: self.observer.clone(),
            });
        }
    }

    /// Whether the memory has gone.
    fn drop_window(&mut self, planted: FaultSwitch) -> bool {
        let goes = self.has_no_session() && self.silent.window.on_room_wanted(planted);
        if goes {
            self.window.release();
        }
        goes
    }

    fn read_window(&mut self) {
        let Some(file) = &self.silent.file else { return };
        if self.silent.window.place() != WindowPlace::Reading {
            return;
        }
        let (payment, limit) = (self.window.payment.take(), self.window.limit);
        self.window = file.window.clone();
        (self.window.payment, self.window.limit) = (payment, limit);
        self.silent.window.on_read(true);
    }
}

/// A lender hears nothing of the journal's client for long. Its links are gone by then.
pub(crate) fn begin(world: &mut World, lender: usize) {
    world.network.break_all(&mut world.kernel, lender);
    let one = &mut world.lenders[lender];
    if !one.up {
        return;
    }
    one.end_sessions();
    if !one.freeze() {
        return;
    }
    world.kernel.hit("nemesis: clients silent");
    world
        .kernel
        .tell(|| format!("lender {lender} writes the window of a silent client"));
    world.lenders[lender].silent.stays = world.kernel.rng.chance(300);
    next_step(world, lender, WindowStep::Written);
    next_step(world, lender, WindowStep::RoomWanted);
}

fn next_step(world: &mut World, lender: usize, step: WindowStep) {
    let most = world.kernel.rng.pick(&[2, 200]);
    let delay = Nanos::from_ms(world.kernel.rng.between(1, most));
    let boot = world.lenders[lender].boot;
    world
        .kernel
        .at(delay, WorldEvent::WindowStep { lender, boot, step });
}

/// A step of the disk, for the process with number `boot`.
pub(crate) fn step(world: &mut World, lender: usize, boot: u32, step: WindowStep) {
    let fails = !world.kernel.profile.within_budget && world.kernel.rng.chance(100);
    let planted = world.kernel.planted();
    let one = &mut world.lenders[lender];
    if !one.up || one.boot != boot {
        return;
    }
    match step {
        WindowStep::Written => {
            if !fails {
                one.write_window();
                world.kernel.hit("silence: windows written");
            }
            world.lenders[lender].silent.window.on_written(!fails);
        }
        WindowStep::RoomWanted => {
            if one.drop_window(planted) {
                world.kernel.hit("silence: windows dropped from memory");
            } else if one.silent.window.is_on_disk() && world.kernel.rng.chance(500) {
                next_step(world, lender, WindowStep::RoomWanted);
            }
        }
        WindowStep::Read => {
            one.read_window();
            world.kernel.hit("silence: windows read back");
        }
    }
}

/// A client has asked for a window that is in its file only.
pub(crate) fn read_if_due(world: &mut World, lender: usize) {
    if core::mem::take(&mut world.lenders[lender].silent.reading_due) {
        next_step(world, lender, WindowStep::Read);
    }
}
