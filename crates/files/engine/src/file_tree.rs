//! Interface to the backing file system. `netram-mount` implements it for a real disk.

use netram_proto::port::IoError;

use crate::change::{AttributeChange, FallocateMode, InodeKind, InodeSpec};
use crate::name_table::InodeIdentity;

/// An entry found in a directory of the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedEntry {
    /// Name of the entry, without its directory.
    pub name: Vec<u8>,
    /// Type of the entry. `None`: a type that is not supported, such as a socket.
    pub kind: Option<InodeKind>,
    /// Identity of its inode.
    pub identity: InodeIdentity,
}

/// Directories and files on a disk. Paths are relative to the backing directory, which is the empty path. A
/// path never leads out of it and never follows symbolic links.
///
/// Nothing is durable before [`FileTree::sync_handle`]. All methods return the system's error.
pub trait FileTree: Send + Sync {
    /// A file open for reading, and usually for writing.
    type File: Send + Sync;
    /// A file or directory that is open to be synced.
    type SyncHandle: Send + Sync;

    /// Opens a file; read-only if this process lacks permission to write to it.
    fn open(&self, path: &[u8]) -> Result<Self::File, IoError>;
    /// Whether a file that [`FileTree::open`] returned is writable.
    fn may_write(&self, file: &Self::File) -> bool;
    /// Opens a file for reading and writing regardless of its permissions: a program may have opened it
    /// before they were withdrawn, or may have permission to write but not to read.
    fn open_to_write(&self, path: &[u8]) -> Result<Self::File, IoError>;
    /// Makes a file, replacing a file with this name, and opens it.
    fn stage(&self, path: &[u8], made: &InodeSpec<'_>) -> Result<(Self::File, InodeIdentity), IoError>;
    /// Reads bytes from `offset` on until `into` is full. Fewer bytes mean the end of the file.
    fn read(&self, file: &Self::File, offset: u64, into: &mut [u8]) -> Result<usize, IoError>;
    /// Writes all of `bytes` at `offset`.
    fn write(&self, file: &Self::File, offset: u64, bytes: &[u8]) -> Result<(), IoError>;
    /// Sets a file's length in bytes.
    fn resize(&self, file: &Self::File, size: u64) -> Result<(), IoError>;
    /// Allocates, zeros or punches out a range of a file.
    fn allocate(
        &self,
        file: &Self::File,
        how: FallocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), IoError>;
    /// Syncs an open file, with the guarantee of [`FileTree::sync_handle`].
    fn sync_file(&self, file: &Self::File) -> Result<(), IoError>;
    /// Opens a file or directory for a sync; for a symbolic link its directory. An error says nothing about
    /// earlier writes.
    fn open_for_sync(&self, path: &[u8]) -> Result<Self::SyncHandle, IoError>;
    /// Makes a file's content, or the names in a directory, durable. After an error, nothing since the last
    /// good sync may be assumed to be on the disk, not even after a later good sync.
    fn sync_handle(&self, held: &Self::SyncHandle) -> Result<(), IoError>;

    /// Makes everything durable, with the guarantee of [`FileTree::sync_handle`].
    fn sync_disk(&self) -> Result<(), IoError>;

    /// Drops a file's page cache if possible, so that reads return what the disk has. After a failed sync the
    /// cache shows bytes that the disk never got, although later syncs succeed. A program that missed the
    /// failure would take these bytes for durable.
    fn drop_cache(&self, path: &[u8]);

    /// Syncs a file, whether or not that fails, and drops its page cache: before all that is not on the disk
    /// is written again. Pages whose writing has failed look written. ext4 takes new bytes in them for an
    /// overwrite of blocks that it still has as never written, so they would read as zeros later, although
    /// each sync succeeds.
    fn forget_failed_writes(&self, _path: &[u8]) {}

    /// Makes an inode.
    fn make(&self, path: &[u8], made: &InodeSpec<'_>) -> Result<(), IoError>;
    /// Gives a file one more name.
    fn link(&self, path: &[u8], new: &[u8]) -> Result<(), IoError>;
    /// Removes the name of an empty directory (`directory`) or of any other inode.
    fn remove(&self, path: &[u8], directory: bool) -> Result<(), IoError>;
    /// Renames, replacing the target, or exchanges the two names.
    fn rename(&self, from: &[u8], to: &[u8], exchange: bool) -> Result<(), IoError>;
    /// Sets attributes of an open file, which may have no name left.
    fn set_attributes_of_file(&self, file: &Self::File, attributes: &AttributeChange) -> Result<(), IoError>;
    /// Sets an extended attribute of an open file; `None` removes it.
    fn set_xattr_of_file(&self, file: &Self::File, name: &[u8], value: Option<&[u8]>) -> Result<(), IoError>;
    /// Sets attributes, of a symbolic link itself instead of its target.
    fn set_attributes(&self, path: &[u8], attributes: &AttributeChange) -> Result<(), IoError>;
    /// Sets an extended attribute; `None` removes it.
    fn set_xattr(&self, path: &[u8], name: &[u8], value: Option<&[u8]>) -> Result<(), IoError>;

    /// Lists a directory.
    fn list(&self, path: &[u8]) -> Result<Vec<ListedEntry>, IoError>;
    /// Identity of the inode that a path names.
    fn identity(&self, path: &[u8]) -> Result<InodeIdentity, IoError>;
    /// Permissions and owner of a path, needed to make a missing directory again.
    fn ownership(&self, path: &[u8]) -> Result<(u32, crate::change::FileOwner), IoError>;
}

/// Storage of the catalog: a single value, replaced atomically.
pub trait CatalogStore: Send + Sync {
    /// Reads the stored catalog. `None`: there is none.
    fn load(&self) -> Result<Option<Vec<u8>>, IoError>;
    /// Replaces the catalog; durable on return. After a crash either the new or the old one is there.
    fn store(&self, bytes: &[u8]) -> Result<(), IoError>;
    /// Deletes the catalog; durable on return.
    fn clear(&self) -> Result<(), IoError>;
}
