//! Names and attributes: looking up, making, renaming, removing.

use netram_files::{AttributeChange, ChangeError, DirectoryEntry, InodeId, InodeKind, NameError};
use netram_fuse::{FuseCaller, FuseOperation, FuseSpace, ReplyBody, SetAttributes};
use rustix::fs::{FileType, RenameFlags};
use rustix::io::Errno;

use super::TTL;
use super::attributes::{PERMISSIONS, disk_errno, entry_at, errno, file_time};
use super::filesystem::{FuseFilesystem, check_name_length, is_allowed};

/// Permissions of every symbolic link.
const LINK_MODE: u32 = 0o777;

impl FuseFilesystem {
    pub(super) fn look_up(&self, directory: u64, name: &[u8], body: &mut ReplyBody) -> Result<(), Errno> {
        let at = check_name_length(entry_at(directory, name))?;
        let found = self.state.journaled.names().look_up(at);
        self.entry(found.ok_or(Errno::NOENT)?, body)
    }

    pub(super) fn get_attributes(&self, node: InodeId, body: &mut ReplyBody) -> Result<(), Errno> {
        body.attributes(&self.attributes_of(node)?, TTL);
        Ok(())
    }

    pub(super) fn set(
        &self,
        node: InodeId,
        caller: FuseCaller,
        asked: &SetAttributes,
        body: &mut ReplyBody,
    ) -> Result<(), Errno> {
        let set = AttributeChange {
            mode: asked.mode.map(|mode| mode & PERMISSIONS),
            user: asked.user,
            group: asked.group,
            accessed: asked.accessed.map(file_time),
            modified: asked.modified.map(file_time),
        };
        let resized = (asked.bytes).map_or(Ok(()), |size| self.set_size(caller, node, size));
        let done = resized.and_then(|()| match set == AttributeChange::default() {
            true => Ok(()),
            false => match self.state.journaled.set_attributes(node, set) {
                Err(ChangeError::Name(NameError::Missing)) if self.set_unlinked_attributes(node, &set) => {
                    Ok(())
                }
                set => set,
            },
        });
        done.map_err(|error| errno(&error))?;
        self.get_attributes(node, body)
    }

    /// The requests that change names, and those of which this file system knows nothing.
    pub(super) fn change_name(
        &self,
        directory: u64,
        caller: FuseCaller,
        operation: &FuseOperation<'_>,
        asked: Option<u64>,
        body: &mut ReplyBody,
    ) -> Result<(), Errno> {
        let (name, kind, mode, target): (_, _, _, &[u8]) = match operation {
            FuseOperation::MakeNode { name, mode } => {
                if FileType::from_raw_mode(*mode) != FileType::RegularFile {
                    // Sockets, pipes and devices have no content to protect.
                    return Err(Errno::PERM);
                }
                (name, InodeKind::File, *mode, b"")
            }
            FuseOperation::MakeDirectory { name, mode } => (name, InodeKind::Directory, *mode, b""),
            FuseOperation::Symlink { name, target } => (name, InodeKind::Symlink, LINK_MODE, target),
            FuseOperation::Unlink(name) => return self.remove(entry_at(directory, name), false, asked),
            FuseOperation::RemoveDirectory(name) => {
                return self.remove(entry_at(directory, name), true, asked);
            }
            FuseOperation::Rename {
                name,
                new_directory,
                new_name,
                flags,
            } => {
                let (from, to) = (entry_at(directory, name), entry_at(*new_directory, new_name));
                return self.rename(from, to, *flags, asked);
            }
            FuseOperation::Link { node, name } => {
                return self.link(InodeId(*node), entry_at(directory, name), asked, body);
            }
            FuseOperation::ReadLink => return self.read_link(InodeId(directory), body),
            _ => return Err(Errno::NOSYS),
        };
        let at = entry_at(directory, name);
        let made = self.inode_spec(caller, at, kind, mode, target)?;
        let made = self
            .state
            .journaled
            .make(at, made, asked)
            .map_err(|error| errno(&error))?;
        self.entry(made, body)
    }

    fn rename(
        &self,
        from: DirectoryEntry<'_>,
        to: DirectoryEntry<'_>,
        flags: u32,
        asked: Option<u64>,
    ) -> Result<(), Errno> {
        let flags = RenameFlags::from_bits_retain(flags);
        if flags.contains(RenameFlags::WHITEOUT) {
            return Err(Errno::INVAL);
        }
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let over = !flags.contains(RenameFlags::NOREPLACE);
        check_name_length(from).and_then(|_| is_allowed(to))?;
        let rename = || self.state.journaled.rename(from, to, over, exchange, asked);
        self.unlink_node(to, rename).map_err(|error| errno(&error))
    }

    fn link(
        &self,
        node: InodeId,
        at: DirectoryEntry<'_>,
        asked: Option<u64>,
        body: &mut ReplyBody,
    ) -> Result<(), Errno> {
        is_allowed(at)?;
        (self.state.journaled.link(node, at, asked)).map_err(|error| errno(&error))?;
        self.entry(node, body)
    }

    fn read_link(&self, node: InodeId, body: &mut ReplyBody) -> Result<(), Errno> {
        let path = self.path(node)?;
        let target = self.state.journaled.tree().target(&path).map_err(disk_errno)?;
        body.data(target.as_bytes());
        Ok(())
    }

    pub(super) fn space(&self, body: &mut ReplyBody) -> Result<(), Errno> {
        let room = self.state.journaled.tree().free_space().map_err(disk_errno)?;
        body.space(&FuseSpace {
            blocks: room.f_blocks,
            free: room.f_bfree,
            available: room.f_bavail,
            files: room.f_files,
            files_free: room.f_ffree,
            block_bytes: u32::try_from(room.f_bsize).unwrap_or(4096),
            name_bytes_max: u32::try_from(room.f_namemax).unwrap_or(255),
            fragment_bytes: u32::try_from(room.f_frsize).unwrap_or(4096),
        });
        Ok(())
    }
}
