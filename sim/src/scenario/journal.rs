//! A program appends, waits, trims and reads; its process and machine die and come back.

use netram_proto::id::Lsn;
use netram_proto::journal::RecoveryError;
use netram_proto::port::{AppendError, CommitTicket, Durability, LogError, RecordKind};
use netram_proto::time::Nanos;

use crate::check;
use crate::client;
use crate::event_loop;
use crate::inject::heal;
use crate::process::OpenFailure;
use crate::process::life::crash;
use crate::world::World;

/// Number of refused openings before everything is healed.
const TRIES: u32 = 4;

pub(super) fn run(world: &mut World) {
    let lives = world.kernel.rng.between(1, 4);
    for _ in 0..lives {
        if let Some(process) = open(world, 0) {
            let deeds = world.kernel.rng.between(5, 60);
            work(world, process, deeds);
            if world.kernel.rng.chance(700) {
                let cut = world.kernel.rng.chance(500);
                crash(world, process, cut);
            }
            end_of(world, process);
        }
    }
    heal(world);
    settle_down(world, 0);
}

/// Opens the journal on `host`, with as many tries as it takes. `None`: the process died while it opened, or
/// there is nothing to open.
pub(super) fn open(world: &mut World, host: usize) -> Option<usize> {
    for _ in 0..TRIES {
        match client::open(world, host, false) {
            Ok(process) => return Some(process),
            Err(OpenFailure::Crashed) => return None,
            Err(failure) => count(world, &failure),
        }
        let pause = world.kernel.rng.between(10, 2000);
        event_loop::run_for(world, Nanos::from_ms(pause));
    }
    open_healed(world, host)
}

/// Opens the journal with everything healed. If that fails there must be a reason.
pub(super) fn open_healed(world: &mut World, host: usize) -> Option<usize> {
    let rested = world.nemesis.is_stopped();
    heal(world);
    event_loop::run_for(world, Nanos::from_ms(100));
    let result = client::open(world, host, false);
    let opened = match result {
        Ok(process) => Some(process),
        Err(OpenFailure::Crashed) => None,
        Err(failure) => {
            count(world, &failure);
            check::liveness::refused(world, host, &failure);
            if matches!(failure, OpenFailure::Refused(RecoveryError::Fenced { .. })) {
                return None;
            }
            match client::open(world, host, true) {
                Ok(process) => Some(process),
                Err(failure) => {
                    count(world, &failure);
                    check::liveness::refused_loss(world, host, &failure);
                    None
                }
            }
        }
    };
    if !rested {
        world.nemesis.resume(&mut world.kernel);
    }
    opened
}

fn count(world: &mut World, failure: &OpenFailure) {
    world.kernel.hit(match failure {
        OpenFailure::Crashed => "openings cut off",
        OpenFailure::Io(_) => "openings refused: disk",
        OpenFailure::Refused(RecoveryError::Missing { .. }) => "openings refused: members missing",
        OpenFailure::Refused(RecoveryError::Fenced { .. }) => "openings refused: fenced",
        OpenFailure::Refused(RecoveryError::Unproven { .. }) => "openings refused: unproven",
        OpenFailure::Corrupt { .. } => "openings refused: damage",
        OpenFailure::Unusable(_) => "openings refused: file unusable",
    });
}

/// Runs the program: it appends mostly, waits often, and now and then trims, reads or does nothing.
pub(super) fn work(world: &mut World, process: usize, deeds: u64) {
    let mut last: Option<CommitTicket> = None;
    for _ in 0..deeds {
        if !world.processes.alive(process) {
            return;
        }
        match world.kernel.rng.below(20) {
            0..8 => {
                for _ in 0..world.kernel.rng.between(1, 6) {
                    match append(world, process) {
                        Ok(ticket) => last = Some(ticket),
                        Err(AppendError::Full { .. }) => trim(world, process),
                        Err(AppendError::TooLarge { .. } | AppendError::Closed) => (),
                        Err(AppendError::DiskFailed(_) | AppendError::Fenced { .. }) => return,
                    }
                }
            }
            8..14 => {
                if let Some(ticket) = last {
                    let durability = match world.kernel.rng.below(10) {
                        0 => Durability::Disk,
                        1 => Durability::Lazy,
                        2 if world.kernel.profile.can_count() => Durability::Both,
                        _ => Durability::Remote,
                    };
                    if client::wait(world, process, ticket, durability).is_err() {
                        return;
                    }
                }
            }
            14 => trim(world, process),
            15 => read(world, process),
            _ => {
                let ms = world.kernel.rng.pick(&[0, 1, 5, 20, 100, 600]);
                let extra = world.kernel.rng.below(1_000_000);
                event_loop::run_for(world, Nanos(Nanos::from_ms(ms).0 + extra));
            }
        }
    }
}

pub(super) fn append(world: &mut World, process: usize) -> Result<CommitTicket, AppendError> {
    let max = world
        .kernel
        .profile
        .payload_max
        .min(world.log_state(process).payload_max);
    let length = world.kernel.rng.index(max + 1);
    let kind = RecordKind(16 + world.kernel.rng.below(4) as u8);
    let mut noise = world.kernel.rng.fork();
    client::append(world, process, kind, length, &mut |payload| noise.fill(payload))
}

fn trim(world: &mut World, process: usize) {
    let state = world.log_state(process);
    let host = world.processes[process].host;
    let ends = world.hosts[host]
        .history
        .ends_between(state.head, state.stable)
        .to_vec();
    if !ends.is_empty() {
        let head = world.kernel.rng.pick(&ends).lsn;
        // A refusal shows in the next append.
        let _ = client::trim(world, process, head);
    }
}

/// Reads from the head: every record is the appended one, or the log reports that it cannot be read.
fn read(world: &mut World, process: usize) {
    let state = world.log_state(process);
    let host = world.processes[process].host;
    let mut found: Vec<u8> = Vec::new();
    let mut places: Vec<(Lsn, Lsn)> = Vec::new();
    let result = client::read(world, process, state.head, &mut |record| {
        places.push((record.lsn, record.next));
        found.extend_from_slice(record.payload);
        true
    });
    match result {
        Ok(end) => {
            let history = &world.hosts[host].history;
            let mut wanted: Vec<u8> = Vec::new();
            for &(lsn, next) in &places {
                let record = history.bytes(lsn, next);
                let payload = u32::from_le_bytes([record[36], record[37], record[38], record[39]]) as usize;
                wanted.extend_from_slice(&record[40..40 + payload]);
            }
            if found != wanted || end < state.stable {
                check::rule06::misread(state.head, end);
            }
            world.kernel.hit("logs read");
        }
        Err(LogError::Closed | LogError::Io(_)) => (),
        Err(error) => check::rule06::unread(world, host, error),
    }
}

/// Ends a process that is left over before the next one begins; the real one holds a lock on its files.
fn end_of(world: &mut World, process: usize) {
    if world.processes.alive(process) {
        crash(world, process, false);
    }
    let pause = world.kernel.rng.pick(&[0, 1, 30, 400, 2500]);
    event_loop::run_for(world, Nanos::from_ms(pause));
}

/// Heals everything: the journal opens, a commit ends, the view grows back, and one more crash loses nothing.
pub(super) fn settle_down(world: &mut World, host: usize) {
    for round in 0..2 {
        let Some(process) = world.processes.living(host).or_else(|| open_healed(world, host)) else {
            return;
        };
        // Long enough for a silent lender to be given up, found again, joined and filled.
        event_loop::run_for(world, Nanos::from_ms(6000));
        trim_all(world, process);
        if let Ok(ticket) = append(world, process) {
            let _ = client::wait(world, process, ticket, Durability::Remote);
        }
        event_loop::run_for(world, Nanos::from_ms(2000));
        if !world.lenders.has_liars() {
            check::liveness::grown_back(world, process);
        }
        let cut = world.kernel.rng.chance(500);
        if round == 0 {
            crash(world, process, cut);
        }
    }
}

pub(super) fn trim_all(world: &mut World, process: usize) {
    let stable = world.log_state(process).stable;
    let _ = client::trim(world, process, stable);
}
