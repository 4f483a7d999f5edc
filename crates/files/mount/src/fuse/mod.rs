//! The kernel's requests, answered from the journaled directory.
//!
//! The kernel may cache names, attributes and content, because nothing changes except through it.

mod affinity;
mod attributes;
mod filesystem;
mod handles;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::PoisonError;
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use netram_files::{
    AttributeChange, ChangeError, DirectoryEntry, FallocateMode, InodeId, InodeKind, NameError,
};

use rustix::fs::{SeekFrom, seek};

use self::attributes::{disk_errno, errno, file_time, file_type};
use self::filesystem::{
    OpenPlan, check_name_length, is_allowed, is_synced, is_system_xattr, reply_done, reply_value,
};
use self::handles::IoMode;

pub(crate) use self::filesystem::FuseFilesystem;

/// Time for which the kernel may cache names and attributes.
const ATTRIBUTE_TTL: Duration = Duration::from_secs(3600);
/// Generation of all inode numbers, which are never reused.
const GENERATION: Generation = Generation(0);
/// Maximum bytes of a request. The kernel splits larger writes.
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// `lseek(2)` modes that find data and holes.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

fn node(number: INodeNo) -> InodeId {
    InodeId(number.0)
}

fn directory_entry(directory: INodeNo, name: &OsStr) -> DirectoryEntry<'_> {
    DirectoryEntry {
        directory: node(directory),
        name: name.as_bytes(),
    }
}

impl Filesystem for FuseFilesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without this flag the kernel asks for the file's capabilities before every write.
        let wanted = InitFlags::FUSE_HANDLE_KILLPRIV_V2
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP
            | InitFlags::FUSE_ASYNC_DIO;
        for flag in wanted.iter() {
            let _ = config.add_capabilities(flag);
        }
        self.passthrough &= config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = check_name_length(directory_entry(parent, name))
            .and_then(|at| self.state.journaled.names().look_up(at).ok_or(Errno::ENOENT));
        self.entry(found, reply);
    }

    fn forget(&self, _request: &Request, number: INodeNo, _lookups: u64) {
        self.unlinked().remove(&node(number));
    }

    fn getattr(&self, _request: &Request, number: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let _open = handle.and_then(|handle| self.handles.get(handle));
        match self.attributes_of(node(number)) {
            Ok(attributes) => reply.attr(&ATTRIBUTE_TTL, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (node, _open) = (node(number), handle.and_then(|handle| self.handles.get(handle)));
        let set = AttributeChange {
            mode: mode.map(|mode| mode & 0o7777),
            user: uid,
            group: gid,
            accessed: atime.map(file_time),
            modified: mtime.map(file_time),
        };
        let resized = size.map_or(Ok(()), |size| self.set_size(request, node, size));
        let set = resized.and_then(|()| match set == AttributeChange::default() {
            true => Ok(()),
            false => match self.state.journaled.set_attributes(node, set) {
                Err(ChangeError::Name(NameError::Missing)) if self.set_unlinked_attributes(node, &set) => {
                    Ok(())
                }
                set => set,
            },
        });
        match set
            .map_err(|error| errno(&error))
            .and_then(|()| self.attributes_of(node))
        {
            Ok(attributes) => reply.attr(&ATTRIBUTE_TTL, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        let target = self
            .path(node(number))
            .and_then(|path| self.state.journaled.tree().target(&path).map_err(disk_errno));
        match target {
            Ok(target) => reply.data(target.as_bytes()),
            Err(errno) => reply.error(errno),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        let regular = rustix::fs::FileType::from_raw_mode(mode) == rustix::fs::FileType::RegularFile;
        if !regular {
            // Sockets, pipes and devices have no content to protect.
            return reply.error(Errno::EPERM);
        }
        self.entry(
            self.make(request, directory_entry(parent, name), InodeKind::File, mode, b""),
            reply,
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        self.entry(
            self.make(
                request,
                directory_entry(parent, name),
                InodeKind::Directory,
                mode,
                b"",
            ),
            reply,
        );
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes();
        let made = self.make(
            request,
            directory_entry(parent, name),
            InodeKind::Symlink,
            0o777,
            target,
        );
        self.entry(made, reply);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(directory_entry(parent, name), false, reply);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(directory_entry(parent, name), true, reply);
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if flags.contains(RenameFlags::RENAME_WHITEOUT) {
            return reply.error(Errno::EINVAL);
        }
        let exchange = flags.contains(RenameFlags::RENAME_EXCHANGE);
        let over = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        let (from, to) = (directory_entry(parent, name), directory_entry(newparent, newname));
        if let Err(errno) = check_name_length(from).and_then(|_| is_allowed(to)) {
            return reply.error(errno);
        }
        let rename = || self.state.journaled.rename(from, to, over, exchange);
        reply_done(self.unlink_node(to, rename), reply);
    }

    fn link(
        &self,
        _request: &Request,
        number: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let (node, at) = (node(number), directory_entry(newparent, newname));
        let linked =
            is_allowed(at).and_then(|()| self.state.journaled.link(node, at).map_err(|error| errno(&error)));
        self.entry(linked.map(|()| node), reply);
    }

    fn open(&self, _request: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let opening = match self.open_file(node(number), flags.0) {
            Ok(opening) => opening,
            Err(errno) => return reply.error(errno),
        };
        let flags = opening.flags();
        let OpenPlan {
            file,
            synced,
            io_mode: way,
        } = opening;
        if !way.is_passthrough() {
            let handle = self.handles.add(file, synced, way);
            return reply.opened(handle, flags);
        }
        let backing = self
            .handles
            .backing(file.node(), || reply.open_backing(file.inner()));
        match backing {
            Ok(backing) => {
                // The reply must name the registration, which must live until the file is closed. The handle
                // keeps it, and is added before the reply.
                let handle = self.handles.add(file, synced, way);
                reply.opened_passthrough(handle, flags, &backing);
                self.handles.keep_backing(handle, backing);
            }
            Err(_) => {
                self.handles.release_io_mode(file.node(), way);
                let handle = self.handles.add(file, synced, IoMode::Direct);
                reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_NOFLUSH);
            }
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let at = directory_entry(parent, name);
        let opened = self
            .inode_spec(request, at, InodeKind::File, mode, b"")
            .and_then(|made| {
                self.state
                    .journaled
                    .create(at, made)
                    .map_err(|error| errno(&error))
            })
            .and_then(|file| {
                Ok((
                    self.attributes_of(file.node())?,
                    self.open_plan(file, flags, false)?,
                ))
            });
        let (attributes, opening) = match opened {
            Ok(opened) => opened,
            Err(errno) => return reply.error(errno),
        };
        let flags = opening.flags();
        let handle = self.handles.add(opening.file, opening.synced, opening.io_mode);
        reply.created(&ATTRIBUTE_TTL, &attributes, GENERATION, handle, flags);
    }

    fn read(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(handle) = self.handles.get(handle) else {
            return reply.error(Errno::EBADF);
        };
        let mut bytes = vec![0; size as usize];
        let mut read = 0;
        while read < bytes.len() {
            match handle
                .file
                .inner()
                .read_at(&mut bytes[read..], offset + read as u64)
            {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return reply.error(Errno::from_i32(error.raw_os_error().unwrap_or(5))),
            }
        }
        reply.data(&bytes[..read]);
    }

    fn write(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        affinity::follow_caller(request.pid());
        let directory = &self.state.journaled;
        let written = || -> Result<(), ChangeError> {
            let handle = self.handles.get(handle).ok_or(NameError::Missing)?;
            if write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) {
                self.clear_set_ids(node(number))?;
            }
            directory.write(&handle.file, offset, data)?;
            // Only a direct write carries the program's flags; one from the page cache does not.
            if handle.synced || is_synced(flags.0) && !write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
                directory.sync(handle.file.node())?;
            }
            Ok(())
        };
        match written() {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let how = match mode {
            0 => FallocateMode::Extend,
            0x01 => FallocateMode::KeepSize,
            0x03 => FallocateMode::Punch,
            0x10 => FallocateMode::Zero,
            0x11 => FallocateMode::ZeroKeepSize,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let Some(handle) = self.handles.get(handle) else {
            return reply.error(Errno::EBADF);
        };
        let allocated = self.state.journaled.allocate(&handle.file, how, offset, length);
        let allocated = allocated.and_then(|()| match request.uid() {
            0 => Ok(()),
            _ => self.clear_set_ids(node(number)),
        });
        reply_done(allocated, reply);
    }

    fn lseek(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Some(handle) = self.handles.get(handle) else {
            return reply.error(Errno::EBADF);
        };
        let to = match (whence, u64::try_from(offset)) {
            (_, Err(_)) => return reply.error(Errno::ENXIO),
            (SEEK_DATA, Ok(offset)) => SeekFrom::Data(offset),
            (SEEK_HOLE, Ok(offset)) => SeekFrom::Hole(offset),
            // The kernel handles all other modes itself.
            _ => return reply.error(Errno::EINVAL),
        };
        match seek(handle.file.inner(), to) {
            Ok(found) => reply.offset(found.cast_signed()),
            Err(errno) => reply.error(Errno::from_i32(errno.raw_os_error())),
        }
    }

    fn fsync(&self, request: &Request, number: INodeNo, _handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        affinity::follow_caller(request.pid());
        reply_done(self.state.journaled.sync(node(number)).map(drop), reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        _data: bool,
        reply: ReplyEmpty,
    ) {
        reply_done(self.state.journaled.sync(node(number)).map(drop), reply);
    }

    fn release(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.handles.drop(handle);
        reply.ok();
    }

    fn opendir(&self, _request: &Request, number: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let directory = node(number);
        reply.opened(self.handles.add_listing(directory), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let Some(listing) = self.handles.listing(handle) else {
            return reply.error(Errno::EBADF);
        };
        let mut entries = listing.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if offset == 0 {
            // A read from the start takes the current entries.
            *entries = self.list(listing.directory);
        }
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (node, kind, name)) in entries.iter().enumerate().skip(from) {
            let name = OsStr::from_bytes(name);
            if reply.add(INodeNo(node.0), index as u64 + 1, file_type(*kind), name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _request: &Request,
        _number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.handles.drop_listing(handle);
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _number: INodeNo, reply: ReplyStatfs) {
        match self.state.journaled.tree().free_space() {
            Ok(room) => reply.statfs(
                room.f_blocks,
                room.f_bfree,
                room.f_bavail,
                room.f_files,
                room.f_ffree,
                u32::try_from(room.f_bsize).unwrap_or(4096),
                u32::try_from(room.f_namemax).unwrap_or(255),
                u32::try_from(room.f_frsize).unwrap_or(4096),
            ),
            Err(error) => reply.error(disk_errno(error)),
        }
    }

    fn setxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        if is_system_xattr(name) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let there = match self.xattr_of(node(number), name) {
            Ok(there) => there,
            Err(errno) => return reply.error(errno),
        };
        // `XATTR_CREATE` and `XATTR_REPLACE`.
        match (flags, there) {
            (1, Some(_)) => return reply.error(Errno::EEXIST),
            (2, None) => return reply.error(Errno::ENODATA),
            _ => (),
        }
        reply_done(
            self.state
                .journaled
                .set_xattr(node(number), name.as_bytes(), Some(value)),
            reply,
        );
    }

    fn getxattr(&self, _request: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if is_system_xattr(name) {
            return reply.error(Errno::EOPNOTSUPP);
        }
        match self.xattr_of(node(number), name) {
            Ok(Some(value)) => reply_value(&value, size, reply),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(errno) => reply.error(errno),
        }
    }

    fn listxattr(&self, _request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        match self.xattrs_of(node(number)) {
            Ok(names) => reply_value(&names, size, reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn removexattr(&self, _request: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.xattr_of(node(number), name) {
            Ok(Some(_)) => reply_done(
                self.state
                    .journaled
                    .set_xattr(node(number), name.as_bytes(), None),
                reply,
            ),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(errno) => reply.error(errno),
        }
    }
}
