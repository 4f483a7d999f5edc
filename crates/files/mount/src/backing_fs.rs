//! The backing file system: a directory on a disk and everything below it.
//!
//! Paths are relative to that directory, and lead neither out of it nor through symbolic links
//! ([`OpenDirectory`]).

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use netram_files::limit::XATTR_BYTES_MAX;
use netram_files::{
    AttributeChange, FallocateMode, FileOwner, FileTime, FileTree, InodeIdentity, InodeKind, InodeSpec,
    ListedEntry,
};
use netram_proto::port::IoError;
use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags, RawMode, RenameFlags, Stat, StatVfs, Timespec,
    Timestamps, UTIME_OMIT, XattrFlags, chmod, chownat, fallocate, fchmod, fchown, fcntl_getfl, fgetxattr,
    flistxattr, fremovexattr, fsetxattr, fstat, fstatvfs, fsync, ftruncate, futimens, getxattr, linkat,
    listxattr, mkdirat, readlinkat, removexattr, renameat_with, setxattr, statat, symlinkat, syncfs,
    unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};

use crate::identity::{identify, identify_open};
use crate::open_directory::{OpenDirectory, path_of, system_path};
use crate::replay_rights::ReplayRights;

const PERMISSIONS: u32 = 0o7777;

/// A directory on a disk.
#[derive(Debug)]
pub(crate) struct BackingFs {
    root: OpenDirectory,
    /// Open file by which a server that takes over syncs the disk: the kernel reports to it what has failed
    /// since its opening.
    disk: OwnedFd,
    /// Owners and permissions that a replayed record may give.
    rights: ReplayRights,
    /// Delay added to every sync; zero unless a benchmark models a slower disk.
    sync_delay: Duration,
}

fn io_error_of_errno(errno: Errno) -> IoError {
    IoError {
        errno: errno.raw_os_error(),
    }
}

fn io_error_of(error: &io::Error) -> IoError {
    IoError {
        errno: error.raw_os_error().unwrap_or(IoError::EIO.errno),
    }
}

impl BackingFs {
    /// The files below `root`, on the file system of `disk`, with `sync_delay` added to every sync. Until
    /// [`BackingFs::end_replay`] it carries out what a journal says, and afterwards what programs do.
    pub(crate) fn of(root: OpenDirectory, disk: OwnedFd, sync_delay: Duration) -> io::Result<BackingFs> {
        Ok(BackingFs {
            rights: ReplayRights::of(&fstat(&root)?),
            root,
            disk,
            sync_delay,
        })
    }

    /// Carries out what programs do from now on. Returns the number of files that kept their owner, or lost
    /// set-id bits, against what the journal says.
    pub(crate) fn end_replay(&self) -> usize {
        self.rights.end()
    }

    fn descriptor(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        self.root.open(path, flags, Mode::empty())
    }

    fn create(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        self.root.open(path, flags, Mode::RUSR | Mode::WUSR)
    }

    /// Attributes of a path, without following a symbolic link.
    pub(crate) fn stat(&self, path: &[u8]) -> Result<Stat, IoError> {
        self.named(path).map_err(io_error_of_errno)
    }

    fn named(&self, path: &[u8]) -> Result<Stat, Errno> {
        let (parent, name) = self.root.parent_of(path)?;
        statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Target of a symbolic link.
    pub(crate) fn target(&self, path: &[u8]) -> Result<CString, IoError> {
        let (parent, name) = self.root.parent_of(path).map_err(io_error_of_errno)?;
        readlinkat(&parent, name, Vec::new()).map_err(io_error_of_errno)
    }

    /// Free and total space of the file system.
    pub(crate) fn free_space(&self) -> Result<StatVfs, IoError> {
        fstatvfs(&self.root).map_err(io_error_of_errno)
    }

    /// Value of an extended attribute. `None`: there is none of that name.
    pub(crate) fn xattr_of(&self, path: &[u8], name: &[u8]) -> Result<Option<Vec<u8>>, IoError> {
        let mut value = vec![0; XATTR_BYTES_MAX];
        let asked = match self.subject(path).map_err(io_error_of_errno)? {
            // Symbolic links have none.
            None => return Ok(None),
            Some(Subject::Open(file)) => fgetxattr(&file, OsStr::from_bytes(name), &mut value[..]),
            Some(Subject::Named { path, .. }) => getxattr(&path, OsStr::from_bytes(name), &mut value[..]),
        };
        xattr_value(asked, value)
    }

    /// Value of an extended attribute of an open file, which may have no name.
    pub(crate) fn xattr_of_file(&self, file: &File, name: &[u8]) -> Result<Option<Vec<u8>>, IoError> {
        let mut value = vec![0; XATTR_BYTES_MAX];
        xattr_value(fgetxattr(file, OsStr::from_bytes(name), &mut value[..]), value)
    }

    /// Names of the extended attributes, each followed by a zero byte.
    pub(crate) fn xattrs_of(&self, path: &[u8]) -> Result<Vec<u8>, IoError> {
        let mut names = vec![0_u8; XATTR_BYTES_MAX];
        let asked = match self.subject(path).map_err(io_error_of_errno)? {
            None => return Ok(Vec::new()),
            Some(Subject::Open(file)) => flistxattr(&file, &mut names[..]),
            Some(Subject::Named { path, .. }) => listxattr(&path, &mut names[..]),
        };
        names.truncate(asked.map_err(io_error_of_errno)?);
        Ok(names)
    }

    /// Names of the extended attributes of an open file, which may have no name.
    pub(crate) fn xattrs_of_file(&self, file: &File) -> Result<Vec<u8>, IoError> {
        let mut names = vec![0_u8; XATTR_BYTES_MAX];
        let length = flistxattr(file, &mut names[..]).map_err(io_error_of_errno)?;
        names.truncate(length);
        Ok(names)
    }

    /// Handle for reading extended attributes, which needs no read permission. `None`: a symbolic link.
    fn subject(&self, path: &[u8]) -> Result<Option<Subject>, Errno> {
        match self.descriptor(path, OFlags::RDONLY) {
            Err(Errno::LOOP) => Ok(None),
            Err(Errno::ACCESS) => {
                let file = self.descriptor(path, OFlags::PATH)?;
                Ok(Some(Subject::Named {
                    path: path_of(&file),
                    _file: file,
                }))
            }
            opened => Ok(Some(Subject::Open(opened?))),
        }
    }

    /// Opens a file although its owner has withdrawn the permission: descriptors opened earlier keep writing,
    /// and recovery replays those writes. The permission is granted for the moment of opening. Root needs
    /// none of this.
    fn open_as_owner(&self, path: &[u8], flags: OFlags, needed: RawMode) -> Result<OwnedFd, Errno> {
        match self.descriptor(path, flags) {
            Err(Errno::ACCESS) => (),
            opened => return opened,
        }
        let file = self.descriptor(path, OFlags::PATH)?;
        let there = fstat(&file)?;
        if there.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Errno::ACCESS);
        }
        let set = |mode| chmod(path_of(&file), Mode::from_raw_mode(mode));
        let mode = there.st_mode & PERMISSIONS;
        set(mode | needed)?;
        let opened = self.descriptor(path, flags);
        set(mode)?;
        opened
    }

    /// Opens a file or directory for a sync.
    fn try_open_for_sync(&self, path: &[u8]) -> Result<BackingHandle, IoError> {
        let there = self.stat(path)?;
        let path = match FileType::from_raw_mode(there.st_mode) {
            // Symbolic links cannot be opened. On a journaling file system the sync of its directory covers
            // it.
            FileType::Symlink => {
                let slash = path.iter().rposition(|byte| *byte == b'/');
                &path[..slash.unwrap_or(0)]
            }
            _ => path,
        };
        (self.descriptor(path, OFlags::RDONLY).map(BackingHandle::Open)).map_err(io_error_of_errno)
    }

    fn set_owner_and_mode(&self, fd: BorrowedFd<'_>, made: &InodeSpec<'_>) -> Result<(), Errno> {
        let there = fstat(fd)?;
        let FileOwner { user, group } = made.owner;
        // Without root, `chown` fails even if it would change nothing.
        if (there.st_uid, there.st_gid) != (user, group) {
            let given = fchown(fd, Some(Uid::from_raw(user)), Some(Gid::from_raw(group)));
            self.rights.unless_withheld(&there, given)?;
        }
        let mode = self.rights.mode(&fstat(fd)?, made.mode & PERMISSIONS);
        fchmod(fd, Mode::from_raw_mode(mode))
    }

    fn make_file(&self, path: &[u8], made: &InodeSpec<'_>) -> Result<(), Errno> {
        let file = self.create(path)?;
        self.set_owner_and_mode(file.as_fd(), made)
    }

    fn make_directory(&self, path: &[u8], made: &InodeSpec<'_>) -> Result<(), Errno> {
        let (parent, name) = self.root.parent_of(path)?;
        mkdirat(&parent, name, Mode::RWXU)?;
        let directory = self.descriptor(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        self.set_owner_and_mode(directory.as_fd(), made)
    }

    fn make_symlink(&self, path: &[u8], made: &InodeSpec<'_>) -> Result<(), Errno> {
        let (parent, name) = self.root.parent_of(path)?;
        symlinkat(system_path(made.target), &parent, name)?;
        let there = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let FileOwner { user, group } = made.owner;
        if (there.st_uid, there.st_gid) == (user, group) {
            return Ok(());
        }
        let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
        let given = chownat(&parent, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW);
        self.rights.unless_withheld(&there, given)
    }

    fn set_named_attributes(&self, path: &[u8], attributes: &AttributeChange) -> Result<(), Errno> {
        let AttributeChange {
            mode,
            user,
            group,
            accessed,
            modified,
        } = *attributes;
        let (parent, name) = self.root.parent_of(path)?;
        if user.is_some() || group.is_some() {
            let (user, group) = (user.map(Uid::from_raw), group.map(Gid::from_raw));
            let there = statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let given = chownat(&parent, name, user, group, AtFlags::SYMLINK_NOFOLLOW);
            self.rights.unless_withheld(&there, given)?;
        }
        // After the owner: changing that clears set-user-id.
        if let Some(mode) = mode {
            // The name may be a link by now. Its own file cannot: it is open.
            let file = self.descriptor(path, OFlags::PATH)?;
            let mode = self.rights.mode(&fstat(&file)?, mode as RawMode & PERMISSIONS);
            chmod(path_of(&file), Mode::from_raw_mode(mode))?;
        }
        if accessed.is_some() || modified.is_some() {
            let times = times(accessed, modified);
            utimensat(&parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    /// Sets an extended attribute, or removes it. Not one that gives rights, if the journal may not.
    fn set_named_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<(), Errno> {
        let (subject, flags) = (self.subject(path)?, XattrFlags::empty());
        if value.is_some() && self.rights.withholds_xattr(name, || self.named(path))? {
            return Ok(());
        }
        let name = OsStr::from_bytes(name);
        let done = match (subject, value) {
            (None, _) => Err(Errno::PERM),
            (Some(Subject::Open(file)), Some(value)) => fsetxattr(&file, name, value, flags),
            (Some(Subject::Named { path, .. }), Some(value)) => setxattr(&path, name, value, flags),
            (Some(Subject::Open(file)), None) => fremovexattr(&file, name),
            (Some(Subject::Named { path, .. }), None) => removexattr(&path, name),
        };
        match (done, value) {
            // When replayed after a crash, the attribute may be gone already.
            (Err(Errno::NODATA), None) => Ok(()),
            (done, _) => done,
        }
    }
}

/// Handle for reading extended attributes.
enum Subject {
    Open(OwnedFd),
    /// A path in `/proc` to the descriptor, valid while `_file` is open.
    Named {
        path: PathBuf,
        _file: OwnedFd,
    },
}

fn xattr_value(asked: Result<usize, Errno>, mut value: Vec<u8>) -> Result<Option<Vec<u8>>, IoError> {
    match asked {
        Ok(length) => {
            value.truncate(length);
            Ok(Some(value))
        }
        Err(Errno::NODATA) => Ok(None),
        Err(errno) => Err(io_error_of_errno(errno)),
    }
}

/// A file or directory to be synced.
pub(crate) enum BackingHandle {
    Open(OwnedFd),
    /// The owner may not open the file; the whole disk is synced instead.
    WholeDisk,
}

/// Repeats a sync while it is interrupted: an interrupted sync says nothing about earlier writes.
fn uninterrupted(mut sync: impl FnMut() -> Result<(), Errno>) -> Result<(), IoError> {
    loop {
        match sync() {
            Err(Errno::INTR) => (),
            synced => return synced.map_err(io_error_of_errno),
        }
    }
}

impl FileTree for BackingFs {
    type File = File;
    type SyncHandle = BackingHandle;

    fn may_write(&self, file: &File) -> bool {
        fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::RDWR))
    }

    fn open_to_write(&self, path: &[u8]) -> Result<File, IoError> {
        let opened = self.open_as_owner(path, OFlags::RDWR, 0o600);
        opened.map(File::from).map_err(io_error_of_errno)
    }

    fn stage(&self, path: &[u8], made: &InodeSpec<'_>) -> Result<(File, InodeIdentity), IoError> {
        let file = match self.create(path) {
            // Left behind by a creation that could not be renamed.
            Err(Errno::EXIST) => {
                self.remove(path, false)?;
                self.create(path)
            }
            made => made,
        };
        let file = file.map_err(io_error_of_errno)?;
        let known = self
            .set_owner_and_mode(file.as_fd(), made)
            .and_then(|()| identify_open(file.as_fd()));
        if known.is_err() {
            let _ = self.remove(path, false);
        }
        let (_, identity) = known.map_err(io_error_of_errno)?;
        Ok((File::from(file), identity))
    }

    fn open(&self, path: &[u8]) -> Result<File, IoError> {
        let opened = match self.descriptor(path, OFlags::RDWR) {
            // The owner has made the file read-only; it can still be read.
            Err(Errno::ACCESS) => self.descriptor(path, OFlags::RDONLY),
            opened => opened,
        };
        opened.map(File::from).map_err(io_error_of_errno)
    }

    fn read(&self, file: &File, offset: u64, into: &mut [u8]) -> Result<usize, IoError> {
        let mut read = 0;
        while read < into.len() {
            match file.read_at(&mut into[read..], offset + read as u64) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(io_error_of(&error)),
            }
        }
        Ok(read)
    }

    fn write(&self, file: &File, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        file.write_all_at(bytes, offset)
            .map_err(|error| io_error_of(&error))
    }

    fn resize(&self, file: &File, size: u64) -> Result<(), IoError> {
        ftruncate(file, size).map_err(io_error_of_errno)
    }

    fn allocate(&self, file: &File, how: FallocateMode, offset: u64, length: u64) -> Result<(), IoError> {
        let flags = match how {
            FallocateMode::Extend => FallocateFlags::empty(),
            FallocateMode::KeepSize => FallocateFlags::KEEP_SIZE,
            FallocateMode::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            FallocateMode::Zero => FallocateFlags::ZERO_RANGE,
            FallocateMode::ZeroKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        fallocate(file, flags, offset, length).map_err(io_error_of_errno)
    }

    fn sync_file(&self, file: &File) -> Result<(), IoError> {
        std::thread::sleep(self.sync_delay);
        uninterrupted(|| fsync(file))
    }

    fn open_for_sync(&self, path: &[u8]) -> Result<BackingHandle, IoError> {
        match self.try_open_for_sync(path) {
            Err(IoError::EACCES) => Ok(BackingHandle::WholeDisk),
            held => held,
        }
    }

    fn sync_handle(&self, held: &BackingHandle) -> Result<(), IoError> {
        std::thread::sleep(self.sync_delay);
        match held {
            BackingHandle::Open(file) => uninterrupted(|| fsync(file)),
            BackingHandle::WholeDisk => uninterrupted(|| syncfs(&self.root)),
        }
    }

    fn sync_disk(&self) -> Result<(), IoError> {
        std::thread::sleep(self.sync_delay);
        uninterrupted(|| syncfs(&self.disk))
    }

    fn drop_cache(&self, path: &[u8]) {
        // Dirty pages stay and are written by the next sync. If the system refuses, the cache stays as it is.
        if let Ok(file) = self.descriptor(path, OFlags::RDONLY) {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }

    fn forget_failed_writes(&self, path: &[u8]) {
        if let Ok(file) = self.open_as_owner(path, OFlags::RDONLY, 0o400) {
            // An error is of bytes that are written again, or that no sync has returned for.
            let _ = fsync(&file);
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }

    fn make(&self, path: &[u8], made: &InodeSpec<'_>) -> Result<(), IoError> {
        let done = match made.kind {
            InodeKind::File => self.make_file(path, made),
            InodeKind::Directory => self.make_directory(path, made),
            InodeKind::Symlink => self.make_symlink(path, made),
        };
        if matches!(done, Err(errno) if errno != Errno::EXIST) {
            // Remove an incomplete inode.
            let _ = self.remove(path, made.kind == InodeKind::Directory);
        }
        done.map_err(io_error_of_errno)
    }

    fn link(&self, path: &[u8], new: &[u8]) -> Result<(), IoError> {
        let link = || {
            let (from, old_name) = self.root.parent_of(path)?;
            let (to, new_name) = self.root.parent_of(new)?;
            linkat(&from, old_name, &to, new_name, AtFlags::empty())
        };
        link().map_err(io_error_of_errno)
    }

    fn remove(&self, path: &[u8], directory: bool) -> Result<(), IoError> {
        let flags = match directory {
            true => AtFlags::REMOVEDIR,
            false => AtFlags::empty(),
        };
        let (parent, name) = self.root.parent_of(path).map_err(io_error_of_errno)?;
        unlinkat(&parent, name, flags).map_err(io_error_of_errno)
    }

    fn rename(&self, from: &[u8], to: &[u8], exchange: bool) -> Result<(), IoError> {
        let flags = match exchange {
            true => RenameFlags::EXCHANGE,
            false => RenameFlags::empty(),
        };
        let rename = || {
            let (old, old_name) = self.root.parent_of(from)?;
            let (new, new_name) = self.root.parent_of(to)?;
            renameat_with(&old, old_name, &new, new_name, flags)
        };
        rename().map_err(io_error_of_errno)
    }

    fn set_attributes_of_file(&self, file: &File, attributes: &AttributeChange) -> Result<(), IoError> {
        let AttributeChange {
            mode,
            user,
            group,
            accessed,
            modified,
        } = *attributes;
        if user.is_some() || group.is_some() {
            fchown(file, user.map(Uid::from_raw), group.map(Gid::from_raw)).map_err(io_error_of_errno)?;
        }
        if let Some(mode) = mode {
            fchmod(file, Mode::from_raw_mode(mode as RawMode & PERMISSIONS)).map_err(io_error_of_errno)?;
        }
        if accessed.is_some() || modified.is_some() {
            futimens(file, &times(accessed, modified)).map_err(io_error_of_errno)?;
        }
        Ok(())
    }

    fn set_xattr_of_file(&self, file: &File, name: &[u8], value: Option<&[u8]>) -> Result<(), IoError> {
        let name = OsStr::from_bytes(name);
        match value {
            Some(value) => fsetxattr(file, name, value, XattrFlags::empty()),
            None => fremovexattr(file, name),
        }
        .map_err(io_error_of_errno)
    }

    fn set_attributes(&self, path: &[u8], attributes: &AttributeChange) -> Result<(), IoError> {
        self.set_named_attributes(path, attributes)
            .map_err(io_error_of_errno)
    }

    fn set_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<(), IoError> {
        self.set_named_xattr(path, name, value).map_err(io_error_of_errno)
    }

    fn list(&self, path: &[u8]) -> Result<Vec<ListedEntry>, IoError> {
        let directory = self
            .open_as_owner(path, OFlags::RDONLY | OFlags::DIRECTORY, 0o500)
            .map_err(io_error_of_errno)?;
        let mut all = Vec::new();
        for entry in Dir::read_from(&directory).map_err(io_error_of_errno)? {
            let entry = entry.map_err(io_error_of_errno)?;
            let name = entry.file_name().to_bytes();
            if matches!(name, b"." | b"..") {
                continue;
            }
            let (kind, identity) = identify(directory.as_fd(), name).map_err(io_error_of_errno)?;
            all.push(ListedEntry {
                name: name.to_vec(),
                kind,
                identity,
            });
        }
        Ok(all)
    }

    fn identity(&self, path: &[u8]) -> Result<InodeIdentity, IoError> {
        let (parent, name) = self.root.parent_of(path).map_err(io_error_of_errno)?;
        let name = name.as_os_str().as_bytes();
        let (_, identity) = identify(parent.as_fd(), name).map_err(io_error_of_errno)?;
        Ok(identity)
    }

    fn ownership(&self, path: &[u8]) -> Result<(u32, FileOwner), IoError> {
        let there = self.stat(path)?;
        let owner = FileOwner {
            user: there.st_uid,
            group: there.st_gid,
        };
        Ok((there.st_mode & PERMISSIONS, owner))
    }
}

fn times(accessed: Option<FileTime>, modified: Option<FileTime>) -> Timestamps {
    Timestamps {
        last_access: moment(accessed),
        last_modification: moment(modified),
    }
}

fn moment(moment: Option<FileTime>) -> Timespec {
    match moment {
        Some(FileTime { s, ns }) => Timespec {
            tv_sec: s,
            tv_nsec: ns.into(),
        },
        None => Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
    }
}
