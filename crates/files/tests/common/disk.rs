//! A disk that keeps, in a power failure, what was synced; and of the rest any first part of what was done to names, and of what was done in files any of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use netram_files::{Allocation, Attributes, Found, Identity, Keep, Made, NodeKind, Owner, Tree};
use netram_proto::port::IoError;

/// What an inode is, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inode {
    pub(crate) kind: NodeKind,
    pub(crate) bytes: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) owner: Owner,
    pub(crate) labels: BTreeMap<Vec<u8>, Vec<u8>>,
    made: u64,
}

/// Something done in a file since it was synced last.
#[derive(Clone, Debug)]
enum Act {
    Write(u64, Vec<u8>),
    Resize(u64),
    Punch(u64, u64),
    Mode(Option<u32>, Option<u32>, Option<u32>),
    Label(Vec<u8>, Option<Vec<u8>>),
}

/// Something done to names.
#[derive(Clone, Debug)]
enum Naming {
    Add(Vec<u8>, u64),
    Remove(Vec<u8>),
    Rename(Vec<u8>, Vec<u8>, bool),
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
    /// So many bytes there is room for.
    room: Option<u64>,
    /// No catalog is kept any more.
    keeps_none: bool,
    /// Which disk it is.
    disk: u64,
}

/// Handles are of one disk.
#[derive(Clone, Default)]
pub(crate) struct MemoryDisk {
    inside: Arc<Mutex<Inside>>,
    catalog: Arc<Mutex<Option<Vec<u8>>>>,
}

const ENOENT: IoError = IoError { errno: 2 };
const EEXIST: IoError = IoError { errno: 17 };
const ENOTEMPTY: IoError = IoError { errno: 39 };

impl Act {
    fn carry_out(&self, inode: &mut Inode) {
        match self {
            Act::Write(offset, bytes) => {
                let end = *offset as usize + bytes.len();
                if inode.bytes.len() < end {
                    inode.bytes.resize(end, 0);
                }
                inode.bytes[*offset as usize..end].copy_from_slice(bytes);
            }
            Act::Resize(size) => inode.bytes.resize(*size as usize, 0),
            Act::Punch(offset, length) => {
                let end = ((offset + length) as usize).min(inode.bytes.len());
                let start = (*offset as usize).min(end);
                inode.bytes[start..end].fill(0);
            }
            Act::Mode(mode, user, group) => {
                inode.mode = mode.unwrap_or(inode.mode);
                inode.owner.user = user.unwrap_or(inode.owner.user);
                inode.owner.group = group.unwrap_or(inode.owner.group);
            }
            Act::Label(name, Some(value)) => drop(inode.labels.insert(name.clone(), value.clone())),
            Act::Label(name, None) => drop(inode.labels.remove(name)),
        }
    }
}

impl Naming {
    fn carry_out(&self, names: &mut BTreeMap<Vec<u8>, u64>) {
        match self {
            Naming::Add(path, inode) => drop(names.insert(path.clone(), *inode)),
            Naming::Remove(path) => drop(names.remove(path)),
            Naming::Rename(from, to, false) => {
                let moved = take(names, from);
                take(names, to);
                put(names, to, moved);
            }
            Naming::Rename(from, to, true) => {
                let (first, second) = (take(names, from), take(names, to));
                put(names, to, first);
                put(names, from, second);
            }
        }
    }
}

/// Everything at or below a path, by what is behind it.
fn take(names: &mut BTreeMap<Vec<u8>, u64>, path: &[u8]) -> Vec<(Vec<u8>, u64)> {
    let within = |other: &[u8]| other == path || other.starts_with(&[path, b"/"].concat());
    let taken: Vec<(Vec<u8>, u64)> = { names.iter() }
        .filter(|(other, _)| within(other))
        .map(|(other, inode)| (other[path.len()..].to_vec(), *inode))
        .collect();
    names.retain(|other, _| !within(other));
    taken
}

fn put(names: &mut BTreeMap<Vec<u8>, u64>, path: &[u8], moved: Vec<(Vec<u8>, u64)>) {
    names.extend({ moved.into_iter() }.map(|(rest, inode)| ([path, &rest].concat(), inode)));
}

impl Inside {
    fn step(&mut self) -> Result<(), IoError> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1).ok_or(IoError::EIO)?;
        }
        Ok(())
    }

    fn act(&mut self, inode: u64, act: Act) -> Result<(), IoError> {
        self.step()?;
        let Some(there) = self.inodes.get_mut(&inode) else {
            return Err(ENOENT);
        };
        act.carry_out(there);
        self.acts.entry(inode).or_default().push(act);
        Ok(())
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
    pub(crate) fn new() -> MemoryDisk {
        MemoryDisk::number(0)
    }

    /// One that can be told from others.
    pub(crate) fn number(number: u64) -> MemoryDisk {
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

    /// The process is gone, and what it has done is not.
    pub(crate) fn kill(&self) {
        self.inside.lock().unwrap().left = None;
    }

    /// The power is gone. `keep` says of each thing that was not synced whether it got to the platter: of names, the first that did not ends it.
    pub(crate) fn power_off(&self, mut keep: impl FnMut() -> bool) {
        let mut inside = self.inside.lock().unwrap();
        let inside = &mut *inside;
        let mut names = inside.synced_names.clone();
        for naming in inside.namings.iter().take_while(|_| keep()) {
            naming.carry_out(&mut names);
        }
        let mut inodes = BTreeMap::new();
        for inode in names.values().chain(&[0]) {
            let mut there = match inside.synced_inodes.get(inode) {
                Some(synced) => synced.clone(),
                None => {
                    let mut new = inside.inodes[inode].clone();
                    new.labels.clear();
                    // Where a link leads is with its name.
                    if new.kind != NodeKind::Symlink {
                        new.bytes.clear();
                    }
                    new
                }
            };
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
    pub(crate) fn fail_after(&self, operations: u64) {
        self.inside.lock().unwrap().left = Some(operations);
    }

    /// Catalogs are kept, or there is no room for them.
    pub(crate) fn set_keeps(&self, keeps: bool) {
        self.inside.lock().unwrap().keeps_none = !keeps;
    }

    /// There is room for so many bytes in all. `None`: for any number.
    pub(crate) fn set_room(&self, room: Option<u64>) {
        self.inside.lock().unwrap().room = room;
    }

    /// What somebody does who goes behind the folder's back.
    pub(crate) fn intrude(&self, path: &[u8]) {
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
    pub(crate) fn contents(&self) -> BTreeMap<Vec<u8>, Inode> {
        let inside = self.inside.lock().unwrap();
        let there = |(path, inode): (&Vec<u8>, &u64)| {
            let mut inode = inside.inodes[inode].clone();
            inode.made = 0;
            (path.clone(), inode)
        };
        inside.names.iter().map(there).collect()
    }

    /// Which names are one file's.
    pub(crate) fn same(&self, one: &[u8], other: &[u8]) -> bool {
        let inside = self.inside.lock().unwrap();
        inside.find(one) == inside.find(other)
    }
}

impl Tree for MemoryDisk {
    type File = u64;

    fn open(&self, path: &[u8]) -> Result<u64, IoError> {
        self.inside.lock().unwrap().find(path)
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
        inside.act(*file, Act::Write(offset, bytes.to_vec()))
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
        inside.step()?;
        inside.acts.remove(file);
        if let Some(inode) = inside.inodes.get(file).cloned() {
            inside.synced_inodes.insert(*file, inode);
        }
        Ok(())
    }

    fn sync(&self, path: &[u8]) -> Result<(), IoError> {
        let inode = self.open(path)?;
        self.sync_file(&inode)?;
        let mut inside = self.inside.lock().unwrap();
        if inside.inodes[&inode].kind == NodeKind::Folder {
            // As with a disk that has a journal of its own: what was done to names before is there as well.
            inside.synced_names = inside.names.clone();
            inside.namings.clear();
        }
        Ok(())
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
        let inode = self.open(path)?;
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
