//! A disk in memory that fails when it is told to: what the tests and the simulator have beneath a folder. Of no use to anybody else, and only there with
//! the feature `model`.
//!
//! It keeps, in a power failure, what was synced; and of the rest any first part of what was done to names, and of what was done in files any of it, a write page
//! by page.

mod acts;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use netram_proto::port::IoError;

use self::acts::{Act, Naming};
use crate::change::{Allocation, Attributes, Made, NodeKind, Owner};
use crate::limit::PAGE_BYTES;
use crate::names::Identity;
use crate::tree::{Found, Keep, Tree};

/// What an inode is, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// What it is.
    pub kind: NodeKind,
    /// What is in a file, or where a symbolic link leads.
    pub bytes: Vec<u8>,
    /// Its permissions.
    pub mode: u32,
    /// Whose it is.
    pub owner: Owner,
    /// Its extended attributes.
    pub labels: BTreeMap<Vec<u8>, Vec<u8>>,
    made: u64,
}

#[derive(Clone, Debug, Default)]
struct Inside {
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<Vec<u8>, u64>,
    /// As they are on the platter, with what has come since.
    synced_inodes: BTreeMap<u64, Inode>,
    synced_names: BTreeMap<Vec<u8>, u64>,
    acts: BTreeMap<u64, Vec<Act>>,
    namings: Vec<Naming>,
    count: u64,
    /// Operations that are done until all fail, as if the power were gone.
    left: Option<u64>,
    /// One that was not done, for that.
    stopped: bool,
    /// Operations until one fails, and no other.
    slip: Option<u64>,
    /// So many bytes there is room for.
    room: Option<u64>,
    /// No catalog is kept any more.
    keeps_none: bool,
    /// No file is opened any more: the process has no descriptor left.
    opens_none: bool,
    /// Syncs that failed and lost what they should have carried.
    lost_syncs: u64,
    /// Which disk it is.
    disk: u64,
}

/// The disk, and where the catalog is kept. Handles are of one disk.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk {
    inside: Arc<Mutex<Inside>>,
    catalog: Arc<Mutex<Option<Vec<u8>>>>,
}

const ENOENT: IoError = IoError { errno: 2 };
const EEXIST: IoError = IoError { errno: 17 };
const ENOTEMPTY: IoError = IoError { errno: 39 };

impl Inside {
    fn step(&mut self) -> Result<(), IoError> {
        match self.left {
            Some(0) => {
                self.stopped = true;
                return Err(IoError::EIO);
            }
            Some(left) => self.left = Some(left - 1),
            None => (),
        }
        match self.slip {
            Some(0) => {
                self.slip = None;
                return Err(IoError::EIO);
            }
            slip => self.slip = slip.map(|left| left - 1),
        }
        Ok(())
    }

    fn act(&mut self, inode: u64, act: Act) -> Result<(), IoError> {
        self.step()?;
        self.done(inode, act)
    }

    fn done(&mut self, inode: u64, act: Act) -> Result<(), IoError> {
        let Some(there) = self.inodes.get_mut(&inode) else {
            return Err(ENOENT);
        };
        act.carry_out(there);
        self.acts.entry(inode).or_default().push(act);
        Ok(())
    }

    /// What the platter has of it: at first only that it was made.
    fn on_platter(&self, inode: u64) -> Option<Inode> {
        if let Some(synced) = self.synced_inodes.get(&inode) {
            return Some(synced.clone());
        }
        let mut new = self.inodes.get(&inode)?.clone();
        new.labels.clear();
        // Where a link leads is with its name.
        if new.kind != NodeKind::Symlink {
            new.bytes.clear();
        }
        Some(new)
    }

    fn name(&mut self, naming: Naming) -> Result<(), IoError> {
        self.step()?;
        naming.carry_out(&mut self.names);
        self.namings.push(naming);
        Ok(())
    }

    fn find(&self, path: &[u8]) -> Result<u64, IoError> {
        match path {
            b"" => Ok(0),
            path => self.names.get(path).copied().ok_or(ENOENT),
        }
    }

    fn opens(&self, path: &[u8]) -> Result<u64, IoError> {
        match self.opens_none {
            true => Err(IoError::EMFILE),
            false => self.find(path),
        }
    }

    fn free(&self, path: &[u8]) -> Result<(), IoError> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        self.find(&path[..slash.unwrap_or(0)])?;
        match self.names.contains_key(path) {
            true => Err(EEXIST),
            false => Ok(()),
        }
    }
}

impl MemoryDisk {
    /// An empty one.
    pub fn new() -> MemoryDisk {
        MemoryDisk::number(0)
    }

    /// One that can be told from others.
    pub fn number(number: u64) -> MemoryDisk {
        let disk = MemoryDisk::default();
        disk.inside.lock().unwrap().disk = number;
        let root = Inode {
            kind: NodeKind::Folder,
            bytes: Vec::new(),
            mode: 0o700,
            owner: Owner::default(),
            labels: BTreeMap::new(),
            made: 0,
        };
        let mut inside = disk.inside.lock().unwrap();
        inside.inodes.insert(0, root.clone());
        inside.synced_inodes.insert(0, root);
        drop(inside);
        disk
    }

    /// The process is gone, and what it has done is not. The next one begins, and the disk does again what it is asked to.
    pub fn kill(&self) {
        let mut inside = self.inside.lock().unwrap();
        (inside.left, inside.stopped, inside.slip) = (None, false, None);
        (inside.opens_none, inside.keeps_none) = (false, false);
    }

    /// The power is gone. `keep` says of each thing that was not synced whether it got to the platter: of names, the first that did not ends it.
    pub fn power_off(&self, mut keep: impl FnMut() -> bool) {
        let mut inside = self.inside.lock().unwrap();
        let inside = &mut *inside;
        let mut names = inside.synced_names.clone();
        for naming in inside.namings.iter().take_while(|_| keep()) {
            naming.carry_out(&mut names);
        }
        let mut inodes = BTreeMap::new();
        for inode in names.values().chain(&[0]) {
            let mut there = inside.on_platter(*inode).expect("what is named is there");
            for act in inside.acts.get(inode).into_iter().flatten().filter(|_| keep()) {
                act.carry_out(&mut there);
            }
            inodes.insert(*inode, there);
        }
        *inside = Inside {
            synced_inodes: inodes.clone(),
            synced_names: names.clone(),
            inodes,
            names,
            count: inside.count,
            room: inside.room,
            disk: inside.disk,
            ..Inside::default()
        };
    }

    /// After so many more operations all fail.
    pub fn fail_after(&self, operations: u64) {
        self.inside.lock().unwrap().left = Some(operations);
    }

    /// Whether an operation was not done for that.
    pub fn has_stopped(&self) -> bool {
        self.inside.lock().unwrap().stopped
    }

    /// Number of syncs that failed: the page cache then shows what the platter never got.
    pub fn lost_syncs(&self) -> u64 {
        self.inside.lock().unwrap().lost_syncs
    }

    /// Whether some operation is about to fail.
    pub fn is_failing(&self) -> bool {
        let inside = self.inside.lock().unwrap();
        inside.left.is_some() || inside.slip.is_some()
    }

    /// After so many more operations one fails, and no other.
    pub fn slip_after(&self, operations: u64) {
        self.inside.lock().unwrap().slip = Some(operations);
    }

    /// Catalogs are kept, or there is no room for them.
    pub fn set_keeps(&self, keeps: bool) {
        self.inside.lock().unwrap().keeps_none = !keeps;
    }

    /// Files are opened and made, or there is no descriptor for them.
    pub fn set_opens(&self, opens: bool) {
        self.inside.lock().unwrap().opens_none = !opens;
    }

    /// There is room for so many bytes in all. `None`: for any number.
    pub fn set_room(&self, room: Option<u64>) {
        self.inside.lock().unwrap().room = room;
    }

    /// What somebody does who goes behind the folder's back.
    pub fn intrude(&self, path: &[u8]) {
        self.make(
            path,
            &Made {
                kind: NodeKind::File,
                mode: 0,
                owner: Owner::default(),
                target: b"",
            },
        )
        .unwrap();
    }

    /// All paths, and what is there.
    pub fn contents(&self) -> BTreeMap<Vec<u8>, Inode> {
        let inside = self.inside.lock().unwrap();
        let there = |(path, inode): (&Vec<u8>, &u64)| {
            let mut inode = inside.inodes[inode].clone();
            inode.made = 0;
            (path.clone(), inode)
        };
        inside.names.iter().map(there).collect()
    }

    /// Which names are one file's.
    pub fn same(&self, one: &[u8], other: &[u8]) -> bool {
        let inside = self.inside.lock().unwrap();
        inside.find(one) == inside.find(other)
    }
}

impl Tree for MemoryDisk {
    type File = u64;
    type Held = u64;

    fn open(&self, path: &[u8]) -> Result<u64, IoError> {
        self.inside.lock().unwrap().opens(path)
    }

    fn may_write(&self, _file: &u64) -> bool {
        true
    }

    fn open_to_write(&self, path: &[u8]) -> Result<u64, IoError> {
        self.open(path)
    }

    fn stage(&self, path: &[u8], made: &Made<'_>) -> Result<(u64, Identity), IoError> {
        if self.inside.lock().unwrap().opens_none {
            return Err(IoError::EMFILE);
        }
        if self.inside.lock().unwrap().names.contains_key(path) {
            self.remove(path, false)?;
        }
        self.make(path, made)?;
        let inode = self.open(path)?;
        Ok((inode, Identity { inode, made_ns: 0 }))
    }

    fn read(&self, file: &u64, offset: u64, into: &mut [u8]) -> Result<usize, IoError> {
        let inside = self.inside.lock().unwrap();
        let bytes = &inside.inodes.get(file).ok_or(ENOENT)?.bytes;
        let there = bytes.get(offset as usize..).unwrap_or_default();
        let length = there.len().min(into.len());
        into[..length].copy_from_slice(&there[..length]);
        Ok(length)
    }

    fn write(&self, file: &u64, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let mut inside = self.inside.lock().unwrap();
        let used: usize = inside.inodes.values().map(|inode| inode.bytes.len()).sum();
        if inside.room.is_some_and(|room| (used + bytes.len()) as u64 > room) {
            return Err(IoError::ENOSPC);
        }
        inside.step()?;
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let room = (PAGE_BYTES - at % PAGE_BYTES).min(rest.len() as u64);
            let (page, more) = rest.split_at(room as usize);
            inside.done(*file, Act::Write(at, page.to_vec()))?;
            (at, rest) = (at + room, more);
        }
        Ok(())
    }

    fn resize(&self, file: &u64, size: u64) -> Result<(), IoError> {
        self.inside.lock().unwrap().act(*file, Act::Resize(size))
    }

    fn allocate(&self, file: &u64, how: Allocation, offset: u64, length: u64) -> Result<(), IoError> {
        let mut inside = self.inside.lock().unwrap();
        let size = inside.inodes.get(file).ok_or(ENOENT)?.bytes.len() as u64;
        match how {
            Allocation::KeepSize => Ok(()),
            Allocation::Extend => inside.act(*file, Act::Resize(size.max(offset + length))),
            Allocation::Punch | Allocation::ZeroKeepSize => inside.act(*file, Act::Punch(offset, length)),
            Allocation::Zero => {
                inside.act(*file, Act::Punch(offset, length))?;
                inside.act(*file, Act::Resize(size.max(offset + length)))
            }
        }
    }

    fn sync_file(&self, file: &u64) -> Result<(), IoError> {
        let mut inside = self.inside.lock().unwrap();
        let step = inside.step();
        if inside.stopped {
            return step;
        }
        if step.is_err() {
            // As Linux has it: what a sync that fails should have carried is taken for clean, and no later one carries it.
            inside.acts.remove(file);
            inside.lost_syncs += 1;
            return step;
        }
        let acts = inside.acts.remove(file).unwrap_or_default();
        if let Some(mut there) = inside.on_platter(*file) {
            acts.iter().for_each(|act| act.carry_out(&mut there));
            inside.synced_inodes.insert(*file, there);
        }
        Ok(())
    }

    fn hold(&self, path: &[u8]) -> Result<u64, IoError> {
        self.open(path)
    }

    fn sync_held(&self, inode: &u64) -> Result<(), IoError> {
        self.sync_file(inode)?;
        let mut inside = self.inside.lock().unwrap();
        if inside.inodes[inode].kind == NodeKind::Folder {
            // As with a disk that has a journal of its own: what was done to names before is there as well.
            inside.synced_names = inside.names.clone();
            inside.namings.clear();
        }
        Ok(())
    }

    fn forget(&self, path: &[u8]) {
        let mut inside = self.inside.lock().unwrap();
        let inode = inside.find(path).ok();
        let there = inode.and_then(|inode| Some((inode, inside.on_platter(inode)?)));
        if let Some((inode, mut there)) = there {
            let acts = inside.acts.get(&inode).into_iter().flatten();
            acts.for_each(|act| act.carry_out(&mut there));
            inside.inodes.insert(inode, there);
        }
    }

    fn make(&self, path: &[u8], made: &Made<'_>) -> Result<(), IoError> {
        let mut inside = self.inside.lock().unwrap();
        inside.free(path)?;
        inside.count += 1;
        let number = inside.count;
        let inode = Inode {
            kind: made.kind,
            bytes: made.target.to_vec(),
            mode: made.mode,
            owner: made.owner,
            labels: BTreeMap::new(),
            made: number,
        };
        inside.name(Naming::Add(path.to_vec(), number))?;
        inside.inodes.insert(number, inode);
        Ok(())
    }

    fn link(&self, path: &[u8], new: &[u8]) -> Result<(), IoError> {
        let mut inside = self.inside.lock().unwrap();
        let inode = inside.find(path)?;
        inside.free(new)?;
        inside.name(Naming::Add(new.to_vec(), inode))
    }

    fn remove(&self, path: &[u8], folder: bool) -> Result<(), IoError> {
        let mut inside = self.inside.lock().unwrap();
        let inode = inside.find(path)?;
        assert_eq!(inside.inodes[&inode].kind == NodeKind::Folder, folder);
        let below = [path, b"/"].concat();
        if inside.names.keys().any(|other| other.starts_with(&below)) {
            return Err(ENOTEMPTY);
        }
        inside.name(Naming::Remove(path.to_vec()))
    }

    fn rename(&self, from: &[u8], to: &[u8], exchange: bool) -> Result<(), IoError> {
        let mut inside = self.inside.lock().unwrap();
        let there = inside.find(from)?;
        if exchange {
            inside.find(to)?;
        }
        if inside.find(to) == Ok(there) {
            return Ok(());
        }
        inside.name(Naming::Rename(from.to_vec(), to.to_vec(), exchange))
    }

    fn set(&self, path: &[u8], attributes: &Attributes) -> Result<(), IoError> {
        let mut inside = self.inside.lock().unwrap();
        let inode = inside.find(path)?;
        let Attributes {
            mode, user, group, ..
        } = *attributes;
        inside.act(inode, Act::Mode(mode, user, group))
    }

    fn label(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<(), IoError> {
        let mut inside = self.inside.lock().unwrap();
        let inode = inside.find(path)?;
        inside.act(inode, Act::Label(name.to_vec(), value.map(<[u8]>::to_vec)))
    }

    fn set_file(&self, file: &u64, attributes: &Attributes) -> Result<(), IoError> {
        let Attributes {
            mode, user, group, ..
        } = *attributes;
        self.inside
            .lock()
            .unwrap()
            .act(*file, Act::Mode(mode, user, group))
    }

    fn label_file(&self, file: &u64, name: &[u8], value: Option<&[u8]>) -> Result<(), IoError> {
        let label = Act::Label(name.to_vec(), value.map(<[u8]>::to_vec));
        self.inside.lock().unwrap().act(*file, label)
    }

    fn list(&self, path: &[u8]) -> Result<Vec<Found>, IoError> {
        let inside = self.inside.lock().unwrap();
        inside.find(path)?;
        let prefix = match path {
            b"" => Vec::new(),
            path => [path, b"/"].concat(),
        };
        let found = |(other, inode): (&Vec<u8>, &u64)| {
            let name = other.strip_prefix(&prefix[..])?;
            (!name.contains(&b'/')).then(|| Found {
                name: name.to_vec(),
                kind: Some(inside.inodes[inode].kind),
                identity: Identity {
                    inode: *inode,
                    made_ns: 0,
                },
            })
        };
        Ok(inside.names.iter().filter_map(found).collect())
    }

    fn identity(&self, path: &[u8]) -> Result<Identity, IoError> {
        let inode = self.inside.lock().unwrap().find(path)?;
        let made_ns = if inode == 0 {
            self.inside.lock().unwrap().disk
        } else {
            0
        };
        Ok(Identity { inode, made_ns })
    }

    fn ownership(&self, path: &[u8]) -> Result<(u32, Owner), IoError> {
        let inside = self.inside.lock().unwrap();
        let inode = &inside.inodes[&inside.find(path)?];
        Ok((inode.mode, inode.owner))
    }
}

impl Keep for MemoryDisk {
    fn load(&self) -> Result<Option<Vec<u8>>, IoError> {
        Ok(self.catalog.lock().unwrap().clone())
    }

    fn store(&self, bytes: &[u8]) -> Result<(), IoError> {
        let mut inside = self.inside.lock().unwrap();
        inside.step()?;
        if inside.keeps_none {
            return Err(IoError::ENOSPC);
        }
        *self.catalog.lock().unwrap() = Some(bytes.to_vec());
        Ok(())
    }

    fn clear(&self) -> Result<(), IoError> {
        self.inside.lock().unwrap().step()?;
        *self.catalog.lock().unwrap() = None;
        Ok(())
    }
}
