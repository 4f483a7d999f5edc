//! A disk in memory that fails on demand: the backing file system of tests and the simulator, with the
//! feature `model`.
//!
//! A power failure keeps everything that was synced. Of the rest it keeps any prefix of the changes to names,
//! and any subset of the changes inside files, a write page by page.

mod unsynced;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use netram_proto::port::IoError;

use self::unsynced::{InodeOp, NameOp};
use crate::change::{AttributeChange, FallocateMode, FileOwner, InodeKind, InodeSpec};
use crate::file_tree::{CatalogStore, FileTree, ListedEntry};
use crate::limit::PAGE_BYTES;
use crate::name_table::InodeIdentity;

/// An inode's attributes and content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInode {
    /// Type.
    pub kind: InodeKind,
    /// Content of a file, or target of a symbolic link.
    pub bytes: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub owner: FileOwner,
    /// Extended attributes: name → value.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    made: u64,
}

#[derive(Clone, Debug, Default)]
struct ModelState {
    inodes: BTreeMap<u64, ModelInode>,
    names: BTreeMap<Vec<u8>, u64>,
    /// State on the platter; unsynced operations follow it.
    synced_inodes: BTreeMap<u64, ModelInode>,
    synced_names: BTreeMap<Vec<u8>, u64>,
    inode_ops: BTreeMap<u64, Vec<InodeOp>>,
    name_ops: Vec<NameOp>,
    count: u64,
    /// Number of operations until all fail, as in a power failure.
    ops_until_failure: Option<u64>,
    /// Whether an operation has failed because of `ops_until_failure`.
    stopped: bool,
    /// Number of operations until a single one fails.
    ops_until_error: Option<u64>,
    /// Capacity in bytes; `None`: unlimited.
    room: Option<u64>,
    /// Whether storing a catalog fails.
    rejects_catalog: bool,
    /// Whether opens fail, as if the process had no descriptor left.
    rejects_opens: bool,
    /// Number of failed syncs whose writes were lost.
    lost_syncs: u64,
    /// Number that distinguishes this disk in tests.
    disk: u64,
}

/// The disk and the catalog's storage. Clones are handles of the same disk.
#[derive(Clone, Debug, Default)]
pub struct MemoryDisk {
    state: Arc<Mutex<ModelState>>,
    catalog: Arc<Mutex<Option<Vec<u8>>>>,
}

const ENOENT: IoError = IoError { errno: 2 };
const EEXIST: IoError = IoError { errno: 17 };
const ENOTEMPTY: IoError = IoError { errno: 39 };

impl ModelState {
    fn step(&mut self) -> Result<(), IoError> {
        match self.ops_until_failure {
            Some(0) => {
                self.stopped = true;
                return Err(IoError::EIO);
            }
            Some(left) => self.ops_until_failure = Some(left - 1),
            None => (),
        }
        match self.ops_until_error {
            Some(0) => {
                self.ops_until_error = None;
                return Err(IoError::EIO);
            }
            slip => self.ops_until_error = slip.map(|left| left - 1),
        }
        Ok(())
    }

    fn do_op(&mut self, inode: u64, act: InodeOp) -> Result<(), IoError> {
        self.step()?;
        self.apply_op(inode, act)
    }

    fn apply_op(&mut self, inode: u64, act: InodeOp) -> Result<(), IoError> {
        let Some(there) = self.inodes.get_mut(&inode) else {
            return Err(ENOENT);
        };
        act.carry_out(there);
        self.inode_ops.entry(inode).or_default().push(act);
        Ok(())
    }

    /// State of an inode on the platter; a new one is there, but empty.
    fn on_platter(&self, inode: u64) -> Option<ModelInode> {
        if let Some(synced) = self.synced_inodes.get(&inode) {
            return Some(synced.clone());
        }
        let mut new = self.inodes.get(&inode)?.clone();
        new.xattrs.clear();
        // The target of a link is stored with its name.
        if new.kind != InodeKind::Symlink {
            new.bytes.clear();
        }
        Some(new)
    }

    fn name(&mut self, naming: NameOp) -> Result<(), IoError> {
        self.step()?;
        naming.carry_out(&mut self.names);
        self.name_ops.push(naming);
        Ok(())
    }

    fn find(&self, path: &[u8]) -> Result<u64, IoError> {
        match path {
            b"" => Ok(0),
            path => self.names.get(path).copied().ok_or(ENOENT),
        }
    }

    fn opens(&self, path: &[u8]) -> Result<u64, IoError> {
        match self.rejects_opens {
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
    /// Makes an empty disk.
    pub fn new() -> MemoryDisk {
        MemoryDisk::number(0)
    }

    /// Makes an empty disk with a number of its own.
    pub fn number(number: u64) -> MemoryDisk {
        let disk = MemoryDisk::default();
        disk.state.lock().unwrap().disk = number;
        let root = ModelInode {
            kind: InodeKind::Directory,
            bytes: Vec::new(),
            mode: 0o700,
            owner: FileOwner::default(),
            xattrs: BTreeMap::new(),
            made: 0,
        };
        let mut inside = disk.state.lock().unwrap();
        inside.inodes.insert(0, root.clone());
        inside.synced_inodes.insert(0, root);
        drop(inside);
        disk
    }

    /// Ends the process: the changes remain, and the disk's injected failures are cleared.
    pub fn kill(&self) {
        let mut inside = self.state.lock().unwrap();
        (inside.ops_until_failure, inside.stopped, inside.ops_until_error) = (None, false, None);
        (inside.rejects_opens, inside.rejects_catalog) = (false, false);
    }

    /// Simulates a power failure. `keep` decides for each unsynced operation whether it reached the platter;
    /// for names, the first that did not ends the sequence.
    pub fn power_off(&self, mut keep: impl FnMut() -> bool) {
        let mut inside = self.state.lock().unwrap();
        let inside = &mut *inside;
        let mut names = inside.synced_names.clone();
        for naming in inside.name_ops.iter().take_while(|_| keep()) {
            naming.carry_out(&mut names);
        }
        let mut inodes = BTreeMap::new();
        for inode in names.values().chain(&[0]) {
            let mut there = inside.on_platter(*inode).expect("a named inode exists");
            for act in inside
                .inode_ops
                .get(inode)
                .into_iter()
                .flatten()
                .filter(|_| keep())
            {
                act.carry_out(&mut there);
            }
            inodes.insert(*inode, there);
        }
        *inside = ModelState {
            synced_inodes: inodes.clone(),
            synced_names: names.clone(),
            inodes,
            names,
            count: inside.count,
            room: inside.room,
            disk: inside.disk,
            ..ModelState::default()
        };
    }

    /// Makes all operations fail after `operations` more.
    pub fn fail_after(&self, operations: u64) {
        self.state.lock().unwrap().ops_until_failure = Some(operations);
    }

    /// Whether an operation has failed because of [`MemoryDisk::fail_after`].
    pub fn has_stopped(&self) -> bool {
        self.state.lock().unwrap().stopped
    }

    /// Number of failed syncs. After each, the page cache shows bytes that the platter never got.
    pub fn lost_syncs(&self) -> u64 {
        self.state.lock().unwrap().lost_syncs
    }

    /// Whether a failure is scheduled.
    pub fn is_failing(&self) -> bool {
        let inside = self.state.lock().unwrap();
        inside.ops_until_failure.is_some() || inside.ops_until_error.is_some()
    }

    /// Makes a single operation fail after `operations` more.
    pub fn fail_once_after(&self, operations: u64) {
        self.state.lock().unwrap().ops_until_error = Some(operations);
    }

    /// Lets storing a catalog succeed, or fail for want of room.
    pub fn set_catalog_writable(&self, keeps: bool) {
        self.state.lock().unwrap().rejects_catalog = !keeps;
    }

    /// Lets opens succeed, or fail for want of descriptors.
    pub fn set_opens_allowed(&self, opens: bool) {
        self.state.lock().unwrap().rejects_opens = !opens;
    }

    /// Sets the capacity in bytes; `None`: unlimited.
    pub fn set_room(&self, room: Option<u64>) {
        self.state.lock().unwrap().room = room;
    }

    /// Creates a file behind the directory's back.
    pub fn create_foreign_file(&self, path: &[u8]) {
        self.make(
            path,
            &InodeSpec {
                kind: InodeKind::File,
                mode: 0,
                owner: FileOwner::default(),
                target: b"",
            },
        )
        .unwrap();
    }

    /// All paths with their inodes.
    pub fn contents(&self) -> BTreeMap<Vec<u8>, ModelInode> {
        let inside = self.state.lock().unwrap();
        let there = |(path, inode): (&Vec<u8>, &u64)| {
            let mut inode = inside.inodes[inode].clone();
            inode.made = 0;
            (path.clone(), inode)
        };
        inside.names.iter().map(there).collect()
    }

    /// Whether two paths name the same inode.
    pub fn is_same_file(&self, one: &[u8], other: &[u8]) -> bool {
        let inside = self.state.lock().unwrap();
        inside.find(one) == inside.find(other)
    }
}

impl FileTree for MemoryDisk {
    type File = u64;
    type SyncHandle = u64;

    fn open(&self, path: &[u8]) -> Result<u64, IoError> {
        self.state.lock().unwrap().opens(path)
    }

    fn may_write(&self, _file: &u64) -> bool {
        true
    }

    fn open_to_write(&self, path: &[u8]) -> Result<u64, IoError> {
        self.open(path)
    }

    fn stage(&self, path: &[u8], made: &InodeSpec<'_>) -> Result<(u64, InodeIdentity), IoError> {
        if self.state.lock().unwrap().rejects_opens {
            return Err(IoError::EMFILE);
        }
        if self.state.lock().unwrap().names.contains_key(path) {
            self.remove(path, false)?;
        }
        self.make(path, made)?;
        let inode = self.open(path)?;
        Ok((inode, InodeIdentity { inode, made_ns: 0 }))
    }

    fn read(&self, file: &u64, offset: u64, into: &mut [u8]) -> Result<usize, IoError> {
        let inside = self.state.lock().unwrap();
        let bytes = &inside.inodes.get(file).ok_or(ENOENT)?.bytes;
        let there = bytes.get(offset as usize..).unwrap_or_default();
        let length = there.len().min(into.len());
        into[..length].copy_from_slice(&there[..length]);
        Ok(length)
    }

    fn write(&self, file: &u64, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let mut inside = self.state.lock().unwrap();
        let used: usize = inside.inodes.values().map(|inode| inode.bytes.len()).sum();
        if inside.room.is_some_and(|room| (used + bytes.len()) as u64 > room) {
            return Err(IoError::ENOSPC);
        }
        inside.step()?;
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let room = (PAGE_BYTES - at % PAGE_BYTES).min(rest.len() as u64);
            let (page, more) = rest.split_at(room as usize);
            inside.apply_op(*file, InodeOp::Write(at, page.to_vec()))?;
            (at, rest) = (at + room, more);
        }
        Ok(())
    }

    fn resize(&self, file: &u64, size: u64) -> Result<(), IoError> {
        self.state.lock().unwrap().do_op(*file, InodeOp::Resize(size))
    }

    fn allocate(&self, file: &u64, how: FallocateMode, offset: u64, length: u64) -> Result<(), IoError> {
        let mut inside = self.state.lock().unwrap();
        let size = inside.inodes.get(file).ok_or(ENOENT)?.bytes.len() as u64;
        match how {
            FallocateMode::KeepSize => Ok(()),
            FallocateMode::Extend => inside.do_op(*file, InodeOp::Resize(size.max(offset + length))),
            FallocateMode::Punch | FallocateMode::ZeroKeepSize => {
                inside.do_op(*file, InodeOp::Punch(offset, length))
            }
            FallocateMode::Zero => {
                inside.do_op(*file, InodeOp::Punch(offset, length))?;
                inside.do_op(*file, InodeOp::Resize(size.max(offset + length)))
            }
        }
    }

    fn sync_file(&self, file: &u64) -> Result<(), IoError> {
        let mut inside = self.state.lock().unwrap();
        let step = inside.step();
        if inside.stopped {
            return step;
        }
        if step.is_err() {
            // As in Linux: after a failed sync the pages count as clean, and no later sync writes them.
            inside.inode_ops.remove(file);
            inside.lost_syncs += 1;
            return step;
        }
        let acts = inside.inode_ops.remove(file).unwrap_or_default();
        if let Some(mut there) = inside.on_platter(*file) {
            acts.iter().for_each(|act| act.carry_out(&mut there));
            inside.synced_inodes.insert(*file, there);
        }
        Ok(())
    }

    fn open_for_sync(&self, path: &[u8]) -> Result<u64, IoError> {
        self.open(path)
    }

    fn sync_handle(&self, inode: &u64) -> Result<(), IoError> {
        self.sync_file(inode)?;
        let mut inside = self.state.lock().unwrap();
        if inside.inodes[inode].kind == InodeKind::Directory {
            // As on a journaling file system: earlier changes to names become durable as well.
            inside.synced_names = inside.names.clone();
            inside.name_ops.clear();
        }
        Ok(())
    }

    fn sync_disk(&self) -> Result<(), IoError> {
        let inodes: Vec<u64> = self.state.lock().unwrap().inodes.keys().copied().collect();
        { inodes.iter() }.try_for_each(|inode| self.sync_handle(inode))
    }

    fn drop_cache(&self, path: &[u8]) {
        let mut inside = self.state.lock().unwrap();
        let inode = inside.find(path).ok();
        let there = inode.and_then(|inode| Some((inode, inside.on_platter(inode)?)));
        if let Some((inode, mut there)) = there {
            let acts = inside.inode_ops.get(&inode).into_iter().flatten();
            acts.for_each(|act| act.carry_out(&mut there));
            inside.inodes.insert(inode, there);
        }
    }

    fn make(&self, path: &[u8], made: &InodeSpec<'_>) -> Result<(), IoError> {
        let mut inside = self.state.lock().unwrap();
        inside.free(path)?;
        inside.count += 1;
        let number = inside.count;
        let inode = ModelInode {
            kind: made.kind,
            bytes: made.target.to_vec(),
            mode: made.mode,
            owner: made.owner,
            xattrs: BTreeMap::new(),
            made: number,
        };
        inside.name(NameOp::Add(path.to_vec(), number))?;
        inside.inodes.insert(number, inode);
        Ok(())
    }

    fn link(&self, path: &[u8], new: &[u8]) -> Result<(), IoError> {
        let mut inside = self.state.lock().unwrap();
        let inode = inside.find(path)?;
        inside.free(new)?;
        inside.name(NameOp::Add(new.to_vec(), inode))
    }

    fn remove(&self, path: &[u8], directory: bool) -> Result<(), IoError> {
        let mut inside = self.state.lock().unwrap();
        let inode = inside.find(path)?;
        assert_eq!(inside.inodes[&inode].kind == InodeKind::Directory, directory);
        let below = [path, b"/"].concat();
        if inside.names.keys().any(|other| other.starts_with(&below)) {
            return Err(ENOTEMPTY);
        }
        inside.name(NameOp::Remove(path.to_vec()))
    }

    fn rename(&self, from: &[u8], to: &[u8], exchange: bool) -> Result<(), IoError> {
        let mut inside = self.state.lock().unwrap();
        let there = inside.find(from)?;
        if exchange {
            inside.find(to)?;
        }
        if inside.find(to) == Ok(there) {
            return Ok(());
        }
        inside.name(NameOp::Rename(from.to_vec(), to.to_vec(), exchange))
    }

    fn set_attributes(&self, path: &[u8], attributes: &AttributeChange) -> Result<(), IoError> {
        let mut inside = self.state.lock().unwrap();
        let inode = inside.find(path)?;
        let AttributeChange {
            mode, user, group, ..
        } = *attributes;
        inside.do_op(inode, InodeOp::Mode(mode, user, group))
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<(), IoError> {
        let mut inside = self.state.lock().unwrap();
        let inode = inside.find(path)?;
        inside.do_op(inode, InodeOp::SetXattr(name.to_vec(), value.map(<[u8]>::to_vec)))
    }

    fn set_attributes_of_file(&self, file: &u64, attributes: &AttributeChange) -> Result<(), IoError> {
        let AttributeChange {
            mode, user, group, ..
        } = *attributes;
        self.state
            .lock()
            .unwrap()
            .do_op(*file, InodeOp::Mode(mode, user, group))
    }

    fn set_xattr_of_file(&self, file: &u64, name: &[u8], value: Option<&[u8]>) -> Result<(), IoError> {
        let label = InodeOp::SetXattr(name.to_vec(), value.map(<[u8]>::to_vec));
        self.state.lock().unwrap().do_op(*file, label)
    }

    fn list(&self, path: &[u8]) -> Result<Vec<ListedEntry>, IoError> {
        let inside = self.state.lock().unwrap();
        inside.find(path)?;
        let prefix = match path {
            b"" => Vec::new(),
            path => [path, b"/"].concat(),
        };
        let found = |(other, inode): (&Vec<u8>, &u64)| {
            let name = other.strip_prefix(&prefix[..])?;
            (!name.contains(&b'/')).then(|| ListedEntry {
                name: name.to_vec(),
                kind: Some(inside.inodes[inode].kind),
                identity: InodeIdentity {
                    inode: *inode,
                    made_ns: 0,
                },
            })
        };
        Ok(inside.names.iter().filter_map(found).collect())
    }

    fn identity(&self, path: &[u8]) -> Result<InodeIdentity, IoError> {
        let inode = self.state.lock().unwrap().find(path)?;
        let made_ns = if inode == 0 {
            self.state.lock().unwrap().disk
        } else {
            0
        };
        Ok(InodeIdentity { inode, made_ns })
    }

    fn ownership(&self, path: &[u8]) -> Result<(u32, FileOwner), IoError> {
        let inside = self.state.lock().unwrap();
        let inode = &inside.inodes[&inside.find(path)?];
        Ok((inode.mode, inode.owner))
    }
}

impl CatalogStore for MemoryDisk {
    fn load(&self) -> Result<Option<Vec<u8>>, IoError> {
        Ok(self.catalog.lock().unwrap().clone())
    }

    fn store(&self, bytes: &[u8]) -> Result<(), IoError> {
        let mut inside = self.state.lock().unwrap();
        inside.step()?;
        if inside.rejects_catalog {
            return Err(IoError::ENOSPC);
        }
        *self.catalog.lock().unwrap() = Some(bytes.to_vec());
        Ok(())
    }

    fn clear(&self) -> Result<(), IoError> {
        self.state.lock().unwrap().step()?;
        *self.catalog.lock().unwrap() = None;
        Ok(())
    }
}
