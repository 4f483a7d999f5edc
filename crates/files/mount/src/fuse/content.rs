//! Files that programs have open: opening, reading, writing, syncing.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use netram_files::{ChangeError, DirectoryEntry, FallocateMode, InodeId, InodeKind};
use netram_fuse::{
    FuseAttributes, FuseCaller, FuseWrite, OpenReply, REQUEST_BYTES_MAX, ReplyBody, error_number,
    follow_caller, open_flag,
};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::TTL;
use super::attributes::errno;
use super::filesystem::{FuseFilesystem, OpenPlan, is_synced};
use super::handles::IoMode;

/// `lseek(2)` modes that find data and holes.
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

impl FuseFilesystem {
    pub(super) fn open(&self, node: InodeId, flags: u32, body: &mut ReplyBody) -> Result<(), Errno> {
        let opening = self.open_file(node, flags)?;
        let flags = opening.flags();
        let OpenPlan {
            file,
            synced,
            io_mode: way,
        } = opening;
        let mut opened = OpenReply {
            handle: 0,
            flags,
            backing: 0,
        };
        if !way.is_passthrough() {
            opened.handle = self.handles.add(file, synced, way);
            body.opened(opened);
            return Ok(());
        }
        let register = || self.device.register(file.inner());
        match self.handles.backing(file.node(), register) {
            Ok(backing) => {
                // The reply names the registration, which must live until the file is closed: the handle
                // keeps it.
                opened.backing = backing.number();
                opened.handle = self.handles.add(file, synced, way);
                self.handles.keep_backing(opened.handle, backing);
            }
            Err(_) => {
                self.handles.release_io_mode(file.node(), way);
                opened.flags = open_flag::DIRECT_IO | open_flag::NOFLUSH;
                opened.handle = self.handles.add(file, synced, IoMode::Direct);
            }
        }
        body.opened(opened);
        Ok(())
    }

    pub(super) fn create(
        &self,
        caller: FuseCaller,
        at: DirectoryEntry<'_>,
        (mode, flags): (u32, u32),
        asked: Option<u64>,
        body: &mut ReplyBody,
    ) -> Result<(), Errno> {
        let made = self.inode_spec(caller, at, InodeKind::File, mode, b"")?;
        let file = (self.state.journaled.create(at, made, asked)).map_err(|error| errno(&error))?;
        let attributes = self.attributes_of(file.node())?;
        let opening = self.open_plan(file, flags, false)?;
        self.reply_created(opening, &attributes, body);
        Ok(())
    }

    /// Replies that a file was made and opened.
    pub(super) fn reply_created(&self, opening: OpenPlan, attributes: &FuseAttributes, body: &mut ReplyBody) {
        let flags = opening.flags();
        let handle = self.handles.add(opening.file, opening.synced, opening.io_mode);
        body.entry(attributes, TTL).opened(OpenReply {
            handle,
            flags,
            backing: 0,
        });
    }

    pub(super) fn read(
        &self,
        node: InodeId,
        handle: u64,
        offset: u64,
        bytes: u32,
        body: &mut ReplyBody,
    ) -> Result<(), Errno> {
        let handle = self.handle(handle, node).map_err(|error| errno(&error))?;
        let into = body.room(bytes.min(REQUEST_BYTES_MAX) as usize);
        let mut read = 0;
        while read < into.len() {
            let from = offset.checked_add(read as u64).ok_or(Errno::INVAL)?;
            match handle.file.inner().read_at(&mut into[read..], from) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error_number(error.raw_os_error().unwrap_or(0))),
            }
        }
        body.take(read);
        Ok(())
    }

    pub(super) fn write(
        &self,
        node: InodeId,
        caller: FuseCaller,
        asked: &FuseWrite<'_>,
        body: &mut ReplyBody,
    ) -> Result<(), Errno> {
        follow_caller(caller.thread);
        self.write_bytes(node, asked).map_err(|error| errno(&error))?;
        body.written(asked.data.len() as u32);
        Ok(())
    }

    fn write_bytes(&self, node: InodeId, asked: &FuseWrite<'_>) -> Result<(), ChangeError> {
        let handle = self.handle_to_write(asked.handle, node)?;
        if asked.clears_set_ids {
            self.clear_set_ids(node)?;
        }
        let directory = &self.state.journaled;
        directory.write(&handle.file, asked.offset, asked.data)?;
        // Only a direct write carries the program's flags; one from the page cache does not.
        if handle.synced || is_synced(asked.flags) && !asked.from_cache {
            directory.sync(handle.file.node())?;
        }
        Ok(())
    }

    pub(super) fn allocate(
        &self,
        node: InodeId,
        caller: FuseCaller,
        handle: u64,
        range: Range<u64>,
        mode: u32,
    ) -> Result<(), Errno> {
        let how = match mode {
            0 => FallocateMode::Extend,
            0x01 => FallocateMode::KeepSize,
            0x03 => FallocateMode::Punch,
            0x10 => FallocateMode::Zero,
            0x11 => FallocateMode::ZeroKeepSize,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let handle = { self.handle_to_write(handle, node) }.map_err(|error| errno(&error))?;
        let length = range.end - range.start;
        let allocated = (self.state.journaled).allocate(&handle.file, how, range.start, length);
        let allocated = allocated.and_then(|()| match caller.user {
            0 => Ok(()),
            _ => self.clear_set_ids(node),
        });
        allocated.map_err(|error| errno(&error))
    }

    pub(super) fn seek(
        &self,
        node: InodeId,
        handle: u64,
        offset: u64,
        whence: u32,
        body: &mut ReplyBody,
    ) -> Result<(), Errno> {
        let handle = self.handle(handle, node).map_err(|error| errno(&error))?;
        let to = match whence {
            // Beyond the range of the system's own offsets.
            _ if i64::try_from(offset).is_err() => return Err(Errno::NXIO),
            SEEK_DATA => SeekFrom::Data(offset),
            SEEK_HOLE => SeekFrom::Hole(offset),
            // The kernel handles all other modes itself.
            _ => return Err(Errno::INVAL),
        };
        body.offset(seek(handle.file.inner(), to)?);
        Ok(())
    }

    pub(super) fn sync(&self, node: InodeId) -> Result<(), Errno> {
        let synced = self.state.journaled.sync(node);
        synced.map(drop).map_err(|error| errno(&error))
    }
}
