//! A volume with a replica at a data lender. Both machines die and restart, and the data lender is away for
//! so long that only a resync of blocks brings it back. Now and then the client's disk is lost for good, and
//! the volume is restored from the replica.

use netram_block::{BLOCK_BYTES, digest};
use netram_block_machine::{ReplicaCondition, ResyncScope, SourceAction};
use netram_proto::id::Lsn;
use netram_proto::journal::{RecoveryError, View};
use netram_proto::port::RecordLog;
use netram_proto::time::Nanos;
use netram_proto::wire::ChainPoint;

use super::replica_proof::{
    FENCED_UNHEARD_OF, PROVES_NO_MORE, acked_by_members, is_backed, is_fenced_unheard_of, is_provable,
};
use super::volume::{BLOCKS, BYTES, SimVolume, VolumeProgram};
use crate::check::fail;
use crate::check::rule12;
use crate::client;
use crate::data::SimDataLender;
use crate::data::ask::{break_data, data_dirty, data_done};
use crate::event_loop;
use crate::inject::heal;
use crate::process::OpenFailure;
use crate::process::life::crash;
use crate::profile::{WorldFault, WorldProfile};
use crate::world::World;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Maximum number of rounds in which a healed world brings the replica up to date. Each takes 100 ms and a
/// few steps.
const ROUNDS_MAX: u32 = 400;
/// Number of openings from a replica before everything is healed.
const TRIES: u32 = 3;

/// Removes faults that other scenarios cover.
pub(super) fn adapt(profile: &mut WorldProfile) {
    profile.hostile = None;
    let damage = [
        WorldFault::Rot,
        WorldFault::Unreadable,
        WorldFault::StaleBytes,
        WorldFault::SlotDamage,
    ];
    profile.faults.retain(|action| !damage.contains(action));
    profile.faults.push(WorldFault::Intrude);
    // Room for a replica to keep up, more often than not.
    profile.capacity *= 4;
}

/// Runs the scenario and returns the world.
pub(super) fn run(mut world: World) -> World {
    let lives = world.kernel.rng.between(1, 5);
    let permille = world.kernel.profile.disk.survives_permille;
    let (rng, capacity) = (world.kernel.rng.fork(), world.kernel.profile.capacity);
    let mut data = SimDataLender::new(rng, permille, world.kernel.journal(), capacity, BLOCKS);
    data.plant(world.kernel.planted());
    data.start();
    world.data.attach(data, BYTES);
    world.hosts.begin_volume(BYTES as usize);
    let mut program = VolumeProgram::new(world, true);
    for _ in 0..lives {
        if !program.live_and_lose() {
            return program.end();
        }
    }
    heal(&mut program.world.borrow_mut());
    program.settle_down();
    program.end()
}

impl VolumeProgram {
    /// Runs one life of the client, after which its disk may be lost. `false`: the scenario is over.
    fn live_and_lose(&mut self) -> bool {
        let (lost, lives_on, taken_over) = {
            let rng = &mut self.world.borrow_mut().kernel.rng;
            (rng.chance(400), rng.chance(300), rng.chance(400))
        };
        let lived = self.live_on();
        if !lost || self.lossy {
            if let Some((process, _volume)) = lived {
                self.die(process);
            }
            return true;
        }
        if lives_on && self.zombie.is_none() && !taken_over {
            self.zombie = lived;
        } else if let Some((process, _volume)) = lived {
            self.die(process);
        }
        if self.zombie.is_none() {
            self.open_unheard();
        }
        if !taken_over {
            return self.restore();
        }
        if self.lose_disk() {
            self.live();
            heal(&mut self.world.borrow_mut());
            self.live();
        }
        false
    }

    /// Opens the client once more while its data lender is away, now and then, and loses it before it serves.
    /// Only its members know the records of that opening.
    fn open_unheard(&mut self) {
        let world = &mut *self.world.borrow_mut();
        if self.restore_unannounced || !world.kernel.rng.chance(150) {
            return;
        }
        world.data.hold(Some(self.host));
        world
            .kernel
            .tell(|| String::from("the next opening reaches no data lender"));
        if let Ok(process) = client::open(world, self.host, false) {
            crash(world, process, false);
            world.kernel.hit("data: last openings that nobody heard");
        }
    }

    /// Lets the data lender do its part after an operation of the program.
    pub(super) fn run_data_lender(&mut self, process: usize, volume: &SimVolume) {
        let draw = self.world.borrow_mut().kernel.rng.below(40);
        if draw == 0 {
            self.disturb_data_lender(process);
        }
        self.run_source_action(process, volume);
    }

    /// In most lives the program writes nothing before the replica has caught up, so that they test its
    /// service.
    pub(super) fn begin_life(&mut self, process: usize, volume: &SimVolume) {
        if self.world.borrow_mut().kernel.rng.chance(300) {
            return;
        }
        for _ in 0..20 {
            event_loop::run_for(&mut self.world.borrow_mut(), Nanos::from_ms(50));
            self.run_source_action(process, volume);
            let world = self.world.borrow();
            let kept = world
                .processes
                .serving(process)
                .map(|serving| serving.writer.replica_ack());
            if kept.is_none_or(|kept| kept.is_some()) {
                return;
            }
        }
    }

    /// Disturbs the data lender.
    fn disturb_data_lender(&mut self, process: usize) {
        let mut world = self.world.borrow_mut();
        if world.nemesis.is_stopped() {
            return;
        }
        let draw = world.kernel.rng.below(5);
        let away = Nanos::from_ms(world.kernel.rng.pick(&[20, 400, 3000, 20_000]));
        let until = world.kernel.now() + away;
        let operations = world.kernel.rng.below(12) as u32;
        world.kernel.tell(|| match draw {
            0 => String::from("the data lender's process is killed"),
            1 => format!("the data lender's process may die in {operations} operations"),
            2 => format!("the data lender stands still for {} ms", away.0 / 1_000_000),
            3 => format!("the data lender is away for {} ms", away.0 / 1_000_000),
            _ => String::from("the data lender's connections break"),
        });
        let world = &mut *world;
        let Some(data) = world.data.lender_mut() else {
            return;
        };
        match draw {
            0 if data.is_up() => {
                world.data.died(&mut world.kernel);
                if world.kernel.rng.chance(500) {
                    break_data(world, process);
                }
            }
            1 => data.disk.borrow_mut().crash_after(operations),
            2 => data.paused_until = until,
            3 => {
                data.away_until = until;
                world.kernel.hit("data: absences");
            }
            _ => break_data(world, process),
        }
    }

    /// Performs the source's actions on the volume.
    pub(super) fn run_source_action(&mut self, process: usize, volume: &SimVolume) {
        for _ in 0..64 {
            let (todo, flushed) = {
                let world = self.world.borrow();
                let link = world
                    .processes
                    .serving(process)
                    .and_then(|serving| serving.data.as_ref());
                let Some(link) = link else { return };
                (link.action.clone(), link.source.trimmable())
            };
            if let Some(flushed) = flushed {
                let dirty = volume.replica_flushed(flushed);
                data_dirty(&mut self.world.borrow_mut(), process, dirty);
            }
            let Some(todo) = todo.filter(|_| !self.world.borrow_mut().kernel.rng.chance(200)) else {
                return;
            };
            if self.perform(process, volume, todo).is_none() {
                self.world
                    .borrow_mut()
                    .kernel
                    .hit("data: steps of a resync that failed");
                return;
            }
        }
    }

    /// Performs an action. `None`: the volume's disk failed, or its process is ending.
    fn perform(&mut self, process: usize, volume: &SimVolume, todo: SourceAction) -> Option<()> {
        match todo {
            SourceAction::Begin { scope, since } => {
                let begun = volume
                    .begin_resync(since.filter(|_| scope == ResyncScope::Dirty))
                    .ok()?;
                (self.cursor, self.pass) = (0, 0);
                let start = self.head(process).filter(|head| head.lsn == begun.from)?;
                self.count(match (scope, begun.all) {
                    (ResyncScope::Data, _) => "data: resyncs of a new replica",
                    (ResyncScope::Dirty, false) => "data: resyncs of dirty blocks",
                    _ => "data: resyncs of all that differs",
                });
                self.done(process, |source, _| {
                    source.on_begun(start, begun.blocks, begun.all);
                    Vec::new()
                });
            }
            SourceAction::Move { since } => {
                let moved = volume.continue_resync(since).ok()?;
                let head = self.head(process);
                let start = match moved {
                    Some(begun) => Some((head.filter(|head| head.lsn == begun.from)?, begun.blocks)),
                    None => None,
                };
                self.count("data: resyncs that the log had left behind");
                self.done(process, |source, _| {
                    source.on_moved(start);
                    Vec::new()
                });
            }
            SourceAction::Choose { max, pass } => self.choose_blocks(process, volume, max, pass)?,
            SourceAction::Digest { first, count } => self.send_digests(process, volume, first, count)?,
            SourceAction::Read(numbers) => self.send_blocks(process, volume, numbers)?,
            SourceAction::Clear => {
                volume.finish_resync().ok()?;
                self.count("data: resyncs that ended");
                self.done(process, |source, _| {
                    source.on_cleared();
                    Vec::new()
                });
            }
            SourceAction::Mark(numbers) => {
                volume.mark_dirty(&numbers).ok()?;
                self.done(process, |source, _| {
                    source.on_marked();
                    Vec::new()
                });
            }
            SourceAction::Send(_) | SourceAction::Ship { .. } => unreachable!("the world does these"),
        }
        Some(())
    }

    fn choose_blocks(&mut self, process: usize, volume: &SimVolume, max: usize, pass: u32) -> Option<()> {
        if self.pass != pass {
            (self.pass, self.cursor) = (pass, 0);
        }
        // A few at a time, so that even the resync of a small volume takes long.
        let most = self.world.borrow_mut().kernel.rng.between(1, 4).min(max as u64);
        let run = match pass {
            0 => volume.next_resync(self.cursor, most).ok()?,
            _ => volume.next_dirtied(self.cursor, most).ok()?,
        };
        let numbers: Vec<u64> = run.iter().flat_map(|run| run.first..run.end).collect();
        self.cursor = run.map_or(self.cursor, |run| run.end);
        let head = volume.log().state().head;
        self.done(process, |source, _| {
            source.on_chosen(&numbers, head);
            Vec::new()
        });
        Some(())
    }

    fn send_digests(&mut self, process: usize, volume: &SimVolume, first: u64, count: usize) -> Option<()> {
        let most = self.world.borrow_mut().kernel.rng.between(1, 6).min(count as u64);
        let count = most.min(BLOCKS.saturating_sub(first)) as usize;
        let mut bytes = vec![0; count * BLOCK];
        if count > 0 && !self.read_to_send(process, volume, first, &mut bytes)? {
            return Some(());
        }
        let digests: Vec<_> = bytes.chunks_exact(BLOCK).map(digest).collect();
        let tail = volume.log().state().tail;
        self.done(process, |source, now| {
            source
                .on_digested(first, &digests, tail, now)
                .into_iter()
                .collect()
        });
        Some(())
    }

    fn send_blocks(&mut self, process: usize, volume: &SimVolume, numbers: Vec<u64>) -> Option<()> {
        let mut blocks = Vec::new();
        for number in numbers {
            let mut bytes = vec![0; BLOCK];
            if !self.read_to_send(process, volume, number, &mut bytes)? {
                return Some(());
            }
            let zeros = bytes.iter().all(|byte| *byte == 0);
            blocks.push((number, (!zeros).then_some(bytes)));
        }
        let tail = volume.log().state().tail;
        self.count("data: blocks sent");
        self.done(process, |source, now| source.on_read(&blocks, tail, now));
        Some(())
    }

    /// Reads blocks for the data lender. `false`: the connection that they were for is gone.
    fn read_to_send(
        &mut self,
        process: usize,
        volume: &SimVolume,
        first: u64,
        into: &mut [u8],
    ) -> Option<bool> {
        let asked = self.pending_action(process);
        self.world.borrow_mut().data.set_reads_to_send(true);
        let read = volume.read_own(first, into);
        self.world.borrow_mut().data.set_reads_to_send(false);
        read.ok()?;
        if self.pending_action(process) != asked {
            self.count("data: blocks read for a connection that went");
            return Some(false);
        }
        let World {
            kernel,
            hosts,
            processes,
            ..
        } = &mut *self.world.borrow_mut();
        if let Some(serving) = processes.serving(process) {
            rule12::sent(kernel, hosts.volume(), serving.writer.stable(), first, into);
        }
        Some(true)
    }

    fn pending_action(&self, process: usize) -> Option<(Option<u64>, Option<SourceAction>)> {
        let world = self.world.borrow();
        let link = world.processes.serving(process)?.data.as_ref()?;
        Some(link.pending_action())
    }

    fn done(
        &mut self,
        process: usize,
        tell: impl FnOnce(
            &mut netram_block_machine::ReplicaSource,
            netram_proto::time::Time,
        ) -> Vec<netram_block_machine::ReplicaMessage>,
    ) {
        data_done(&mut self.world.borrow_mut(), process, tell);
    }

    pub(super) fn count(&self, what: &'static str) {
        self.world.borrow_mut().kernel.hit(what);
    }

    fn head(&self, process: usize) -> Option<ChainPoint> {
        let world = self.world.borrow();
        world
            .processes
            .serving(process)
            .map(|serving| serving.superblock.head)
    }

    /// Destroys the client's machine and its disk. The replica's files take the disk's place, as in a
    /// take-over. `false`: that is refused or impossible.
    fn lose_disk(&mut self) -> bool {
        let world = &mut *self.world.borrow_mut();
        world.kernel.hit("data: clients' disks lost");
        world
            .kernel
            .tell(|| String::from("the client's disk is lost; its replica is taken over"));
        let Some(mut data) = world.data.detach() else {
            return false;
        };
        data.crash(world.kernel.rng.chance(300));
        data.disk.borrow_mut().heal();
        let contents = data.prepare();
        let Some(found) = data.inspect() else {
            fail(
                12,
                String::from("the replica's files cannot be read, and their disk is sound"),
            );
        };
        if found.condition != ReplicaCondition::Following {
            world
                .kernel
                .hit("data: restores refused: the replica is not whole");
            return false;
        }
        world
            .hosts
            .return_to(&mut world.kernel, self.host, found.view.epoch);
        if let Some((end, contents)) = contents {
            rule12::whole(&mut world.kernel, world.hosts.volume(), end, &contents);
        }
        let promise = acked_by_members(world, self.host, &found.view).max(found.closed.unwrap_or_default());
        if let Some(ends) = &self.ends {
            self.model
                .keep_first(ends.iter().filter(|end| **end <= promise).count());
        }
        self.files = data.volume;
        self.ends = None;
        // After a take-over there is no client to tell. The restored volume may be older than the model's
        // last state.
        (self.restore_unannounced, self.restored) = (false, true);
        let host = &mut world.hosts[self.host];
        host.header_file = Some(data.header_file);
        host.disk = data.disk;
        host.log_file = data.log_file;
        host.view_file = data.view_file;
        host.replica_closed = Some(found.closed);
        host.damaged = false;
        host.history.acked = promise;
        host.history.acked_by_members = promise;
        host.history.durable = found.end;
        let (head, end) = (found.end, host.history.tail());
        assert!(head <= end, "the replica has nothing that was never appended");
        world.hosts.refresh_view(self.host);
        take_over(world, self.host, &found.view, found.end)
    }

    /// Heals everything: the replica becomes whole, is up to date, and equals the volume.
    fn settle_down(&mut self) {
        if self.lossy {
            return;
        }
        let accepted = self.world.borrow().kernel.count("losses that were accepted");
        let opened = self.open_journal();
        let Some(process) = opened.filter(|_| accepted == 0 && !self.lossy) else {
            return;
        };
        let Some(volume) = self.open(process) else { return };
        if self.world.borrow_mut().kernel.rng.chance(500) {
            self.write_on(process, &volume);
        }
        for _ in 0..ROUNDS_MAX {
            event_loop::run_for(&mut self.world.borrow_mut(), Nanos::from_ms(100));
            let _ = volume.drain();
            self.run_source_action(process, &volume);
            if !self.world.borrow().processes.alive(process) {
                return;
            }
            self.fetch_blocks(&volume);
            if self.is_replica_current(process, &volume) {
                self.count("data: replicas compared with their volume");
                self.stop_zombie();
                return;
            }
        }
        let world = self.world.borrow();
        let Some(serving) = world.processes.serving(process) else {
            return;
        };
        let poisoned = serving.poisoned.is_some() || serving.writer.fenced().is_some();
        if let Some(link) = serving.data.as_ref().filter(|_| !poisoned) {
            let status = link.source.status();
            fail(
                12,
                format!(
                    "everything is healed, yet the replica does not follow: {status:?}, {:?}, todo {:?}",
                    volume.status().replica,
                    link.action
                ),
            );
        }
    }

    /// Whether the replica is up to date; then it must equal the volume.
    fn is_replica_current(&self, process: usize, volume: &SimVolume) -> bool {
        if volume
            .status()
            .replica
            .is_none_or(|replica| replica.dirty_blocks > 0)
        {
            return false;
        }
        let world = self.world.borrow();
        let state = world.log_state(process);
        let in_service = world
            .processes
            .serving(process)
            .is_some_and(|serving| serving.writer.replica_ack().is_some());
        drop(world);
        let contents = self
            .world
            .borrow_mut()
            .data
            .lender_mut()
            .and_then(SimDataLender::contents);
        let Some((flushed, theirs)) = contents.filter(|_| in_service) else {
            return false;
        };
        if flushed != state.tail {
            return false;
        }
        let Some(ours) = self.read(volume) else {
            return false;
        };
        if let Some(at) = ours.iter().zip(&theirs).position(|(ours, theirs)| ours != theirs) {
            fail(
                12,
                format!("the replica follows at {flushed}, and is not the volume at byte {at}"),
            );
        }
        true
    }
}

/// Opens the replica as the volume's journal. `false`: refused.
fn take_over(world: &mut World, host: usize, kept: &View, end: Lsn) -> bool {
    let unheard_of = is_fenced_unheard_of(world, kept);
    for attempt in 0..=TRIES {
        if attempt == TRIES {
            heal(world);
            event_loop::run_for(world, Nanos::from_ms(100));
        }
        match client::open(world, host, false) {
            Ok(process) => {
                if unheard_of {
                    fail(12, String::from(FENCED_UNHEARD_OF));
                }
                world.kernel.hit("data: volumes restored");
                crash(world, process, false);
                return true;
            }
            Err(OpenFailure::Refused(RecoveryError::Fenced { .. })) => {
                world.kernel.hit("data: restores refused: a later epoch");
                return false;
            }
            Err(OpenFailure::Refused(RecoveryError::Unproven { .. })) => {
                if attempt > 0 && is_provable(kept, end) {
                    fail(12, String::from(PROVES_NO_MORE));
                }
                world.kernel.hit("data: restores refused: unproven");
                return false;
            }
            Err(_) => (),
        }
        let pause = world.kernel.rng.between(10, 1000);
        event_loop::run_for(world, Nanos::from_ms(pause));
    }
    world.kernel.hit("data: restores refused: members missing");
    // Appends that were under way when the client died may have told members to drop more.
    if is_backed(world, kept, end) {
        fail(
            12,
            String::from("the members had everything that the replica lacked, yet the restore is refused"),
        );
    }
    false
}
