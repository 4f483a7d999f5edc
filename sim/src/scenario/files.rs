//! A program keeps a folder of files: makes, writes, syncs, renames, links, removes; checkpoints run, the disk beneath fails, machines die.

mod keeper;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use netram_files::model::MemoryDisk;
use netram_files::{
    ChangeError, CheckpointError, File, Folder, Made, Names, Node, NodeKind, OpenError, Options, Owner,
    Place, Tree,
};
use netram_proto::planted::Planted;
use netram_proto::port::{Durability, LogError};
use netram_proto::time::{Span, Time};

use self::keeper::Keeper;
use super::journal;
use crate::check::files::{Found, Model, Naming, OnDisk, PAGE, Thing, is_paged, name, page};
use crate::check::{fail, rule06};
use crate::process::SimLog;
use crate::world::{SharedWorld, World};

/// Pages of a file, at most: several records of the smallest journal.
const PAGES_MAX: u64 = 24;
/// Pages of one write.
const WRITE_PAGES_MAX: u64 = 8;
/// Bytes of a file that is written at any place.
const LOOSE_MAX: u64 = 20_000;
/// How deep folders are in one another.
const DEPTH_MAX: usize = 3;
/// Files that the program has open.
const OPEN_MAX: usize = 4;

/// Files that may be open where descriptors are few.
const FEW_FILES: usize = 10;
const POWER_CUTS: &str = "files: power cuts of the disk beneath";

type Tested = Folder<SimLog, MemoryDisk, MemoryDisk>;
type Opened = Vec<(Thing, Arc<File<u64>>)>;

struct Program {
    world: SharedWorld,
    disk: MemoryDisk,
    model: Model,
    durability: Durability,
    /// Loss was accepted, and the folder has not been opened since.
    lossy: bool,
    /// After such a loss the folder cannot be opened, and need not be.
    over: bool,
    /// The disk beneath fails no more.
    healed: bool,
    /// Power cuts, and syncs that failed, before the folder was opened last: after either the disk is not what the server saw.
    lost: (u64, u64),
    keeper: Keeper,
}

/// Runs the story and gives the world back.
pub(super) fn run(mut world: World) -> World {
    let durability = match world.rng.below(8) {
        0 => Durability::Disk,
        1 if world.profile.can_count() => Durability::Both,
        _ => Durability::Remote,
    };
    let disk = MemoryDisk::new();
    world.tree = Some(disk.clone());
    let lives = world.rng.between(1, 4);
    let mut program = Program {
        world: Rc::new(RefCell::new(world)),
        disk,
        model: Model::empty(),
        durability,
        lossy: false,
        over: false,
        healed: false,
        lost: (0, 0),
        keeper: Keeper::new(Time(0), Planted::NONE),
    };
    for _ in 0..lives {
        program.live();
    }
    program.world.borrow_mut().heal();
    program.healed = true;
    program.live();
    program.live();
    let Ok(world) = Rc::try_unwrap(program.world) else {
        unreachable!("every log of this world is dropped")
    };
    world.into_inner()
}

impl Program {
    /// One process, from its opening to its end.
    fn live(&mut self) {
        if self.over {
            return;
        }
        let accepted = self.world.borrow().coverage.get("losses that were accepted");
        let opened = journal::open(&mut self.world.borrow_mut(), 0);
        self.lossy |= self.world.borrow().coverage.get("losses that were accepted") > accepted;
        let Some(process) = opened else { return };
        self.serve(process);
        let mut world = self.world.borrow_mut();
        let cut = world.rng.chance(500);
        world.crash(process, cut);
        let pause = world.rng.pick(&[0, 1, 30, 400, 2500]);
        world.run_for(Span::from_ms(pause));
    }

    fn serve(&mut self, process: usize) {
        let Some(folder) = self.open(process) else {
            self.hit("files: openings that failed");
            return;
        };
        let mut opened = Opened::new();
        let deeds = self.world.borrow_mut().rng.between(5, 60);
        for _ in 0..deeds {
            self.spoil();
            let goes_on = self.deed(process, &folder, &mut opened);
            let mut world = self.world.borrow_mut();
            if world.died_of_tree(process) || !world.alive(process) || !goes_on {
                return;
            }
        }
        drop(opened);
        if self.world.borrow_mut().rng.chance(200) && folder.close().is_ok() {
            self.hit("files: closings");
            // The disk alone has all of it, whatever it has not synced.
            self.model.synced_all();
            self.disk.power_off(|| false);
            self.model
                .seen(&self.on_disk(), "after a closing and a power cut");
        }
    }

    fn hit(&self, name: &'static str) {
        self.world.borrow_mut().coverage.hit(name);
    }

    fn tell(&self, line: impl FnOnce() -> String) {
        self.world.borrow_mut().tell(line);
    }

    /// Opens the folder, and compares it.
    fn open(&mut self, process: usize) -> Option<Tested> {
        // The process is a new one, and has a disk that works.
        self.disk.kill();
        self.disk.set_room(None);
        let (log, journal, cut) = {
            let world = &mut *self.world.borrow_mut();
            let cut = (!self.healed && world.rng.chance(250)).then(|| world.rng.below(60));
            (SimLog::new(&self.world, process), world.journal, cut)
        };
        if let Some(steps) = cut {
            self.disk.fail_after(steps);
        }
        let planted = self.world.borrow().planted;
        let files_max = self.world.borrow_mut().rng.pick(&[1 << 20, 1 << 20, FEW_FILES]);
        let options = Options {
            journal,
            durability: self.durability,
            loss_accepted: self.lossy,
            files_max,
            planted,
        };
        let (folder, recovered) = match Folder::open(log, self.disk.clone(), self.disk.clone(), options) {
            Ok(opened) => opened,
            Err(error) => {
                self.tell(|| format!("the folder is not opened: {error}"));
                self.refused(process, error);
                return None;
            }
        };
        self.disk.kill();
        self.tell(|| format!("the folder is open: {recovered:?}"));
        let found = self.on_disk();
        let lost = (
            self.world.borrow().coverage.get(POWER_CUTS),
            self.disk.lost_syncs(),
        );
        let killed = std::mem::replace(&mut self.lost, lost) == lost;
        self.keeper = {
            let world = self.world.borrow();
            Keeper::new(world.now, world.planted)
        };
        let in_doubt = match std::mem::take(&mut self.lossy) {
            true => {
                self.hit("files: openings after a loss that was accepted");
                self.model.reopened_with_loss(found);
                0
            }
            false => self.model.reopened(found, killed),
        };
        let coverage = &mut self.world.borrow_mut().coverage;
        coverage.hit("files: openings");
        if killed {
            coverage.hit("files: openings after the server alone was killed");
        }
        coverage.add(
            "files: new files without a record that were kept",
            recovered.unrecorded.len() as u64,
        );
        coverage.add(
            "files: changes of names in doubt that were found",
            in_doubt as u64,
        );
        coverage.add("files: bytes written again", recovered.bytes);
        coverage.add("files: files and folders made again", recovered.made);
        coverage.add(
            "files: names given or taken again",
            recovered.renamed + recovered.removed,
        );
        Some(folder)
    }

    /// The folder was not opened. Somebody must be dead, or the journal's disk ill.
    fn refused(&mut self, process: usize, error: OpenError) {
        let mut world = self.world.borrow_mut();
        if world.died_of_tree(process) {
            world.coverage.hit("files: recoveries cut off");
            return;
        }
        if !world.alive(process) {
            return;
        }
        match error {
            OpenError::Log(LogError::Closed | LogError::Io(_)) => (),
            OpenError::Log(error) => rule06::unread(&world, 0, error),
            _ if self.lossy => {
                world.coverage.hit("files: folders that a loss has ended");
                self.over = true;
            }
            error => fail(5, format!("the folder cannot be opened: {error}")),
        }
    }

    /// What is on the disk, as a program sees it.
    fn on_disk(&self) -> OnDisk {
        let found = { self.disk.contents().into_iter() }.map(|(path, inode)| {
            let found = Found {
                inode: self.disk.identity(&path).map_or(0, |identity| identity.inode),
                folder: inode.kind == NodeKind::Folder,
                bytes: inode.bytes,
            };
            (path, found)
        });
        found.collect()
    }

    /// Now and then the disk beneath is about to fail: the process dies between two operations on it, or one is refused.
    fn spoil(&self) {
        let rng = &mut self.world.borrow_mut().rng;
        match rng.below(100) {
            _ if self.healed => (),
            0..3 => self.disk.fail_after(rng.below(8)),
            3 => self.disk.slip_after(rng.below(4)),
            4 => self.disk.set_opens(false),
            5 => self.disk.set_keeps(false),
            6..20 => {
                self.disk.set_opens(true);
                self.disk.set_keeps(true);
            }
            _ => (),
        }
    }

    /// `false`: this life is over.
    fn deed(&mut self, process: usize, folder: &Tested, opened: &mut Opened) -> bool {
        let draw = self.world.borrow_mut().rng.below(40);
        match draw {
            0..12 => return self.rename_or_so(folder),
            12..22 => return self.write(folder, opened),
            22..24 => return self.resize(folder, opened),
            24..30 => return self.sync(folder),
            30 => {
                self.model.asked_to_record_all();
                return goes_on(folder.record_written());
            }
            31 => return self.checkpoint(folder),
            32 => self.model.seen(&self.on_disk(), "while running"),
            33 if !self.healed => {
                let rng = &mut self.world.borrow_mut().rng;
                let room = rng.chance(300).then(|| rng.below(150_000));
                self.disk.set_room(room);
            }
            _ => {
                let ms = self.world.borrow_mut().rng.pick(&[0, 1, 5, 20, 100, 600, 2500]);
                return self.keep(process, folder, ms);
            }
        }
        true
    }

    /// Changes names.
    fn rename_or_so(&mut self, folder: &Tested) -> bool {
        let Some(naming) = self.draw_naming() else {
            return true;
        };
        let named = |path: &Vec<u8>| self.model.names().get(path).copied();
        // What was written to a file that is renamed or linked is as safe as its name.
        let taken_along = match &naming {
            Naming::Link(of, _) => named(of),
            Naming::Rename(from, ..) => named(from),
            _ => None,
        };
        taken_along
            .into_iter()
            .for_each(|thing| self.model.asked_to_record(thing));
        let done = carry_out(folder, &naming);
        if folder.status().open >= FEW_FILES / 2 {
            self.model.asked_to_record_all();
        }
        self.tell(|| format!("names: {}: {done:?}", told(&naming)));
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

    fn draw_naming(&self) -> Option<Naming> {
        let rng = &mut self.world.borrow_mut().rng;
        let names = self.model.names();
        let mut folders = vec![Vec::new()];
        folders.extend({ names.iter() }.filter_map(|(path, thing)| {
            let shallow = path.split(|byte| *byte == b'/').count() < DEPTH_MAX;
            (shallow && self.model.is_folder(*thing)).then(|| [path, &b"/"[..]].concat())
        }));
        let letter = rng.pick(b"pppld");
        let new = [
            &folders[rng.index(folders.len())][..],
            &[letter, b'0' + rng.below(3) as u8],
        ]
        .concat();
        let alike: Vec<&Vec<u8>> = { names.keys() }
            .filter(|path| name(path).starts_with(&[letter]))
            .collect();
        let draw = rng.below(12);
        if alike.is_empty() || draw < 4 {
            return Some(Naming::Make(new, letter == b'd'));
        }
        let (one, other) = (alike[rng.index(alike.len())], alike[rng.index(alike.len())]);
        match draw {
            4..6 => Some(Naming::Remove(one.clone())),
            6 if letter != b'd' => Some(Naming::Link(one.clone(), new)),
            6 => None,
            7 => Some(Naming::Rename(one.clone(), other.clone(), true)),
            8 => Some(Naming::Rename(one.clone(), other.clone(), false)),
            _ => Some(Naming::Rename(one.clone(), new, false)),
        }
    }

    /// A file: one that is open, which may have no name any more, or any other.
    fn file(&self, folder: &Tested, opened: &mut Opened) -> Option<(Thing, Arc<File<u64>>, bool)> {
        // Whoever opens a file may have others recorded and closed, which is the world's business.
        let index = |count| self.world.borrow_mut().rng.index(count);
        let names = self.model.names();
        let files: Vec<(&Vec<u8>, Thing)> = { names.iter() }
            .map(|(path, thing)| (path, *thing))
            .filter(|(_, thing)| !self.model.is_folder(*thing))
            .collect();
        if opened.len() > OPEN_MAX {
            opened.swap_remove(index(OPEN_MAX));
        }
        let (thing, file) = match opened.is_empty() || self.world.borrow_mut().rng.chance(600) {
            true if files.is_empty() => return None,
            true => {
                let (path, thing) = files[index(files.len())];
                let file = folder.open_file(node(&folder.names(), path)).ok()?;
                opened.push((thing, Arc::clone(&file)));
                (thing, file)
            }
            false => opened[index(opened.len())].clone(),
        };
        // How one is written that nobody can call by its name is nobody's concern.
        let path = files.iter().find(|(_, other)| *other == thing);
        Some((thing, file, path.is_none_or(|(path, _)| is_paged(path))))
    }

    fn write(&mut self, folder: &Tested, opened: &mut Opened) -> bool {
        let Some((thing, file, paged)) = self.file(folder, opened) else {
            return true;
        };
        let (offset, bytes) = match paged {
            true => self.draw_pages(),
            false => self.draw_bytes(),
        };
        let done = folder.write(&file, offset as u64, &bytes);
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
                if done.is_err() || folder.status().open >= FEW_FILES / 2 {
                    // Others may have been closed for it, and recorded before.
                    self.model.asked_to_record_all();
                }
                done.is_ok()
            }
        }
    }

    fn draw_pages(&mut self) -> (usize, Vec<u8>) {
        let (first, count) = {
            let rng = &mut self.world.borrow_mut().rng;
            let most = rng.pick(&[1, 2, WRITE_PAGES_MAX]);
            let count = rng.between(1, most);
            (rng.below(PAGES_MAX - count + 1), count)
        };
        let pages: Vec<Vec<u8>> = (0..count).map(|_| page(self.model.number())).collect();
        (first as usize * PAGE, pages.concat())
    }

    fn draw_bytes(&self) -> (usize, Vec<u8>) {
        let rng = &mut self.world.borrow_mut().rng;
        let longest = rng.pick(&[8, 700, 9000]);
        let mut bytes = vec![0; rng.between(1, longest) as usize];
        rng.fill(&mut bytes);
        (rng.below(LOOSE_MAX - bytes.len() as u64) as usize, bytes)
    }

    fn resize(&mut self, folder: &Tested, opened: &mut Opened) -> bool {
        let Some((thing, file, paged)) = self.file(folder, opened) else {
            return true;
        };
        let size = match (paged, &mut self.world.borrow_mut().rng) {
            (true, rng) => rng.below(PAGES_MAX + 1) as usize * PAGE,
            (false, rng) => rng.below(LOOSE_MAX) as usize,
        };
        let done = folder.resize(&file, size as u64);
        self.tell(|| format!("{thing} is made {size} bytes long: {done:?}"));
        match done {
            Err(ChangeError::Disk(_)) => true,
            // It is held when it returns, with what was written before; what is in doubt is done whole or not at all.
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

    fn sync(&mut self, folder: &Tested) -> bool {
        let (path, thing) = {
            let rng = &mut self.world.borrow_mut().rng;
            let names = self.model.names();
            if names.is_empty() {
                return true;
            }
            let nth = names.iter().nth(rng.index(names.len()));
            let Some((path, thing)) = nth else { return true };
            (path.clone(), *thing)
        };
        let node = node(&folder.names(), &path);
        self.model.asked_to_record(thing);
        let synced = folder.sync(node).map(drop);
        self.tell(|| format!("{} ({thing}) is synced: {synced:?}", path.escape_ascii()));
        if synced.is_ok() {
            self.hit("files: syncs");
            self.model.synced(thing);
        }
        goes_on(synced)
    }

    fn checkpoint(&mut self, folder: &Tested) -> bool {
        let done = folder.checkpoint();
        self.tell(|| format!("a checkpoint: {done:?}"));
        match done {
            Ok(()) => {
                self.hit("files: checkpoints");
                self.model.synced_all();
                true
            }
            // Whoever is told so once is told so until the folder is opened again.
            Err(CheckpointError::Sync(_)) => {
                self.hit("files: syncs of the disk beneath that failed");
                self.world.borrow_mut().rng.chance(500)
            }
            Err(_) => true,
        }
    }
}

/// Whether the program goes on. What the disk or the names refuse is not done, and no more; nor is what a full journal has no room for.
fn goes_on(done: Result<(), ChangeError>) -> bool {
    match done {
        Ok(()) | Err(ChangeError::Name(_) | ChangeError::Disk(_) | ChangeError::Full(_)) => true,
        Err(ChangeError::Append(_) | ChangeError::Wait(_) | ChangeError::Failed(_)) => false,
    }
}

/// The folder's node with this path.
fn node(names: &Names, path: &[u8]) -> Node {
    let mut node = Node::ROOT;
    for name in path.split(|byte| *byte == b'/') {
        let Some(next) = names.look_up(Place { folder: node, name }) else {
            fail(
                6,
                format!("the folder knows of no {}, which is there", path.escape_ascii()),
            );
        };
        node = next;
    }
    node
}

fn place<'p>(names: &Names, path: &'p [u8]) -> Place<'p> {
    let name = name(path);
    let folder = match path.len() - name.len() {
        0 => Node::ROOT,
        slash => node(names, &path[..slash - 1]),
    };
    Place { folder, name }
}

fn told(naming: &Naming) -> String {
    let (what, paths) = match naming {
        Naming::Make(path, _) => ("make", [path, path]),
        Naming::Remove(path) => ("remove", [path, path]),
        Naming::Link(of, path) => ("link", [of, path]),
        Naming::Rename(from, to, false) => ("rename", [from, to]),
        Naming::Rename(from, to, true) => ("exchange", [from, to]),
    };
    format!("{what} {} {}", paths[0].escape_ascii(), paths[1].escape_ascii())
}

fn carry_out(folder: &Tested, naming: &Naming) -> Result<(), ChangeError> {
    let place = |path| place(&folder.names(), path);
    match naming {
        Naming::Make(path, is_folder) => {
            let made = Made {
                kind: match is_folder {
                    true => NodeKind::Folder,
                    false => NodeKind::File,
                },
                mode: 0o600,
                owner: Owner::default(),
                target: b"",
            };
            folder.make(place(path), made).map(drop)
        }
        Naming::Link(of, path) => {
            let of = node(&folder.names(), of);
            folder.link(of, place(path))
        }
        Naming::Remove(path) => {
            let is_folder = name(path).starts_with(b"d");
            folder.remove(place(path), is_folder)
        }
        Naming::Rename(from, to, exchange) => folder.rename(place(from), place(to), true, *exchange),
    }
}
