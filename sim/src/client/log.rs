//! Calls of a client program. A call that must wait runs the world until it can return.

use std::rc::Rc;

use netram_proto::id::{Epoch, Lsn};
use netram_proto::planted::PlantedFault;
use netram_proto::port::{
    AppendError, CommitTicket, CommitVotes, Durability, LogError, LogState, Record, RecordKind, RecordLog,
    WaitError,
};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{ChainPoint, record_bytes};

use crate::check;
use crate::event_loop;
use crate::inject::heal;
use crate::log_reading::{link_at, read_records};
use crate::process::append::append_now;
use crate::process::events::settle;
use crate::process::life::{crash, died_midway, died_on_backing_disk, with_serving};
use crate::process::serve::give_up;
use crate::process::{ServingState, payload_max};
use crate::world::{World, WorldHandle};

/// A program that has waited this long gives up and restarts its process. Only a failed disk together with a
/// lost member can make a wait this long.
pub(crate) const WAIT_MAX: Nanos = Nanos::from_ms(30_000);

/// [`RecordLog::append`].
///
/// # Errors
///
/// Fails as the log does: it is closed, fenced or full, or the payload is too long.
pub(crate) fn append(
    world: &mut World,
    process: usize,
    kind: RecordKind,
    length: usize,
    fill: &mut dyn FnMut(&mut [u8]),
) -> Result<CommitTicket, AppendError> {
    died_on_backing_disk(world, process);
    let mut begun = world.kernel.now();
    loop {
        let Some(serving) = world.processes.serving(process) else {
            return Err(AppendError::Closed);
        };
        if let Some(fenced) = fenced(serving) {
            return Err(AppendError::Fenced {
                held: fenced.0,
                seen: fenced.1,
            });
        }
        if let Some(error) = serving.poisoned {
            return Err(AppendError::DiskFailed(error));
        }
        let (bytes, max) = (record_bytes(length, false), payload_max(&world.kernel.profile));
        if length > max {
            return Err(AppendError::TooLarge { bytes: length, max });
        }
        let end = serving.tail.lsn.plus(bytes as u64);
        let (head, capacity) = (serving.superblock.head.lsn, serving.log.capacity());
        if end.since(head) > capacity {
            let used = serving.tail.lsn.since(head);
            return Err(AppendError::Full { used, capacity });
        }
        let room = serving.writer.has_room(bytes as u64);
        if room && end.since(serving.writer.stable()) <= world.kernel.profile.window {
            break;
        }
        world.kernel.hit(match room {
            true => "appends that waited for the disk",
            false => "shared: appends that waited for the server",
        });
        step_until_timeout(world, process, &mut begun).map_err(|()| AppendError::Closed)?;
    }
    let ticket = append_now(world, process, kind, length, fill);
    settle(world, process);
    ticket.ok_or(AppendError::Closed)
}

/// [`RecordLog::wait`].
///
/// # Errors
///
/// Fails if the record is not held when the log ends, or the program has waited long enough.
pub(crate) fn wait(
    world: &mut World,
    process: usize,
    ticket: CommitTicket,
    durability: Durability,
) -> Result<CommitVotes, WaitError> {
    died_on_backing_disk(world, process);
    let early = world.data.reads_to_send() && world.kernel.planted().is(PlantedFault::SentBeforeDisk);
    if durability == Durability::Lazy || early {
        return Ok(votes(world, process, ticket.end));
    }
    let mut begun = world.kernel.now();
    loop {
        match answer(world, process, ticket.end, durability) {
            Some(Ok(votes)) => {
                check::rule08::done(world, process, ticket.end);
                return Ok(votes);
            }
            Some(Err(error)) => return fail_wait(world, process, ticket, error),
            None => (),
        }
        if step_until_timeout(world, process, &mut begun).is_err() {
            return fail_wait(world, process, ticket, WaitError::Closed);
        }
    }
}

fn fail_wait(
    world: &mut World,
    process: usize,
    ticket: CommitTicket,
    error: WaitError,
) -> Result<CommitVotes, WaitError> {
    world.kernel.hit("commits of unknown fate");
    if world.kernel.planted().is(PlantedFault::CutOffIsDone) {
        check::rule08::done(world, process, ticket.end);
        return Ok(CommitVotes::default());
    }
    Err(error)
}

fn answer(
    world: &World,
    process: usize,
    end: Lsn,
    durability: Durability,
) -> Option<Result<CommitVotes, WaitError>> {
    let Some(serving) = world.processes.serving(process) else {
        return Some(Err(WaitError::Closed));
    };
    let writer = &serving.writer;
    let (acked, stable) = (writer.acked() >= end, writer.stable() >= end);
    // The disk may have more of a fenced writer's log than the newer epoch will ever know: only
    // acknowledged records count here too.
    let done = match durability {
        Durability::Lazy => true,
        Durability::Remote => acked,
        Durability::Disk => acked && stable,
        Durability::Both => acked && stable && writer.rule_satisfied(end),
    };
    if done {
        return Some(Ok(writer.votes(end)));
    }
    if let Some((held, seen)) = fenced(serving) {
        return Some(Err(WaitError::Fenced { held, seen }));
    }
    let error = serving.poisoned?;
    let hopeless = match durability {
        Durability::Remote | Durability::Lazy => !writer.may_still_be_acked(end),
        Durability::Disk | Durability::Both => true,
    };
    hopeless.then_some(Err(WaitError::DiskFailed(error)))
}

fn votes(world: &World, process: usize, end: Lsn) -> CommitVotes {
    world
        .processes
        .serving(process)
        .map(|serving| serving.writer.votes(end))
        .unwrap_or_default()
}

/// Runs one event while a program waits. `Err`: it has waited long enough.
fn step_until_timeout(world: &mut World, process: usize, begun: &mut Time) -> Result<(), ()> {
    event_loop::step(world);
    if world.kernel.now().since(*begun) <= WAIT_MAX {
        return Ok(());
    }
    if !world.nemesis.is_stopped() {
        // It was disturbed all the time. With everything healed the wait must end.
        heal(world);
        *begun = world.kernel.now();
        return Ok(());
    }
    check::liveness::waited(world, process);
    world.kernel.hit("waits given up after a disk failure");
    crash(world, process, false);
    Err(())
}

/// [`RecordLog::read`].
///
/// # Errors
///
/// Fails if the log cannot be read from `from`.
pub(crate) fn read(
    world: &mut World,
    process: usize,
    from: Lsn,
    each: &mut dyn FnMut(Record<'_>) -> bool,
) -> Result<Lsn, LogError> {
    let read = with_serving(world, process, |_, serving| {
        let (head, stable) = (serving.superblock.head.lsn, serving.writer.stable());
        if from < head || from > stable {
            return Err(LogError::OutOfRange(from));
        }
        let start = link_on_disk(serving, from)?;
        read_records(&serving.log, start, stable, each)
    });
    died_midway(world, process);
    match read {
        Some(result) if world.processes.alive(process) => result,
        _ => Err(LogError::Closed),
    }
}

/// [`RecordLog::trim`].
///
/// # Errors
///
/// Fails if the new head is not stable, or its store fails.
pub(crate) fn trim(world: &mut World, process: usize, head: Lsn) -> Result<(), LogError> {
    died_on_backing_disk(world, process);
    let trimmed = with_serving(world, process, |world, serving| {
        if head < serving.superblock.head.lsn || head > serving.writer.stable() {
            return Err(LogError::OutOfRange(head));
        }
        if let Some(error) = serving.poisoned {
            return Err(LogError::Io(error));
        }
        if serving
            .writer
            .server_ack()
            .is_some_and(|kept| kept.end.lsn < head)
        {
            return Err(LogError::OutOfRange(head));
        }
        let link = link_on_disk(serving, head)?;
        if let Err(failure) = serving.store_head(link) {
            let planted = world.kernel.planted().is(PlantedFault::RefusalIsFinal);
            if failure.is_final() || planted {
                give_up(world, process, serving, failure);
            }
            return Err(LogError::Io(failure.error));
        }
        let host = world.processes[process].host;
        world.hosts[host].history.head = head;
        world.kernel.hit("trims");
        Ok(())
    });
    settle(world, process);
    match trimmed {
        Some(result) if world.processes.alive(process) => result,
        _ => Err(LogError::Closed),
    }
}

/// The chain point at `lsn`: from the record that begins there, or the stable end.
fn link_on_disk(serving: &ServingState, lsn: Lsn) -> Result<ChainPoint, LogError> {
    if lsn == serving.superblock.head.lsn {
        return Ok(serving.superblock.head);
    }
    if lsn == serving.writer.stable() {
        return Ok(serving.stable_end());
    }
    link_at(&serving.log, lsn)
}

fn fenced(serving: &ServingState) -> Option<(Epoch, Epoch)> {
    let seen = serving.writer.fenced()?;
    Some((serving.writer.epoch(), seen))
}

/// A [`RecordLog`] in the world, for `rvm`.
#[derive(Clone)]
pub struct SimLog {
    world: WorldHandle,
    process: usize,
}

impl SimLog {
    /// The log that `process` serves.
    pub fn new(world: &WorldHandle, process: usize) -> SimLog {
        SimLog {
            world: Rc::clone(world),
            process,
        }
    }
}

impl RecordLog for SimLog {
    fn append(
        &self,
        kind: RecordKind,
        length: usize,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<CommitTicket, AppendError> {
        append(&mut self.world.borrow_mut(), self.process, kind, length, fill)
    }

    fn wait(&self, ticket: CommitTicket, durability: Durability) -> Result<CommitVotes, WaitError> {
        wait(&mut self.world.borrow_mut(), self.process, ticket, durability)
    }

    fn state(&self) -> LogState {
        let mut world = self.world.borrow_mut();
        check::liveness::called(&mut world);
        world.log_state(self.process)
    }

    fn read(&self, from: Lsn, each: &mut dyn FnMut(Record<'_>) -> bool) -> Result<Lsn, LogError> {
        read(&mut self.world.borrow_mut(), self.process, from, each)
    }

    fn trim(&self, head: Lsn) -> Result<(), LogError> {
        trim(&mut self.world.borrow_mut(), self.process, head)
    }
}
