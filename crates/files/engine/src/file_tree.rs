//! What a directory needs of the disk beneath it. `netram-mount` has the real one.

use netram_proto::port::IoError;

use crate::change::{AttributeChange, FallocateMode, InodeKind, InodeSpec};
use crate::name_table::InodeIdentity;

/// Something that was found in a directory of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEntry {
    /// Its name.
    pub name: Vec<u8>,
    /// What it is. `None`: something that directories do not have, as a socket.
    pub kind: Option<InodeKind>,
    /// Which it is.
    pub identity: InodeIdentity,
}

/// Directories and files on a disk. Paths begin at the one that is meant, which is the empty path; they are
/// not followed out of it, nor through symbolic links.
///
/// Nothing is durable before [`FileTree::sync_handle`].
pub trait FileTree: Send + Sync {
    /// A file that is open to be written.
    type File: Send + Sync;
    /// A file or directory that is open to be synced.
    type SyncHandle: Send + Sync;

    /// Opens a file, to be read only where whoever serves it may not write to it.
    fn open(&self, path: &[u8]) -> Result<Self::File, IoError>;
    /// Whether what [`FileTree::open`] has opened may be written to.
    fn may_write(&self, file: &Self::File) -> bool;
    /// Opens a file to be read and written, whatever its permissions: its owner may have opened it before
    /// they were taken away, or may write and not read it.
    fn open_to_write(&self, path: &[u8]) -> Result<Self::File, IoError>;
    /// Makes a file, in place of a file that has this name, and opens it.
    fn stage(&self, path: &[u8], made: &InodeSpec<'_>) -> Result<(Self::File, InodeIdentity), IoError>;
    /// Reads what there is from there on, up to as much as fits. Fewer bytes: the file ends.
    fn read(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> Result<usize, IoError>;
    /// Writes all of `bytes`.
    fn write(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> Result<(), IoError>;
    /// Gives a file a length.
    fn resize(&self, file: &Self::File, size: u64) -> Result<(), IoError>;
    /// Allocates a part of it.
    fn allocate(
        &self,
        file: &Self::File,
        how: FallocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), IoError>;
    /// Makes what was done to an open file durable, as [`FileTree::sync_handle`].
    fn sync_file(&self, file: &Self::File) -> Result<(), IoError>;
    /// Opens a file or directory to be synced; of a symbolic link its directory. An error says nothing of
    /// what was written.
    fn open_for_sync(&self, path: &[u8]) -> Result<Self::SyncHandle, IoError>;
    /// Makes what was done to a file, or to the names in a directory, durable. After an error nothing done
    /// since the last good sync may be believed to be on the disk, and a later good sync does not change
    /// that.
    fn sync_handle(&self, held: &Self::SyncHandle) -> Result<(), IoError>;

    /// What is read of a file from now on is what the disk has, as far as that can be had. After a sync that
    /// failed the page cache shows bytes that the disk never got, and syncs that succeed do not change that:
    /// whoever did not see the failure would take them for safe.
    fn drop_cache(&self, path: &[u8]);

    /// Makes a node.
    fn make(&self, path: &[u8], made: &InodeSpec<'_>) -> Result<(), IoError>;
    /// Gives a file one more name.
    fn link(&self, path: &[u8], new: &[u8]) -> Result<(), IoError>;
    /// Takes a name away: of an empty directory, or of anything else.
    fn remove(&self, path: &[u8], directory: bool) -> Result<(), IoError>;
    /// Renames, over what is there; or exchanges the two.
    fn rename(&self, from: &[u8], to: &[u8], exchange: bool) -> Result<(), IoError>;
    /// Sets attributes of an open file, which may have no name.
    fn set_attributes_of_file(&self, file: &Self::File, attributes: &AttributeChange) -> Result<(), IoError>;
    /// Sets an extended attribute of an open file, or takes it away.
    fn set_xattr_of_file(&self, file: &Self::File, name: &[u8], value: Option<&[u8]>) -> Result<(), IoError>;
    /// Sets attributes, of a symbolic link itself.
    fn set_attributes(&self, path: &[u8], attributes: &AttributeChange) -> Result<(), IoError>;
    /// Sets an extended attribute, or takes it away.
    fn set_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<(), IoError>;

    /// What is in a directory.
    fn list(&self, path: &[u8]) -> Result<Vec<ListedEntry>, IoError>;
    /// Which file a path names.
    fn identity(&self, path: &[u8]) -> Result<InodeIdentity, IoError>;
    /// Permissions and owner of what a path names: of directories, to make them again.
    fn ownership(&self, path: &[u8]) -> Result<(u32, crate::change::FileOwner), IoError>;
}

/// Where the catalog is kept: one value, replaced whole.
pub trait CatalogStore: Send + Sync {
    /// What is kept. `None`: nothing.
    fn load(&self) -> Result<Option<Vec<u8>>, IoError>;
    /// Keeps this instead; durable when it returns. After a crash it is this or the one before.
    fn store(&self, bytes: &[u8]) -> Result<(), IoError>;
    /// Keeps nothing any more; durable when it returns.
    fn clear(&self) -> Result<(), IoError>;
}
