//! Opening a journal, step by step as the real driver does it. Every step may be the last: the process can
//! die between any two disk operations, and at any event while it waits for lenders.

use netram_block_machine::{ReplicaCondition, ReplicaHeader};
use netram_proto::id::{EpochSalt, Lsn, WriterId};
use netram_proto::journal::{
    AssembleOptions, AssembledLog, LogFile, LogScan, PeerAnswer, PeerWindow, Recovery, RecoveryError,
    SlotPair, View, Voter, assemble, beyond_repair,
};
use netram_proto::limit::SLOT_BYTES;
use netram_proto::planted::PlantedFault;
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{ChainPoint, CheckedRecord};

use crate::check;
use crate::disk::SimFile;
use crate::event_loop;
use crate::lenders::lender_at;
use crate::process::events::settle;
use crate::process::life::{died_midway, reap, spawn};
use crate::process::{OpenFailure, OpenedFiles, OpeningState, ProcessPhase, ServingState, describe_view};
use crate::world::World;

/// Waiting time for all members; those needed get [`RECOVERY_TIMEOUT`].
pub(crate) const ALL_MEMBERS_WAIT: Nanos = Nanos::from_ms(300);
pub(crate) const RECOVERY_TIMEOUT: Nanos = Nanos::from_ms(4000);

/// The verdict, the state of each member, and the windows of those that answered.
type MemberAnswers = (Result<(), RecoveryError>, Vec<PeerAnswer>, Vec<PeerWindow>);

/// Opens the journal on `host` in a new process, while the world runs. Returns the process.
///
/// # Errors
///
/// Fails if the process dies, the disk fails or is damaged, or recovery refuses.
pub(crate) fn open(world: &mut World, host: usize, accept_loss: bool) -> Result<usize, OpenFailure> {
    world.kernel.hit("openings");
    let process = spawn(world, host);
    world
        .kernel
        .tell(|| format!("process {process} opens the journal on host {host}, accept_loss {accept_loss}"));
    let before = check::rule18::newest_epoch(world, host);
    let result = open_in(world, process, accept_loss);
    let result = match result {
        Err(_) if died_midway(world, process) => Err(OpenFailure::Crashed),
        other => other,
    };
    if let Err(failure) = &result {
        world
            .kernel
            .tell(|| format!("process {process} could not open: {failure:?}"));
        reap(world, process);
        world.hosts.refresh_view(host);
        if matches!(failure, OpenFailure::Corrupt { .. }) && world.processes[process].proven {
            // Members may hold the following records, and only reading them shows that they do not fit.
            world.kernel.hit("openings that found damage after their proof");
        }
        if matches!(failure, OpenFailure::Refused(_)) {
            check::rule18::refused(world, process, before);
        }
    }
    result.map(|()| process)
}

fn open_in(world: &mut World, process: usize, accept_loss: bool) -> Result<(), OpenFailure> {
    let host = world.processes[process].host;
    let mut files = open_files(world, host)?;
    world
        .kernel
        .tell(|| format!("process {process} finds {}", describe_view(&files.view)));
    if is_taken_over(world, host)? {
        world.hosts[host].replica_closed = None;
    }
    let writer = world.processes[process].writer;
    // An old error report does not matter: the following steps read and sync again.
    let _ = files.log.sync();
    // On a copied disk always: records that another machine's disk had proven stable, were taken from
    // members and lost by a failed sync here would pass for proof about this disk. The simulator does not
    // cover a copy, a failed sync and a kept cache together.
    if world.kernel.profile.drops_cache || host != 0 {
        let host = &world.hosts[host];
        host.disk.borrow_mut().drop_cache(host.log_file);
    }
    let limit = files.superblock.head.lsn.plus(files.log.capacity());
    let scan = files.log.scan(files.superblock.head, limit, &mut |_| true);
    files.view = match world.hosts[host].replica_closed {
        Some(_) => files.view.restored(writer),
        None => files.view.claimed(writer),
    };
    files.view.salt = Some(drawn_salt(writer));
    let inquiry = probe(world, process, &files, scan, accept_loss)?;
    store_view(world, host, &mut files)?;
    let windows = recover(world, process, &files, scan, inquiry.as_ref(), accept_loss)?;
    if world.kernel.planted().is(PlantedFault::ReleaseBeforeSync) {
        release(world, host, &mut files, scan.end.lsn)?;
    }
    let known = AssembleOptions {
        proof: files.superblock.stable.max(files.view.proof()),
        limit,
        accept_loss,
        local_durable: world.hosts[host].replica_closed.map(|_| files.superblock.stable),
    };
    let opens = &mut |record: CheckedRecord<'_>| opens(world, host, record.header.lsn, record.bytes);
    let taken = assemble(&files.log, &scan, &windows, known, world.kernel.planted(), opens)?;
    world
        .kernel
        .tell(|| format!("local log to {}, {known:?}, {taken:?}", scan.end.lsn));
    count_recovery(world, &taken, accept_loss);
    mark_taken_over(world, host)?;
    files.superblock.stable = taken.end.lsn;
    files.log.store(&mut files.log_slots, &files.superblock)?;
    if !world.kernel.planted().is(PlantedFault::ReleaseBeforeSync) {
        release(world, host, &mut files, taken.end.lsn)?;
    }
    not_given_up(world)?;
    let head = files.superblock.head;
    merged(world, &mut files, taken.end)?;
    check::rule05::recovered(world, process, taken.end, head, accept_loss);
    world.hosts[host].replica_closed = None;
    join(world, process, &files, taken.end);
    serve(world, process, files, taken)
}

/// The salt that a process draws. Its writer id is already random and its own.
fn drawn_salt(writer: WriterId) -> EpochSalt {
    EpochSalt(u128::from(writer.0).to_le_bytes())
}

/// Refuses the opening if the server has given up the node that offers its records.
fn not_given_up(world: &World) -> Result<(), OpenFailure> {
    match &world.server {
        Some(server) if server.has_fenced => {
            let seen = server.fence();
            Err(OpenFailure::Refused(RecoveryError::Fenced { seen }))
        }
        _ => Ok(()),
    }
}

/// For a node: empties the log, whose offered records the server has, before the node joins again.
fn merged(world: &mut World, files: &mut OpenedFiles, end: ChainPoint) -> Result<(), OpenFailure> {
    if world.server.is_some() {
        files.superblock.head = end;
        files.log.store(&mut files.log_slots, &files.superblock)?;
    }
    Ok(())
}

/// For a node: joins the region with a journal that begins at `end`.
fn join(world: &mut World, process: usize, files: &OpenedFiles, end: ChainPoint) {
    let host = world.processes[process].host;
    let Some(server) = &mut world.server else {
        return;
    };
    world.hosts[host].history.head = end.lsn;
    world.kernel.hit("shared: joinings");
    if end.lsn > server.merged_end.lsn {
        world.kernel.hit("shared: joinings that offered records");
    }
    server.joined(process, end, files.view.clone());
}

fn open_files(world: &mut World, host: usize) -> Result<OpenedFiles, OpenFailure> {
    let host = &world.hosts[host];
    let view_file = SimFile::new(&host.disk, host.view_file);
    let (view_slots, payload) = SlotPair::open(&view_file, View::MAGIC, SLOT_BYTES)?;
    let view = View::decode(&payload).map_err(|_| OpenFailure::Unusable("view"))?;
    let (mut log, log_slots, superblock) = LogFile::open(SimFile::new(&host.disk, host.log_file))?;
    log.plant(world.kernel.planted());
    if superblock.journal != view.journal {
        return Err(OpenFailure::Unusable("log of another journal"));
    }
    Ok(OpenedFiles {
        log,
        log_slots,
        superblock,
        view_file,
        view_slots,
        view_full: view.clone(),
        view,
    })
}

/// View of the directory on `host`, and the LSN up to which its log is proven to be on a disk. A deletion
/// needs both.
pub(crate) fn proven_on(world: &mut World, host: usize) -> Result<(View, Lsn), OpenFailure> {
    let files = open_files(world, host)?;
    let limit = files.superblock.head.lsn.plus(files.log.capacity());
    let scan = files.log.scan(files.superblock.head, limit, &mut |_| true);
    let proof = scan.proof.max(files.superblock.stable).max(files.view.proof());
    Ok((files.view, proof.min(scan.end.lsn)))
}

/// Whether a data lender's disk was taken over, so that it is an ordinary journal.
fn is_taken_over(world: &World, host: usize) -> Result<bool, OpenFailure> {
    let Some(file) = world.hosts[host].header_file else {
        return Ok(false);
    };
    let file = SimFile::new(&world.hosts[host].disk, file);
    let (_, payload) = SlotPair::open(&file, ReplicaHeader::MAGIC, SLOT_BYTES)?;
    let standing = ReplicaHeader::decode(&payload).map_err(|_| OpenFailure::Unusable("standing"))?;
    Ok(standing.condition == ReplicaCondition::TakenOver)
}

/// Marks the disk as taken over. The log has everything, and the members are still named.
fn mark_taken_over(world: &mut World, host: usize) -> Result<(), OpenFailure> {
    let Some(file) = world.hosts[host].header_file else {
        return Ok(());
    };
    let file = SimFile::new(&world.hosts[host].disk, file);
    let (mut slots, payload) = SlotPair::open(&file, ReplicaHeader::MAGIC, SLOT_BYTES)?;
    let standing = ReplicaHeader::decode(&payload).map_err(|_| OpenFailure::Unusable("standing"))?;
    let taken = ReplicaHeader {
        condition: ReplicaCondition::TakenOver,
        ..standing
    };
    Ok(slots.store(&file, &taken.encode())?)
}

fn store_view(world: &mut World, host: usize, files: &mut OpenedFiles) -> Result<(), OpenFailure> {
    let stored = files.view_slots.store(&files.view_file, &files.view.encode());
    files.view_full = files.view.clone();
    world.hosts.refresh_view(host);
    Ok(stored?)
}

/// Releases the members: from here on the local disk has everything.
fn release(world: &mut World, host: usize, files: &mut OpenedFiles, end: Lsn) -> Result<(), OpenFailure> {
    let noted = files.superblock.for_ring(world.kernel.profile.window, end);
    if noted != files.superblock {
        files.log.store(&mut files.log_slots, &noted)?;
        files.superblock = noted;
    }
    files.view = files.view.released(end);
    store_view(world, host, files)
}

/// Asks whether the epoch of `files` may begin, before anything is changed (rule 18).
fn probe(
    world: &mut World,
    process: usize,
    files: &OpenedFiles,
    scan: LogScan,
    accept_loss: bool,
) -> Result<Option<Recovery>, OpenFailure> {
    if world.kernel.planted().is(PlantedFault::FenceBeforeProof) {
        return Ok(None);
    }
    let question = recovery(world, process, files, scan).probing();
    let Some((verdict, ..)) = ask(world, process, question, None) else {
        return Err(OpenFailure::Crashed);
    };
    let ProcessPhase::Opening(opening) = &world.processes[process].phase else {
        return Err(OpenFailure::Crashed);
    };
    let inquiry = opening.recovery.clone();
    world
        .network
        .close_all(&mut world.kernel, &mut world.lenders, process);
    match &verdict {
        Ok(()) => {
            let limit = files.superblock.head.lsn.plus(files.log.capacity());
            let durable = files.superblock.stable.max(files.view.proof());
            let damage = beyond_repair(&files.log, &scan, durable, limit, &inquiry);
            if let Some(damage) = damage.filter(|_| !accept_loss) {
                return Err(damage.into());
            }
        }
        Err(RecoveryError::Missing { .. } | RecoveryError::Unproven { .. }) if accept_loss => (),
        Err(refusal) => return Err(OpenFailure::Refused(refusal.clone())),
    }
    world.processes[process].proven = true;
    Ok(verdict.is_err().then_some(inquiry))
}

/// The recovery that fences and reads the members for the epoch of `files`, or only asks them.
fn recovery(world: &World, process: usize, files: &OpenedFiles, scan: LogScan) -> Recovery {
    let view = &files.view;
    let mut recovery = Recovery::new(
        view,
        view.epoch,
        view.writer,
        scan.end.lsn,
        world.kernel.now(),
        ALL_MEMBERS_WAIT,
        RECOVERY_TIMEOUT,
    )
    .with_addresses(world.lenders.addresses().iter().map(String::as_str));
    recovery.plant(world.kernel.planted());
    if let Some(closed) = world.hosts[world.processes[process].host].replica_closed {
        recovery = recovery.of_replica(view, closed);
    }
    recovery
}

fn recover(
    world: &mut World,
    process: usize,
    files: &OpenedFiles,
    scan: LogScan,
    inquiry: Option<&Recovery>,
    accept_loss: bool,
) -> Result<Vec<PeerWindow>, OpenFailure> {
    let view = &files.view;
    let mut recovery = recovery(world, process, files, scan);
    if let Some(inquiry) = inquiry {
        recovery = recovery.after_probe(inquiry);
    }
    let Some((verdict, answers, windows)) = ask(world, process, recovery, None) else {
        return Err(OpenFailure::Crashed);
    };
    match verdict {
        Ok(()) => check::rule05::answered(world, process, view, &answers, &windows),
        Err(RecoveryError::Missing { .. } | RecoveryError::Unproven { .. }) if accept_loss => (),
        Err(refusal) => return Err(OpenFailure::Refused(refusal)),
    }
    world
        .network
        .close_all(&mut world.kernel, &mut world.lenders, process);
    Ok(windows)
}

/// Lets `process` ask the members until the machine knows enough. `None` if it died, or `cut` came.
fn ask(world: &mut World, process: usize, recovery: Recovery, cut: Option<Time>) -> Option<MemberAnswers> {
    let slots: Vec<usize> = recovery.addresses().map(lender_at).collect();
    let count = slots.len();
    world.network.slots_mut().set(process, slots.into_iter());
    world.processes[process].phase = ProcessPhase::Opening(Box::new(OpeningState {
        recovery,
        tried_at: vec![Time(0); count],
    }));
    settle(world, process);
    loop {
        let ProcessPhase::Opening(opening) = &mut world.processes[process].phase else {
            return None;
        };
        if cut.is_some_and(|cut| cut <= world.kernel.now()) {
            return None;
        }
        let Some(verdict) = opening.recovery.verdict(world.kernel.now()) else {
            event_loop::step(world);
            continue;
        };
        let answers = opening.recovery.answers().map(|(_, answer)| answer).collect();
        return Some((verdict, answers, opening.recovery.windows()));
    }
}

/// Lets a server ask a node's members, from a machine of its own. `None` if it died before the end.
pub(crate) fn ask_members(
    world: &mut World,
    host: usize,
    recovery: Recovery,
    cut: Option<Time>,
) -> Option<(Result<(), RecoveryError>, Vec<PeerWindow>)> {
    let process = spawn(world, host);
    let asked = ask(world, process, recovery, cut);
    reap(world, process);
    asked.map(|(verdict, _, windows)| (verdict, windows))
}

fn serve(
    world: &mut World,
    process: usize,
    files: OpenedFiles,
    taken: AssembledLog,
) -> Result<(), OpenFailure> {
    let voter = match world.server {
        Some(_) => Voter::Server,
        None => Voter::Disk,
    };
    let host = &world.hosts[world.processes[process].host];
    let around = (&world.lenders, &world.data, voter);
    let serving = ServingState::new(&world.kernel, host, files, taken.end, around);
    world
        .network
        .slots_mut()
        .set(process, world.lenders.named_addresses());
    world.processes[process].phase = ProcessPhase::Serving(Box::new(serving));
    world.kernel.mark(5, taken.end.lsn.0);
    world
        .kernel
        .tell(|| format!("process {process} serves from {}", taken.end.lsn));
    settle(world, process);
    Ok(())
}

/// Whether a member's record opens under the journal's key, which proves that a holder of the key wrote
/// it.
fn opens(world: &World, host: usize, lsn: Lsn, record: &[u8]) -> bool {
    let history = &world.hosts[host].history;
    let end = lsn.0.saturating_add(record.len() as u64);
    !world.kernel.profile.intruded || end <= history.tail().0 && history.bytes(lsn, Lsn(end)) == record
}

fn count_recovery(world: &mut World, taken: &AssembledLog, accept_loss: bool) {
    world.kernel.hit("recoveries");
    if taken.records_from_members > 0 {
        world.kernel.hit("recoveries that took records from members");
    }
    if taken.repaired > 0 {
        world.kernel.hit("recoveries that repaired damage from members");
    }
    if accept_loss {
        world.kernel.hit("recoveries that accepted loss");
    }
}
