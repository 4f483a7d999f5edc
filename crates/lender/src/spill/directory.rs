//! The directory of a lender's spills: its files, and the room that is set aside for the next one.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::SpillError;
use super::format::{HEAD_BYTES, SpillHead};

/// Rights of the files: the windows may be those of journals without a key.
pub(super) const MODE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The directory for spills of one lender. The lock on its file keeps other lenders of the same name away.
#[derive(Debug)]
pub(crate) struct SpillDirectory {
    path: PathBuf,
    lender: String,
    directory: File,
    /// The file that becomes the next spill. It has room for all windows.
    next: File,
}

impl SpillDirectory {
    /// Opens the directory and sets `room` bytes aside for the next spill.
    ///
    /// # Errors
    /// `NotPrivate` for a directory that others can change, `InUse` if another lender of this name uses it,
    /// `NoRoom` if the disk is too full, `Failed` for a call that the system refused.
    pub(crate) fn open(path: &Path, lender: &str, room: u64) -> Result<SpillDirectory, SpillError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |step| SpillError::failed::<io::Error>(path, step);
        let opened =
            rustix::fs::open(path, flags, Mode::empty()).map_err(SpillError::failed(path, "open"))?;
        let directory = File::from(opened);
        let found = directory.metadata().map_err(failed("inspect"))?;
        let ours = found.uid() == rustix::process::geteuid().as_raw();
        if !ours || found.mode() & 0o022 != 0 {
            return Err(SpillError::NotPrivate {
                path: path.to_owned(),
                mode: found.mode() & 0o7777,
            });
        }
        let next = open_next(&directory, lender).map_err(failed("make a file in"))?;
        match rustix::fs::flock(&next, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => (),
            Err(Errno::AGAIN) => {
                return Err(SpillError::InUse {
                    path: path.to_owned(),
                    lender: lender.to_owned(),
                });
            }
            Err(errno) => return Err(failed("lock a file in")(errno.into())),
        }
        let opened = SpillDirectory {
            path: path.to_owned(),
            lender: lender.to_owned(),
            directory,
            next,
        };
        opened.set_aside(room)?;
        Ok(opened)
    }

    /// Sets room aside, so that a full disk is noticed while there is time. A spill from before that is still
    /// needed may take the place; the next one then replaces it, and has its room.
    fn set_aside(&self, room: u64) -> Result<(), SpillError> {
        match rustix::fs::fallocate(&self.next, FallocateFlags::empty(), 0, room) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP) => Ok(()),
            Err(Errno::NOSPC | Errno::DQUOT) => {
                let _ = self.next.set_len(0);
                if self.find()?.is_some() {
                    tracing::warn!(
                        directory = %self.path.display(), room,
                        "the disk has no room for the next spill beside the one that clients still need"
                    );
                    return Ok(());
                }
                Err(SpillError::NoRoom {
                    path: self.path.clone(),
                    room,
                })
            }
            Err(errno) => Err(SpillError::failed(&self.path, "set room aside in")(errno)),
        }
    }

    /// The path of the spill that a start finds.
    pub(crate) fn spill_path(&self) -> PathBuf {
        self.path.join(file_name(&self.lender))
    }

    /// Opens the spill, if there is one, and reads its head.
    ///
    /// # Errors
    /// `Damaged`, `OtherFormat` or `Foreign` for a file that this lender cannot take up.
    pub(crate) fn find(&self) -> Result<Option<(File, SpillHead)>, SpillError> {
        let path = self.spill_path();
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.directory, file_name(&self.lender), flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(SpillError::failed(&path, "open")(errno)),
        };
        let length = file
            .metadata()
            .map_err(SpillError::failed(&path, "inspect"))?
            .len();
        let mut bytes = [0; HEAD_BYTES];
        match std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0) {
            Ok(()) => (),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(SpillError::Damaged { path });
            }
            Err(error) => return Err(SpillError::failed(&path, "read")(error)),
        }
        if let Some(version) = SpillHead::other_version(&bytes) {
            return Err(SpillError::OtherFormat { path, version });
        }
        match SpillHead::decode(&bytes).filter(|head| head.length <= length) {
            None => Err(SpillError::Damaged { path }),
            Some(head) if head.lender != self.lender => Err(SpillError::Foreign {
                path,
                lender: head.lender,
            }),
            Some(head) => Ok(Some((file, head))),
        }
    }

    /// The file that becomes the next spill.
    pub(crate) fn next(&self) -> &File {
        &self.next
    }

    /// Opens the same file past the page cache; `None` if its file system does not allow that.
    pub(crate) fn next_direct(&self) -> Option<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::DIRECT;
        let opened = rustix::fs::openat(&self.directory, next_name(&self.lender), flags, Mode::empty());
        opened.ok().map(File::from)
    }

    /// Opens the spill past the page cache; `None` if its file system does not allow that.
    pub(crate) fn find_direct(&self) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::DIRECT;
        let opened = rustix::fs::openat(&self.directory, file_name(&self.lender), flags, Mode::empty());
        opened.ok().map(File::from)
    }

    /// Gives the file its final name, in place of an earlier spill.
    pub(crate) fn rename(&self) -> io::Result<()> {
        let (next, last) = (next_name(&self.lender), file_name(&self.lender));
        Ok(rustix::fs::renameat(
            &self.directory,
            next,
            &self.directory,
            last,
        )?)
    }

    /// Makes the names durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.directory.sync_all()
    }

    /// Removes the spill, of which no window is needed any more.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.directory, file_name(&self.lender), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => self.sync(),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives the room for the next spill back to the disk.
    pub(crate) fn give_room_back(&self) {
        let _ = rustix::fs::unlinkat(&self.directory, next_name(&self.lender), AtFlags::empty());
    }

    pub(crate) fn lender(&self) -> &str {
        &self.lender
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn directory(&self) -> &File {
        &self.directory
    }
}

/// Opens or creates the file that becomes the next spill. The lock that the caller takes is on the file that
/// has the name, since only its holder renames it.
fn open_next(directory: &File, lender: &str) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(
        directory,
        next_name(lender),
        flags,
        MODE,
    )?))
}

fn file_name(lender: &str) -> String {
    format!("{lender}.spill")
}

fn next_name(lender: &str) -> String {
    format!("{lender}.spill.next")
}
