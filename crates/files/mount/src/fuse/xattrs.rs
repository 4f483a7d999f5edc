//! Extended attributes.

use netram_files::InodeId;
use netram_files::limit::XATTR_BYTES_MAX;
use netram_fuse::{FuseOperation, ReplyBody};
use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::attributes::{disk_errno, errno};
use super::filesystem::FuseFilesystem;

impl FuseFilesystem {
    /// The requests for extended attributes.
    pub(super) fn xattr(
        &self,
        node: InodeId,
        operation: &FuseOperation<'_>,
        asked: Option<u64>,
        body: &mut ReplyBody,
    ) -> Result<(), Errno> {
        match operation {
            FuseOperation::Xattr { name, room } => {
                refuse_system(name)?;
                let value = self.xattr_of(node, name)?.ok_or(Errno::NODATA)?;
                reply_value(&value, *room, body)
            }
            FuseOperation::Xattrs { room } => reply_value(&self.xattrs_of(node)?, *room, body),
            FuseOperation::SetXattr { name, value, flags } => {
                self.set_xattr(node, name, value, (*flags, asked))
            }
            FuseOperation::RemoveXattr(name) => {
                self.xattr_of(node, name)?.ok_or(Errno::NODATA)?;
                let removed = self.state.journaled.set_xattr(node, name, None, asked);
                removed.map_err(|error| errno(&error))
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn set_xattr(
        &self,
        node: InodeId,
        name: &[u8],
        value: &[u8],
        (flags, asked): (u32, Option<u64>),
    ) -> Result<(), Errno> {
        refuse_system(name)?;
        let there = self.xattr_of(node, name)?.is_some();
        let flags = XattrFlags::from_bits_retain(flags);
        if there && flags == XattrFlags::CREATE {
            return Err(Errno::EXIST);
        }
        if !there && flags == XattrFlags::REPLACE {
            return Err(Errno::NODATA);
        }
        let set = self.state.journaled.set_xattr(node, name, Some(value), asked);
        set.map_err(|error| errno(&error))
    }

    fn xattr_of(&self, node: InodeId, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        let directory = &self.state.journaled;
        let label = match (self.path(node), directory.open_file_of(node)) {
            (Err(_), Some(file)) => directory.tree().xattr_of_file(file.inner(), name),
            (path, _) => directory.tree().xattr_of(&path?, name),
        };
        label.map_err(disk_errno)
    }

    fn xattrs_of(&self, node: InodeId) -> Result<Vec<u8>, Errno> {
        let directory = &self.state.journaled;
        let labels = match (self.path(node), directory.open_file_of(node)) {
            (Err(_), Some(file)) => directory.tree().xattrs_of_file(file.inner()),
            (path, _) => directory.tree().xattrs_of(&path?),
        };
        labels.map_err(disk_errno)
    }
}

/// Refuses access control lists and other system attributes: the kernel would have to enforce them, and does
/// not for this file system.
fn refuse_system(name: &[u8]) -> Result<(), Errno> {
    match name.starts_with(b"system.") {
        true => Err(Errno::OPNOTSUPP),
        false => Ok(()),
    }
}

fn reply_value(value: &[u8], room: u32, body: &mut ReplyBody) -> Result<(), Errno> {
    const _: () = assert!(XATTR_BYTES_MAX <= u32::MAX as usize);
    match room as usize {
        0 => body.size(value.len() as u32),
        room if room >= value.len() => {
            body.data(value);
        }
        _ => return Err(Errno::RANGE),
    }
    Ok(())
}
