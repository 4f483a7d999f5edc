//! A volume restored from its replica over the wire, step by step as `netram_volume::replica::restore` does
//! it. Every step may be the last of an attempt: the data lender, a member, or the restoring machine dies or
//! is away. Now and then the client that was given up lives on.

use netram_block::{BLOCK_BYTES, VolumeRestore};
use netram_block_machine::{ReplicaCondition, ReplicaDescription, ReplicaMessage};
use netram_proto::id::{Lsn, WriterId};
use netram_proto::journal::{Recovery, RecoveryError, View};
use netram_proto::limit::FRAME_BODY_BYTES_MAX;
use netram_proto::time::Nanos;
use netram_proto::wire::{FrameHeader, FrameKind};

use super::replica_proof::{
    FENCED_UNHEARD_OF, PROVES_NO_MORE, acked_by_members, is_backed, is_fenced_unheard_of, is_provable,
};
use super::volume::{BLOCKS, BYTES, SimVolume, VolumeProgram};
use crate::check::fail;
use crate::client;
use crate::client::{ALL_MEMBERS_WAIT, RECOVERY_TIMEOUT};
use crate::data::ask::{ask_data, store_view_at_data};
use crate::data::{SimVolumeFiles, VOLUME, add_volume, volume_files};
use crate::event_loop;
use crate::inject::heal;
use crate::process::OpenFailure;
use crate::process::life::crash;
use crate::world::World;

/// Attempts before everything is healed. One more follows, which nothing interrupts.
const ATTEMPTS: u32 = 5;
/// Maximum number of rounds in which a replica takes in the frames it was sent.
const ROUNDS_MAX: u32 = 100;

/// Reason why an attempt produced no volume.
enum AttemptError {
    /// The attempt was cut off, or a peer did not answer; the next attempt may get further.
    CutOff,
    /// The restore was refused, for the given reason.
    Refused(&'static str),
}

/// State known before the first attempt, which must be true after the last.
struct Loss {
    /// The client's last message to the replica; `None` while no restore has claimed it.
    last_heard: Option<ReplicaDescription>,
    /// Writers that have claimed the replica, or recovered from it, since.
    our_writers: Vec<WriterId>,
    /// Whether a member was fenced by an epoch that the replica was never told of.
    unheard_of: bool,
}

impl Loss {
    /// Notes the replica's state. After a claim that broke off before it was stored, its client may still
    /// send more.
    fn note(&mut self, world: &World, found: &ReplicaDescription) {
        if self.last_heard.is_none() || !self.our_writers.contains(&found.view.writer) {
            self.unheard_of = is_fenced_unheard_of(world, &found.view);
            self.last_heard = Some(found.clone());
        }
    }
}

/// Judges a refusal and its meaning for later attempts.
fn refused(refusal: &RecoveryError, loss: &Loss) -> Result<(), AttemptError> {
    match (refusal, &loss.last_heard) {
        (RecoveryError::Unproven { .. }, Some(heard)) => {
            if is_provable(&heard.view, heard.end.lsn) || heard.closed.is_some() {
                fail(12, String::from(PROVES_NO_MORE));
            }
            Err(AttemptError::Refused("data: restores refused: unproven"))
        }
        (RecoveryError::Fenced { .. }, _) => {
            Err(AttemptError::Refused("data: restores refused: a later epoch"))
        }
        _ => Err(AttemptError::CutOff),
    }
}

impl VolumeProgram {
    /// Gives up the client and restores the volume. `false`: there is no volume any more.
    pub(super) fn restore(&mut self) -> bool {
        self.count("data: clients' disks lost");
        let story = || String::from("the client's disk is lost; its volume is restored");
        self.world.borrow_mut().kernel.tell(story);
        let mut loss = Loss {
            last_heard: None,
            our_writers: Vec::new(),
            unheard_of: false,
        };
        for attempt in 0..=ATTEMPTS {
            let last = attempt == ATTEMPTS;
            if last {
                let mut world = self.world.borrow_mut();
                heal(&mut world);
                event_loop::run_for(&mut world, Nanos::from_ms(100));
            }
            match self.attempt(&mut loss, last) {
                Ok(()) => {
                    self.count("data: volumes restored");
                    self.count("data: volumes restored over the wire");
                    return true;
                }
                Err(AttemptError::Refused(why)) => {
                    self.count(why);
                    return false;
                }
                Err(AttemptError::CutOff) => self.count("data: restores cut off"),
            }
        }
        let world = self.world.borrow();
        if let Some(heard) = &loss.last_heard
            && (is_backed(&world, &heard.view, heard.end.lsn) || heard.closed.is_some())
        {
            fail(
                12,
                String::from("the replica and the members had everything, yet the restore is refused"),
            );
        }
        drop(world);
        self.count("data: restores refused: members missing");
        false
    }

    fn attempt(&mut self, loss: &mut Loss, last: bool) -> Result<(), AttemptError> {
        let process = self.world.borrow().processes.len().saturating_sub(1);
        self.prove(process, loss)?;
        self.pause(last)?;
        let claimed = self.claim(process, loss, last)?;
        self.pause(last)?;
        let (host, end) = self.recover(&claimed, loss)?;
        self.pause(last)?;
        let released = self.world.borrow().hosts[host].view.clone();
        loss.our_writers.push(released.writer);
        if end > claimed.end.lsn {
            self.hand_over(process, host, &claimed, &released, end, last)?;
            self.count("data: records handed over to the replica");
            self.pause(last)?;
        }
        let files = self.fill(host, claimed.end.lsn).ok_or(AttemptError::CutOff)?;
        self.pause(last)?;
        let kept = store_view_at_data(&mut self.world.borrow_mut(), process, &released, &released, true);
        match kept {
            Some(Ok(_)) => (),
            Some(Err(_)) | None => return Err(AttemptError::CutOff),
        }
        self.pause(last)?;
        (self.host, self.files) = (host, files);
        (self.restore_unannounced, self.restored) = (true, true);
        Ok(())
    }

    /// Asks the data lender and the members whether the restore would succeed, before anything is claimed
    /// (rule 18).
    fn prove(&mut self, process: usize, loss: &mut Loss) -> Result<(), AttemptError> {
        let session = self.world.borrow_mut().data.open_session();
        let found = self.describe(process, session)?;
        let world = &mut *self.world.borrow_mut();
        loss.note(world, &found);
        let view = found.view.restored(WriterId(0)).restored(WriterId(0));
        let addresses = world.lenders.addresses();
        let mut question = Recovery::new(
            &view,
            view.epoch,
            view.writer,
            found.end.lsn,
            world.kernel.now(),
            ALL_MEMBERS_WAIT,
            RECOVERY_TIMEOUT,
        )
        .with_addresses(addresses.iter().map(String::as_str));
        question.plant(world.kernel.planted());
        let question = question.of_replica(&view, found.closed).probing();
        let asker = world.add_blank_host();
        match client::ask_members(world, asker, question, None) {
            Some((Ok(()), _)) => {
                world.kernel.hit("data: restores proven before their claim");
                Ok(())
            }
            Some((Err(refusal), _)) => {
                world.kernel.hit("data: restores refused before their claim");
                refused(&refusal, loss)
            }
            None => Err(AttemptError::CutOff),
        }
    }

    /// Begins an epoch at the data lender. Returns the replica's new description, with the view of that
    /// epoch.
    fn claim(
        &mut self,
        process: usize,
        loss: &mut Loss,
        last: bool,
    ) -> Result<ReplicaDescription, AttemptError> {
        let mut session = self.world.borrow_mut().data.open_session();
        let before = self.describe(process, session)?;
        self.pause(last)?;
        let world = &mut *self.world.borrow_mut();
        let writer = WriterId(world.kernel.rng.draw());
        let claim = before.view.restored(writer);
        session = world.data.open_session();
        let follow = before.follow.claim(claim.epoch, claim.writer, true);
        match ask_data(world, process, session, &follow, FrameKind::Following) {
            Some(Ok(_)) => (),
            Some(Err(_)) | None => return Err(AttemptError::CutOff),
        }
        let now = describe(ask_data(
            world,
            process,
            session,
            &ReplicaMessage::inquire(Some(VOLUME.0)),
            FrameKind::Replica,
        ))?;
        let view = now.view.restored(writer);
        if view.epoch != claim.epoch {
            return Err(AttemptError::CutOff);
        }
        let keep = ReplicaMessage::keep_view(&view, BYTES, now.closed.is_some());
        loss.note(world, &now);
        loss.our_writers.push(writer);
        match ask_data(world, process, session, &keep, FrameKind::ViewStored) {
            Some(Ok(_)) => Ok(ReplicaDescription { view, ..now }),
            Some(Err(_)) | None => Err(AttemptError::CutOff),
        }
    }

    fn describe(&mut self, process: usize, session: u64) -> Result<ReplicaDescription, AttemptError> {
        let question = ReplicaMessage::inquire(Some(VOLUME.0));
        let answer = ask_data(
            &mut self.world.borrow_mut(),
            process,
            session,
            &question,
            FrameKind::Replica,
        );
        describe(answer)
    }

    /// Creates the journal on a new machine. Returns the host, and the end of its log.
    fn recover(&mut self, claimed: &ReplicaDescription, loss: &Loss) -> Result<(usize, Lsn), AttemptError> {
        let world = &mut *self.world.borrow_mut();
        let Some(heard) = &loss.last_heard else {
            return Err(AttemptError::CutOff);
        };
        let host = world.restore_host(self.host, (&claimed.view, claimed.end), &heard.view);
        world.hosts[host].replica_closed = Some(claimed.closed);
        world.data.hold(Some(host));
        let process = match client::open(world, host, false) {
            Ok(process) => process,
            Err(OpenFailure::Refused(refusal)) => {
                refused(&refusal, loss)?;
                return Err(AttemptError::CutOff);
            }
            Err(_) => return Err(AttemptError::CutOff),
        };
        if loss.unheard_of {
            fail(12, String::from(FENCED_UNHEARD_OF));
        }
        // This process serves no program: the restore itself sends the following messages.
        crash(world, process, false);
        let end = world.hosts[host].history.durable;
        let promise = acked_by_members(world, self.host, &heard.view).max(heard.closed.unwrap_or_default());
        if end < promise {
            fail(
                12,
                format!("restored up to {end}; members that still held it had acknowledged {promise}"),
            );
        }
        if let Some(ends) = &self.ends {
            self.model
                .keep_first(ends.iter().filter(|end| **end <= promise).count());
        }
        Ok((host, end))
    }

    /// Sends the replica the records that members held beyond its end.
    fn hand_over(
        &mut self,
        process: usize,
        host: usize,
        claimed: &ReplicaDescription,
        released: &View,
        end: Lsn,
        last: bool,
    ) -> Result<(), AttemptError> {
        let before = View {
            version: released.version - 1,
            epoch: released.epoch,
            writer: released.writer,
            ..claimed.view.clone()
        };
        let kept = store_view_at_data(&mut self.world.borrow_mut(), process, &before, released, false);
        let Some(Ok(session)) = kept else {
            return Err(AttemptError::CutOff);
        };
        let mut sent = claimed.end.lsn;
        let mut room = claimed.head.lsn.plus(claimed.follow.capacity);
        for _ in 0..ROUNDS_MAX {
            let world = &mut *self.world.borrow_mut();
            let most = end.min(room);
            let bytes = (most.since(sent) as usize).min(FRAME_BODY_BYTES_MAX);
            let bytes = bytes.min(world.kernel.rng.between(1, 20_000) as usize);
            let header = FrameHeader {
                lsn: sent,
                epoch: released.epoch,
                sender: released.writer.0,
                ..FrameHeader::new(FrameKind::Records)
            };
            let body = world.hosts.log_bytes(host, sent, sent.plus(bytes as u64), true);
            let said = ask_data(
                world,
                process,
                session,
                &ReplicaMessage { header, body },
                FrameKind::Flushed,
            );
            if let Some(Ok(flushed)) = &said {
                room = room.max(flushed.header.stable);
            }
            sent = sent.plus(bytes as u64);
            // A flushed LSN is reported once; the sync under way may report it to another session.
            let ping = ReplicaMessage::bare(FrameHeader::new(FrameKind::Ping));
            let flushed = match (said, ask_data(world, process, session, &ping, FrameKind::Pong)) {
                (Some(Err(_)), _) | (_, Some(Err(_))) => return Err(AttemptError::CutOff),
                (_, Some(Ok(pong))) => pong.header.lsn,
                (_, None) => Lsn(0),
            };
            if flushed >= end {
                return Ok(());
            }
            if !last && world.kernel.rng.chance(20) {
                return Err(AttemptError::CutOff);
            }
            event_loop::run_for(world, Nanos::from_ms(20));
        }
        Err(AttemptError::CutOff)
    }

    /// Creates the volume's files, in which all blocks are missing. `None`: the machine died.
    fn fill(&mut self, host: usize, from: Lsn) -> Option<SimVolumeFiles> {
        let world = self.world.borrow();
        let disk = &world.hosts[host].disk;
        disk.borrow_mut().revive();
        let files = add_volume(disk, BLOCKS);
        let all = volume_files(disk, files, true);
        let restoring = VolumeRestore::begin(all, VOLUME, world.kernel.journal(), BYTES, from).ok()?;
        restoring.missing(0, BLOCKS).ok()?;
        restoring.finish().ok()?;
        Some(files)
    }

    /// Lets time pass between two steps. The given-up client goes on, the data lender may be disturbed, and
    /// this may have been the attempt's last step.
    fn pause(&mut self, last: bool) -> Result<(), AttemptError> {
        if let Some((process, volume)) = self.zombie.take() {
            self.run_zombie(process, &volume);
            self.zombie = Some((process, volume));
        }
        let mut world = self.world.borrow_mut();
        let ms = world.kernel.rng.pick(&[0, 1, 20, 300, 2500]);
        event_loop::run_for(&mut world, Nanos::from_ms(ms));
        if last {
            return Ok(());
        }
        if world.kernel.rng.chance(60) && !world.nemesis.is_stopped() {
            let operations = world.kernel.rng.below(12) as u32;
            if let Some(data) = world.data.lender() {
                data.disk.borrow_mut().crash_after(operations);
            }
        }
        match world.kernel.rng.chance(100) {
            true => Err(AttemptError::CutOff),
            false => Ok(()),
        }
    }

    /// Lets the given-up client write, and receive the answers of data lender and members.
    fn run_zombie(&mut self, process: usize, volume: &SimVolume) {
        if !self.world.borrow().processes.alive(process) {
            return;
        }
        self.count("data: deeds of a client that was given up");
        let overtaken = self.world.borrow().hosts[self.host].newer_epoch.is_some();
        if !overtaken {
            // Some of these writes may still be restored.
            self.change(process, volume);
            return;
        }
        let bytes = vec![0xdd; BLOCK_BYTES as usize];
        if let Ok(pending) = volume.write(0, &bytes) {
            let _ = volume.wait(pending);
        }
    }

    /// Fetches blocks of a restored volume, a few at a time.
    pub(super) fn fetch_blocks(&mut self, volume: &SimVolume) {
        if !volume.is_restoring() {
            return;
        }
        let from = self.world.borrow_mut().kernel.rng.below(BLOCKS);
        for from in [from, 0] {
            if volume.copy_step(from).is_ok_and(|copied| copied.blocks > 0) {
                self.count("data: blocks of a restored volume brought home");
            }
        }
    }

    /// Checks that the given-up client has learnt of its end, with all well and the restored volume in
    /// service.
    pub(super) fn stop_zombie(&mut self) {
        let Some((process, _volume)) = self.zombie.take() else {
            return;
        };
        event_loop::run_for(&mut self.world.borrow_mut(), Nanos::from_ms(8000));
        let mut world = self.world.borrow_mut();
        if let Some(serving) = world.processes.serving(process) {
            if serving.writer.fenced().is_none() && serving.poisoned.is_none() {
                fail(
                    4,
                    String::from(
                        "a given-up client goes on without having learnt that its volume was restored",
                    ),
                );
            }
            world.kernel.hit("data: clients given up that learnt their fate");
        }
        crash(&mut world, process, false);
    }
}

/// Description of a whole replica. Frames that its client sent before it was given up may begin a resync
/// between two questions.
fn describe(answer: crate::data::DataAnswer) -> Result<ReplicaDescription, AttemptError> {
    let Some(Ok(answer)) = answer else {
        return Err(AttemptError::CutOff);
    };
    let found = ReplicaDescription::decode(&answer.frame()).map_err(|_| AttemptError::CutOff)?;
    match found.condition {
        ReplicaCondition::Following => Ok(found),
        _ => Err(AttemptError::Refused(
            "data: restores refused: the replica is not whole",
        )),
    }
}
