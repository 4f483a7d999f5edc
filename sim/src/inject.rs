//! Fault injection: one fault at a time, at random moments, of the kinds that the world's profile allows.

use netram_proto::journal::{LenderRole, View};
use netram_proto::port::IoError;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{Flag, FrameHeader, FrameKind};

use crate::check::{rule01, rule02};
use crate::client_faults;
use crate::damage::{damage_log, damage_slot};
use crate::event::FrameDirection;
use crate::event::WorldEvent;
use crate::intruder;
use crate::lender::{LENDER_BYTES, packet_of};
use crate::membership;
use crate::process::close::end_process;
use crate::process::life::crash;
use crate::profile::WorldFault;
use crate::silent_window;
use crate::spilling;
use crate::world::World;

/// Errors with which a system may refuse a call and grant it the next time.
const REFUSALS: [IoError; 6] = [
    IoError::EMFILE,
    IoError::ENFILE,
    IoError::ENOMEM,
    IoError::EACCES,
    IoError::EINTR,
    IoError::ENOSPC,
];

pub(crate) fn on_nemesis(world: &mut World) {
    if world.nemesis.is_stopped() || world.kernel.profile.faults.is_empty() {
        return;
    }
    let action = world.kernel.rng.pick(&world.kernel.profile.faults.clone());
    world.kernel.mark(8, action as u64);
    world.kernel.tell(|| format!("nemesis: {action:?}"));
    inject_fault(world, action);
    world.nemesis.plan(&mut world.kernel);
}

fn inject_fault(world: &mut World, action: WorldFault) {
    if !is_within_budget(world, action) {
        return;
    }
    let lender = world.kernel.rng.index(world.lenders.len());
    let host = world.kernel.rng.index(world.hosts.len());
    let client = world.processes.living(host);
    match action {
        WorldFault::BreakLink => {
            let conns = world.network.conns_to(lender);
            if !conns.is_empty() {
                let conn = world.kernel.rng.pick(&conns);
                world.kernel.hit("nemesis: links broken");
                world.network.break_conn(&mut world.kernel, conn);
            }
        }
        WorldFault::Partition => partition(world, host, lender),
        WorldFault::PauseLender => {
            world.kernel.hit("nemesis: lenders paused");
            world.lenders[lender].paused_until = world.kernel.now() + pause(world);
        }
        WorldFault::PauseClient => {
            if let Some(process) = client {
                world.kernel.hit("nemesis: clients paused");
                world.processes[process].paused_until = world.kernel.now() + pause(world);
            }
        }
        WorldFault::KillLender => kill_lender(world, lender),
        WorldFault::LoseLender => lose_lender(world, lender),
        WorldFault::PowerDomain => cut_domain(world),
        WorldFault::FillLender => {
            world.kernel.hit("nemesis: lenders filled");
            world.lenders[lender].window.limit = 0;
            let delay = Nanos::from_ms(world.kernel.rng.between(100, 3000));
            world.kernel.at(delay, WorldEvent::LenderRoomBack { lender });
        }
        WorldFault::WithdrawLender => withdraw(world, lender),
        WorldFault::SpillLender => spilling::begin(world, lender),
        WorldFault::SilenceClient => silent_window::begin(world, lender),
        WorldFault::CrashClient | WorldFault::CutClient => {
            if let Some(process) = client {
                end_process(world, process, action == WorldFault::CutClient);
            }
        }
        WorldFault::MoveLender => move_lender(world),
        WorldFault::ChangeMembership => membership::change(world),
        WorldFault::ShareLender | WorldFault::LimitClient | WorldFault::RevokeClient => {
            client_faults::inject(world, lender, action);
        }
        WorldFault::Intrude if world.data.volume_bytes() > 0 => crate::data::intruder::intrude(world),
        WorldFault::Intrude => {
            intruder::run_intruder(&mut world.kernel, &mut world.lenders, &mut world.network, lender)
        }
        _ => inject_disk_fault(world, host, action),
    }
}

/// Injects a fault into the disk of a host.
fn inject_disk_fault(world: &mut World, host: usize, action: WorldFault) {
    let in_use = world.processes.living(host).is_some();
    let World { kernel, hosts, .. } = world;
    let host = &mut hosts[host];
    match action {
        WorldFault::CrashMidway => {
            let operations = kernel.rng.between(0, 12) as u32;
            host.disk.borrow_mut().crash_after(operations);
        }
        WorldFault::SlowDisk => {
            kernel.hit("nemesis: slow disks");
            let times = kernel.rng.between(3, 60);
            let until = kernel.now() + Nanos::from_ms(kernel.rng.between(50, 2000));
            kernel.slow_disks(times, until);
        }
        WorldFault::FailSync => {
            host.disk.borrow_mut().fail_next_sync();
        }
        WorldFault::FullDisk => {
            host.disk.borrow_mut().fail_next_write();
        }
        WorldFault::RefuseCalls => {
            let error = kernel.rng.pick(&REFUSALS);
            // A few calls, or enough that any code that gives up has given up.
            let calls = kernel.rng.pick(&[1, 1, 2, 5, 20]);
            host.disk.borrow_mut().refuse(calls, error);
        }
        WorldFault::Rot | WorldFault::Unreadable | WorldFault::StaleBytes => {
            damage_log(kernel, host, in_use, action);
        }
        WorldFault::SlotDamage => damage_slot(kernel, host, in_use),
        _ => unreachable!("{action:?} is no fault of a disk"),
    }
}

/// Whether the world's budget allows `action` now.
fn is_within_budget(world: &mut World, action: WorldFault) -> bool {
    let shrinks = matches!(
        action,
        WorldFault::Partition
            | WorldFault::PauseLender
            | WorldFault::PauseClient
            | WorldFault::KillLender
            | WorldFault::LoseLender
            | WorldFault::PowerDomain
            | WorldFault::WithdrawLender
            | WorldFault::SpillLender
            | WorldFault::SilenceClient
            | WorldFault::RevokeClient
            | WorldFault::ChangeMembership
    );
    if world.kernel.profile.within_budget && shrinks {
        // One at a time: a view that shrinks around a member that is already dead has lost more than one.
        if world.nemesis.is_busy(world.kernel.now()) || !all_intact(world) {
            return false;
        }
        world.nemesis.take_budget(world.kernel.now());
    }
    true
}

/// Makes another address lead to a lender: an unused one, or one that led to another lender.
fn move_lender(world: &mut World) {
    let count = world.lenders.address_count();
    let (one, other) = (world.kernel.rng.index(count), world.kernel.rng.index(count));
    let Some(moved) = world.lenders.swap_addresses(one, other) else {
        return;
    };
    world.kernel.hit("nemesis: lenders moved");
    world
        .kernel
        .tell(|| format!("what was at l{one} is at l{other} now, and the other way round"));
    for lender in moved {
        world.network.break_all(&mut world.kernel, lender);
    }
}

fn pause(world: &mut World) -> Nanos {
    Nanos::from_ms(world.kernel.rng.pick(&[20, 200, 700, 3000]))
}

fn partition(world: &mut World, host: usize, lender: usize) {
    world.kernel.hit("nemesis: partitions");
    let until = world.kernel.now() + Nanos::from_ms(world.kernel.rng.pick(&[50, 400, 1500, 5000]));
    let ways: &[FrameDirection] = match world.kernel.rng.below(3) {
        0 => &[FrameDirection::Up],
        1 => &[FrameDirection::Down],
        _ => &[FrameDirection::Up, FrameDirection::Down],
    };
    world.network.block(host, lender, until, ways);
}

fn kill_lender(world: &mut World, lender: usize) {
    if !world.lenders[lender].up {
        return;
    }
    world.kernel.hit("nemesis: lender processes killed");
    if world.kernel.rng.chance(400) {
        world.lenders[lender].crashes_in_append = true;
        return;
    }
    world.lenders[lender].kill();
    world.network.lender_died(&mut world.kernel, lender);
}

fn lose_lender(world: &mut World, lender: usize) {
    if world.kernel.profile.within_budget && !can_spare(world, lender) {
        return;
    }
    world.kernel.hit("nemesis: lender machines lost");
    world
        .kernel
        .tell(|| format!("lender {lender}'s machine dies with its memory"));
    let conns = world.network.conns_to(lender);
    world.lenders.lose(lender, world.kernel.now());
    // A dead machine sends no farewell. Its clients notice by waiting, or when it is back and resets
    // them.
    let silent = world.kernel.rng.chance(500);
    for conn in conns.into_iter().filter(|_| !silent) {
        world.network.break_conn(&mut world.kernel, conn);
    }
    let delay = Nanos::from_ms(world.kernel.rng.pick(&[5, 300, 2000]));
    world.kernel.at(delay, WorldEvent::LenderUp { lender });
}

/// Whether every view that a crash could leave, now or after the next change, survives the loss of
/// `lender`'s memory.
fn can_spare(world: &World, lender: usize) -> bool {
    let settled = (0..world.processes.len()).all(|process| {
        let Some(serving) = world.processes.serving(process) else {
            return true;
        };
        let status = serving.writer.status();
        // A view with another rule may follow.
        let same_rule = status.rule == serving.writer.membership().rule;
        let mut lenders = status.lenders.iter();
        same_rule && lenders.all(|lender| lender.role == LenderRole::Spare || lender.member)
    });
    let survives = |view: &View| {
        let among = view
            .members
            .iter()
            .any(|member| member.incarnation == world.lenders[lender].incarnation);
        // The view counts as if it were in force: the next one may be, and names the same members until
        // the writer learns.
        !among || rule01::intact(world, view) > view.rule.answers(view.members.len())
    };
    settled
        && world.server.as_ref().is_none_or(|server| survives(&server.view))
        && world.hosts.iter().all(|host| {
            [Some(&host.view), Some(&host.cached_view), host.storing.as_ref()]
                .into_iter()
                .flatten()
                .all(survives)
        })
}

/// Whether every member of every view that a crash could leave still has its memory.
fn all_intact(world: &World) -> bool {
    let at_server = world.server.as_ref().map(|server| &server.view);
    let whole = |view: &View| rule01::intact(world, view) == view.members.len();
    at_server.is_none_or(whole)
        && world.hosts.iter().all(|host| {
            [Some(&host.view), Some(&host.cached_view), host.storing.as_ref()]
                .into_iter()
                .flatten()
                .all(whole)
        })
}

pub(crate) fn start_lender(world: &mut World, lender: usize) {
    if world.lenders[lender].up || world.lenders[lender].is_spilling {
        return;
    }
    if !world.lenders.start(&world.kernel, lender) {
        // An intruder in the writer's name may declare an LSN stable at which no record begins.
        if !world.lenders.is_untrusted(lender) {
            rule02::fail_unproven_memory(lender);
        }
        world.kernel.hit("intruder: memory forgotten at a restart");
    }
    world.kernel.tell(|| format!("lender {lender} is up"));
}

fn cut_domain(world: &mut World) {
    let domain = format!("d{}", world.kernel.rng.below(3));
    let members: Vec<usize> = (0..world.lenders.len())
        .filter(|&lender| world.lenders[lender].domain == domain)
        .collect();
    if world.kernel.profile.within_budget && members.len() > 1 {
        return;
    }
    world.kernel.hit("nemesis: power domains cut");
    for lender in members {
        lose_lender(world, lender);
    }
    if domain == "d0"
        && let Some(process) = world.processes.living(0)
    {
        crash(world, process, true);
    }
}

fn withdraw(world: &mut World, lender: usize) {
    world.kernel.hit("nemesis: lenders withdrawn");
    if world.kernel.rng.chance(500) {
        drain(world, lender);
    } else {
        give_notice(world, lender, 0);
    }
    // Its clients have that long to move away. Then it stops and is restarted with the memory it had.
    let grace = Nanos::from_ms(world.kernel.rng.between(100, 2000));
    world.kernel.at(grace, WorldEvent::LenderStops { lender });
}

/// Lets an operator drain a lender.
pub(crate) fn drain(world: &mut World, lender: usize) {
    give_notice(world, lender, Flag::DRAINS);
}

/// Asks the clients of a lender to move away. It takes no new windows.
fn give_notice(world: &mut World, lender: usize, flags: u8) {
    let header = FrameHeader {
        flags,
        ..FrameHeader::new(FrameKind::Withdraw)
    };
    let packet = packet_of(&header, &[]);
    for conn in world.network.conns_to(lender) {
        world
            .network
            .send(&mut world.kernel, conn, FrameDirection::Down, packet.clone());
    }
    world.lenders[lender].withdrawn = true;
}

/// Lets a lender that was asked to move its clients away lend again. They learn of that when they reconnect.
pub(crate) fn undrain(world: &mut World, lender: usize) {
    if core::mem::take(&mut world.lenders[lender].withdrawn) {
        world.network.break_all(&mut world.kernel, lender);
    }
}

pub(crate) fn lender_stops(world: &mut World, lender: usize) {
    if world.lenders[lender].up && world.lenders[lender].withdrawn {
        if world.kernel.profile.spills {
            return spilling::begin(world, lender);
        }
        if world.kernel.rng.chance(200) {
            return undrain(world, lender);
        }
        world.lenders[lender].kill();
        world.network.lender_died(&mut world.kernel, lender);
    }
}

/// Ends all faults: the nemesis stops, lenders run, links pass, the disk works.
pub(crate) fn heal(world: &mut World) {
    world.kernel.tell(|| String::from("everything is healed"));
    world.nemesis.stop();
    world.kernel.slow_disks(1, Time(0));
    world.network.unblock();
    for lender in 0..world.lenders.len() {
        world.lenders[lender].paused_until = Time(0);
        world.lenders[lender].crashes_in_append = false;
        world.lenders[lender].is_spilling = false;
        undrain(world, lender);
        world.lenders[lender].window.limit = LENDER_BYTES;
        client_faults::grant(world, lender);
        start_lender(world, lender);
    }
    world.processes.resume();
    world.data.heal();
    if let Some(server) = &mut world.server {
        server.heal();
    }
    for host in world.hosts.iter() {
        let mut disk = host.disk.borrow_mut();
        disk.heal();
        disk.make_readable();
    }
    world.kernel.profile.loss_permille = 0;
    membership::name_all(world);
}
