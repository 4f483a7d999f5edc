//! A program keeps a directory of files. It creates, writes, syncs, renames, links and removes files;
//! checkpoints run, the backing disk fails, machines die.

mod draws;
mod maintenance;
mod naming;
mod take_over;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use netram_files::model::MemoryDisk;
use netram_files::{
    ChangeError, CheckpointError, DirectoryOpenError, DirectoryOptions, DirectoryRecovery, FileTree,
    InodeKind, JournaledDirectory, OpenFile,
};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::{Durability, LogError};
use netram_proto::time::{Nanos, Time};

use self::maintenance::{MaintainedMount, MountMaintenance, TestedDirectory};
use self::naming::{carry_out, describe_change, node};
use self::take_over::{LeftMount, UnansweredRequest};
use super::journal;
use crate::check::files::{DirectoryModel, DiskListing, ModelFileId, NameChange, PAGE, PathEntry, is_paged};
use crate::check::{fail, rule06};
use crate::client::SimLog;
use crate::event_loop;
use crate::inject::heal;
use crate::process::life::{crash, died_on_backing_disk};
use crate::world::{World, WorldHandle};

/// Maximum number of pages of a file: several records of the smallest journal.
const PAGES_MAX: u64 = 24;
/// Maximum number of pages of one write.
const WRITE_PAGES_MAX: u64 = 8;
/// Maximum size of an unpaged file, in bytes.
const UNPAGED_BYTES_MAX: u64 = 20_000;
/// Maximum depth of nested directories.
const DEPTH_MAX: usize = 3;
/// Maximum number of files that the program has open.
const OPEN_MAX: usize = 4;

/// Maximum number of open files where descriptors are few.
const FEW_FILES: usize = 10;
const POWER_CUTS: &str = "files: power cuts of the disk beneath";

type OpenModelFiles = Vec<(ModelFileId, Arc<OpenFile<u64>>)>;

struct Program {
    world: WorldHandle,
    disk: MemoryDisk,
    model: DirectoryModel,
    durability: Durability,
    /// Whether a loss was accepted and the directory has not been opened since.
    lossy: bool,
    /// Whether after such a loss the directory cannot be opened, and need not be.
    unrecoverable: bool,
    /// Whether the backing disk fails no more.
    healed: bool,
    /// Number of power cuts and of failed syncs before the last opening. After either the disk may differ
    /// from the state the server saw.
    losses: (u64, u64),
    maintenance: MountMaintenance,
    /// Whether the mount outlives its servers.
    survives: bool,
    /// Number of the last request.
    requests: u64,
    /// State that the kernel keeps of the mount when its server has died.
    left: Option<LeftMount>,
}

/// Runs the scenario and returns the world.
pub(super) fn run(mut world: World) -> World {
    let durability = match world.kernel.rng.below(8) {
        0 => Durability::Disk,
        1 if world.kernel.profile.can_count() => Durability::Both,
        _ => Durability::Remote,
    };
    let disk = MemoryDisk::new();
    world.backing_disk.attach(disk.clone());
    let (lives, survives) = (world.kernel.rng.between(1, 4), world.kernel.rng.chance(500));
    let mut program = Program {
        world: Rc::new(RefCell::new(world)),
        disk,
        model: DirectoryModel::empty(),
        durability,
        lossy: false,
        unrecoverable: false,
        healed: false,
        losses: (0, 0),
        maintenance: MountMaintenance::new(Time(0), FaultSwitch::NONE),
        survives,
        requests: 0,
        left: None,
    };
    for _ in 0..lives {
        program.live();
    }
    heal(&mut program.world.borrow_mut());
    program.healed = true;
    program.live();
    program.live();
    let Ok(world) = Rc::try_unwrap(program.world) else {
        unreachable!("every log of this world is dropped")
    };
    world.into_inner()
}

impl Program {
    /// Runs one process, from its opening to its end.
    fn live(&mut self) {
        if self.unrecoverable {
            return;
        }
        let accepted = self.world.borrow().kernel.count("losses that were accepted");
        let opened = journal::open(&mut self.world.borrow_mut(), 0);
        self.lossy |= self.world.borrow().kernel.count("losses that were accepted") > accepted;
        let Some(process) = opened else { return };
        self.serve(process);
        let mut world = self.world.borrow_mut();
        let cut = world.kernel.rng.chance(500);
        crash(&mut world, process, cut);
        let pause = world.kernel.rng.pick(&[0, 1, 30, 400, 2500]);
        event_loop::run_for(&mut world, Nanos::from_ms(pause));
    }

    fn serve(&mut self, process: usize) {
        let Some((directory, mut opened)) = self.open(process) else {
            self.hit("files: openings that failed");
            return;
        };
        let lives = self.run_steps(process, &directory, &mut opened);
        self.leave(&opened);
        drop(opened);
        if lives && self.world.borrow_mut().kernel.rng.chance(200) {
            self.left = None;
            if directory.close().is_err() {
                return;
            }
            self.hit("files: closings");
            // The disk alone has everything, synced or not.
            self.model.synced_all();
            self.disk.power_off(|| false);
            self.model
                .check_running(&self.on_disk(), "after a closing and a power cut");
        }
    }

    /// Runs the program. `false`: its server has died.
    fn run_steps(
        &mut self,
        process: usize,
        directory: &TestedDirectory,
        opened: &mut OpenModelFiles,
    ) -> bool {
        let deeds = self.world.borrow_mut().kernel.rng.between(5, 60);
        for _ in 0..deeds {
            self.arm_disk_fault();
            let goes_on = self.run_step(process, directory, opened);
            let mut world = self.world.borrow_mut();
            if died_on_backing_disk(&mut world, process) || !world.processes.alive(process) || !goes_on {
                return false;
            }
        }
        true
    }

    fn hit(&self, name: &'static str) {
        self.world.borrow_mut().kernel.hit(name);
    }

    fn tell(&self, line: impl FnOnce() -> String) {
        self.world.borrow_mut().kernel.tell(line);
    }

    /// Opens the directory, or takes it over from a server that died, and compares it with the model.
    fn open(&mut self, process: usize) -> Option<(TestedDirectory, OpenModelFiles)> {
        let lost = (
            self.world.borrow().kernel.count(POWER_CUTS),
            self.disk.lost_syncs(),
        );
        let killed = self.losses == lost;
        let continues = self.left.is_some() && killed && !self.lossy;
        // The process is a new one and has a disk that works.
        self.disk.kill();
        self.disk.set_room(None);
        let (log, journal, cut) = {
            let world = &mut *self.world.borrow_mut();
            let cut = (!self.healed && world.kernel.rng.chance(250)).then(|| world.kernel.rng.below(60));
            (SimLog::new(&self.world, process), world.kernel.journal(), cut)
        };
        if let Some(steps) = cut {
            self.disk.fail_after(steps);
        }
        let files_max = self
            .world
            .borrow_mut()
            .kernel
            .rng
            .pick(&[1 << 20, 1 << 20, FEW_FILES]);
        let options = DirectoryOptions {
            journal,
            durability: self.durability,
            loss_accepted: self.lossy,
            files_max,
            on_failed_sync: None,
            reign: self.survives.then_some(process as u64),
            planted: self.world.borrow().kernel.planted(),
        };
        let (disk, keep) = (self.disk.clone(), self.disk.clone());
        let (directory, recovered) = match match continues {
            true => JournaledDirectory::take_over(log, disk, keep, options),
            false => JournaledDirectory::open(log, disk, keep, options),
        } {
            Ok(opened) => opened,
            Err(error) => {
                self.tell(|| format!("the directory is not opened: {error}"));
                self.refused(process, error);
                return None;
            }
        };
        self.disk.kill();
        self.tell(|| format!("the directory is open: {recovered:?}"));
        self.losses = lost;
        self.maintenance = {
            let world = self.world.borrow();
            MountMaintenance::new(world.kernel.now(), world.kernel.planted())
        };
        if continues {
            let opened = self.taken_over(&directory)?;
            return Some((directory, opened));
        }
        self.end_mount();
        let found = self.on_disk();
        let in_doubt = match std::mem::take(&mut self.lossy) {
            true => {
                self.hit("files: openings after a loss that was accepted");
                self.model.reopened_with_loss(found);
                0
            }
            false => self.model.reopened(found, killed),
        };
        self.count_opening(&recovered, killed, in_doubt);
        Some((directory, OpenModelFiles::new()))
    }

    fn count_opening(&self, recovered: &DirectoryRecovery, killed: bool, in_doubt: usize) {
        let kernel = &mut self.world.borrow_mut().kernel;
        kernel.hit("files: openings");
        if killed {
            kernel.hit("files: openings after the server alone was killed");
        }
        kernel.add(
            "files: new files without a record that were kept",
            recovered.unrecorded.len() as u64,
        );
        kernel.add(
            "files: changes of names in doubt that were found",
            in_doubt as u64,
        );
        kernel.add("files: bytes written again", recovered.bytes);
        kernel.add("files: files and directories made again", recovered.created);
        kernel.add(
            "files: names given or taken again",
            recovered.renamed + recovered.removed,
        );
    }

    /// Checks a refused opening: the process must be dead, or the journal's disk must have failed.
    fn refused(&mut self, process: usize, error: DirectoryOpenError) {
        let mut world = self.world.borrow_mut();
        if died_on_backing_disk(&mut world, process) {
            world.kernel.hit("files: recoveries cut off");
            return;
        }
        if !world.processes.alive(process) {
            return;
        }
        match error {
            DirectoryOpenError::Log(LogError::Closed | LogError::Io(_)) => (),
            DirectoryOpenError::Log(error) => rule06::unread(&world, 0, error),
            _ if self.lossy => {
                world.kernel.hit("files: directories that a loss has ended");
                self.unrecoverable = true;
            }
            error => fail(5, format!("the directory cannot be opened: {error}")),
        }
    }

    /// Everything on the disk, as a program sees it.
    fn on_disk(&self) -> DiskListing {
        let contents = { self.disk.contents().into_iter() }
            .filter(|(path, _)| !path.starts_with(netram_files::limit::ORPHAN_PREFIX));
        let found = contents.map(|(path, inode)| {
            let found = PathEntry {
                inode: self.disk.identity(&path).map_or(0, |identity| identity.inode),
                directory: inode.kind == InodeKind::Directory,
                bytes: inode.bytes,
            };
            (path, found)
        });
        found.collect()
    }

    /// Plans a fault of the backing disk now and then: the process dies between two operations, or one is
    /// refused.
    fn arm_disk_fault(&self) {
        let rng = &mut self.world.borrow_mut().kernel.rng;
        match rng.below(100) {
            _ if self.healed => (),
            0..3 => self.disk.fail_after(rng.below(8)),
            3 => self.disk.fail_once_after(rng.below(4)),
            4 => self.disk.set_opens_allowed(false),
            5 => self.disk.set_catalog_writable(false),
            6..20 => {
                self.disk.set_opens_allowed(true);
                self.disk.set_catalog_writable(true);
            }
            _ => (),
        }
    }

    /// Runs one step. `false`: this life is over.
    fn run_step(&mut self, process: usize, directory: &TestedDirectory, opened: &mut OpenModelFiles) -> bool {
        let draw = self.world.borrow_mut().kernel.rng.below(40);
        match draw {
            0..12 => return self.change_names(directory),
            12..22 => return self.write(directory, opened),
            22..24 => return self.resize(directory, opened),
            24..30 => return self.sync(directory),
            30 => {
                self.model.asked_to_record_all();
                return may_continue(directory.record_written());
            }
            31 => return self.checkpoint(directory),
            32 => self.model.check_running(&self.on_disk(), "while running"),
            33 if !self.healed => {
                let rng = &mut self.world.borrow_mut().kernel.rng;
                let room = rng.chance(300).then(|| rng.below(150_000));
                self.disk.set_room(room);
            }
            _ => {
                let ms = self
                    .world
                    .borrow_mut()
                    .kernel
                    .rng
                    .pick(&[0, 1, 5, 20, 100, 600, 2500]);
                let mut mount = MaintainedMount {
                    world: &self.world,
                    disk: &self.disk,
                    model: &mut self.model,
                    directory,
                };
                return self.maintenance.run_for(&mut mount, process, ms);
            }
        }
        true
    }

    /// Changes names.
    fn change_names(&mut self, directory: &TestedDirectory) -> bool {
        let Some(naming) = self.draw_name_change() else {
            return true;
        };
        let named = |path: &Vec<u8>| self.model.names().get(path).copied();
        // Contents of a file that is renamed or linked are as durable as its new name.
        let taken_along = match &naming {
            NameChange::Link(of, _) => named(of),
            NameChange::Rename(from, ..) => named(from),
            _ => None,
        };
        taken_along
            .into_iter()
            .for_each(|thing| self.model.asked_to_record(thing));
        let (request, answers) = self.next_request();
        let done = carry_out(directory, &naming, request);
        if !self.is_answered(&done, answers) {
            self.leave_unanswered(UnansweredRequest::Name(self.requests, naming));
            return false;
        }
        directory.on_answered(self.requests);
        if directory.status().open >= FEW_FILES / 2 {
            self.model.asked_to_record_all();
        }
        self.tell(|| format!("names: {}: {done:?}", describe_change(&naming)));
        match done {
            Ok(()) => {
                self.hit("files: changes of names");
                self.model.name(&naming, true);
                taken_along.into_iter().for_each(|thing| self.model.synced(thing));
                true
            }
            Err(ChangeError::Name(_)) => true,
            Err(ChangeError::Disk(_)) => {
                self.hit("files: changes of names that the disk refused");
                true
            }
            Err(ChangeError::Full(_)) => true,
            Err(_) => {
                self.hit("files: changes of names of unknown fate");
                self.model.name(&naming, false);
                false
            }
        }
    }

    /// Draws a file: an open one, which may have no name any more, or any other.
    fn file(
        &self,
        directory: &TestedDirectory,
        opened: &mut OpenModelFiles,
    ) -> Option<(ModelFileId, Arc<OpenFile<u64>>, bool)> {
        // Opening a file may make the server record and close others, which draws from the world.
        let index = |count| self.world.borrow_mut().kernel.rng.index(count);
        let names = self.model.names();
        let files: Vec<(&Vec<u8>, ModelFileId)> = { names.iter() }
            .map(|(path, thing)| (path, *thing))
            .filter(|(_, thing)| !self.model.is_directory(*thing))
            .collect();
        if opened.len() > OPEN_MAX {
            let (thing, closed) = opened.swap_remove(index(OPEN_MAX));
            if opened.iter().all(|(other, _)| *other != thing) {
                // The kernel forgets it, unless it has a name.
                let _ = directory.forget(closed.node());
            }
        }
        let (thing, file) = match opened.is_empty() || self.world.borrow_mut().kernel.rng.chance(600) {
            true if files.is_empty() => return None,
            true => {
                let (path, thing) = files[index(files.len())];
                let file = directory.open_file(node(&directory.names(), path)).ok()?;
                opened.push((thing, Arc::clone(&file)));
                (thing, file)
            }
            false => opened[index(opened.len())].clone(),
        };
        // For a file without a name it does not matter whether it is paged.
        let path = files.iter().find(|(_, other)| *other == thing);
        Some((thing, file, path.is_none_or(|(path, _)| is_paged(path))))
    }

    fn write(&mut self, directory: &TestedDirectory, opened: &mut OpenModelFiles) -> bool {
        let Some((thing, file, paged)) = self.file(directory, opened) else {
            return true;
        };
        let (offset, bytes) = match paged {
            true => self.draw_pages(),
            false => self.draw_bytes(),
        };
        let (_, answers) = self.next_request();
        let done = directory.write(&file, offset as u64, &bytes);
        if !self.is_answered(&done, answers) {
            self.leave_unanswered(UnansweredRequest::Write(thing, file.node(), offset, bytes));
            return false;
        }
        self.tell(|| {
            format!(
                "{} bytes at {offset} of {thing} are written: {done:?}",
                bytes.len()
            )
        });
        match done {
            Err(ChangeError::Disk(_)) => {
                self.hit("files: writes that the disk refused");
                true
            }
            done => {
                self.hit("files: writes");
                self.model.write(thing, offset, &bytes);
                if done.is_err() || directory.status().open >= FEW_FILES / 2 {
                    // Other files may have been recorded and closed to make room.
                    self.model.asked_to_record_all();
                }
                done.is_ok()
            }
        }
    }

    fn resize(&mut self, directory: &TestedDirectory, opened: &mut OpenModelFiles) -> bool {
        let Some((thing, file, paged)) = self.file(directory, opened) else {
            return true;
        };
        let size = match (paged, &mut self.world.borrow_mut().kernel.rng) {
            (true, rng) => rng.below(PAGES_MAX + 1) as usize * PAGE,
            (false, rng) => rng.below(UNPAGED_BYTES_MAX) as usize,
        };
        let (_, answers) = self.next_request();
        let done = directory.resize(&file, size as u64);
        if !self.is_answered(&done, answers) {
            self.leave_unanswered(UnansweredRequest::Resize(thing, file.node(), size));
            return false;
        }
        self.tell(|| format!("{thing} is made {size} bytes long: {done:?}"));
        match done {
            Err(ChangeError::Disk(_) | ChangeError::Full(_)) => true,
            // The change is held when the call returns, with everything written before. A change in doubt is
            // done whole or not at all.
            Ok(()) => {
                self.model.resize(thing, size);
                self.model.synced(thing);
                true
            }
            Err(_) => {
                self.model.resize(thing, size);
                false
            }
        }
    }

    fn sync(&mut self, directory: &TestedDirectory) -> bool {
        let (path, thing) = {
            let rng = &mut self.world.borrow_mut().kernel.rng;
            let names = self.model.names();
            if names.is_empty() {
                return true;
            }
            let nth = names.iter().nth(rng.index(names.len()));
            let Some((path, thing)) = nth else { return true };
            (path.clone(), *thing)
        };
        let node = node(&directory.names(), &path);
        self.model.asked_to_record(thing);
        let synced = directory.sync(node).map(drop);
        self.tell(|| format!("{} ({thing}) is synced: {synced:?}", path.escape_ascii()));
        if synced.is_ok() {
            self.hit("files: syncs");
            self.model.synced(thing);
        }
        may_continue(synced)
    }

    fn checkpoint(&mut self, directory: &TestedDirectory) -> bool {
        let done = directory.checkpoint();
        self.tell(|| format!("a checkpoint: {done:?}"));
        match done {
            Ok(()) => {
                self.hit("files: checkpoints");
                self.model.synced_all();
                true
            }
            // This error repeats until the directory is opened again.
            Err(CheckpointError::Sync(_)) => {
                self.hit("files: syncs of the disk beneath that failed");
                self.world.borrow_mut().kernel.rng.chance(500)
            }
            Err(_) => true,
        }
    }
}

/// Whether the program goes on. A change that the disk or the names refuse, or for which a full journal has
/// no room, is not done.
fn may_continue(done: Result<(), ChangeError>) -> bool {
    match done {
        Ok(()) | Err(ChangeError::Name(_) | ChangeError::Disk(_) | ChangeError::Full(_)) => true,
        Err(ChangeError::Append(_) | ChangeError::Wait(_) | ChangeError::Failed(_)) => false,
    }
}
