//! Files of single windows, whose clients are silent: each a spill with one journal, named after the lender
//! and the journal.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use netram_proto::id::{Incarnation, JournalId};
use netram_proto::member::MemberState;
use netram_proto::wire::crc32c;
use rustix::fs::{AtFlags, Dir, OFlags};
use rustix::io::Errno;

use super::blocks::read_blocks;
use super::directory::{MODE, SpillDirectory};
use super::error::SpillError;
use super::format::{ENTRY_BYTES, HEAD_BYTES, SpillEntry, SpillHead};
use super::layout::StoreLayout;
use super::load::{is_plausible, load_window};
use super::write::{KeptJournal, write_file};
use super::{joined_bytes, unix_seconds};
use crate::slot::{JournalNames, SlotState};
use crate::superblock::StoreGeometry;
use crate::sys::seconds_of_run;

/// The end of the name of a window's file.
const SUFFIX: &str = ".window";

/// A window's state, and the chunks that its bytes are in or go to.
pub(crate) struct WindowCopy {
    pub(crate) state: SlotState,
    pub(crate) names: JournalNames,
    pub(crate) chunks: Vec<u32>,
}

impl WindowCopy {
    /// Bytes that the window holds.
    pub(crate) fn held_bytes(&self) -> u64 {
        joined_bytes(&self.state.member)
    }
}

/// A window that a start finds in a file.
pub(crate) struct FoundWindow {
    pub(crate) head: SpillHead,
    pub(crate) entry: SpillEntry,
}

impl FoundWindow {
    /// The state of its slot, without chunks.
    pub(crate) fn state(&self) -> SlotState {
        let SpillEntry { state, .. } = &self.entry;
        SlotState {
            member: MemberState {
                spilled: true,
                received: state.member.held,
                ..state.member
            },
            chunks: 0,
            list_crc: crc32c(&[]),
            last_contact: self
                .head
                .heard_at(state.last_contact, unix_seconds(), seconds_of_run()),
            incarnation: match state.incarnation {
                Incarnation(0) => self.head.incarnation,
                earlier => earlier,
            },
            ..*state
        }
    }
}

impl SpillDirectory {
    /// Writes the window to its file, which is synced and has its name then. All windows' files together get
    /// as many bytes as are lent: clients that come and go fill no disk.
    ///
    /// # Errors
    /// `WindowsFull` beyond that, `Failed` for a call that the system refused, or a full disk. An earlier
    /// file of the journal is as it was.
    pub(crate) fn write_window(
        &self,
        (store, geometry): (&File, StoreGeometry),
        incarnation: Incarnation,
        copy: WindowCopy,
    ) -> Result<(), SpillError> {
        let name = self.window_name(copy.state.journal);
        let next = format!("{name}.next");
        let path = self.path().join(&name);
        let (bytes, most) = (copy.held_bytes(), geometry.chunks * geometry.chunk_bytes);
        let used = self
            .windows_bytes(&name)
            .map_err(SpillError::failed(self.path(), "list"))?;
        if used.saturating_add(bytes) > most {
            let path = self.path().to_owned();
            return Err(SpillError::WindowsFull { path, used, most });
        }
        let layout = StoreLayout::new(store, geometry);
        let kept = KeptJournal::new(copy.state, copy.names, copy.chunks);
        let written = self.create(&next).and_then(|file| {
            write_file(&layout, incarnation, &[kept], self.lender(), (&file, None))?;
            Ok(rustix::fs::renameat(
                self.directory(),
                &next,
                self.directory(),
                &name,
            )?)
        });
        let synced = written.and_then(|()| self.sync());
        if synced.is_err() {
            let _ = rustix::fs::unlinkat(self.directory(), &next, AtFlags::empty());
        }
        synced.map_err(SpillError::failed(&path, "write"))
    }

    /// Reads the bytes of a window into its chunks.
    ///
    /// # Errors
    /// `Damaged` if a check fails or the file is another window's, `Failed` for a call that the system
    /// refused.
    pub(crate) fn read_window(
        &self,
        (store, geometry): (&File, StoreGeometry),
        copy: &WindowCopy,
    ) -> Result<(), SpillError> {
        let name = self.window_name(copy.state.journal);
        let path = self.path().join(&name);
        let damaged = || SpillError::WindowDamaged { path: path.clone() };
        let file = self
            .open_window(&name)
            .map_err(SpillError::failed(&path, "open"))?;
        let head = read_head(&file).map_err(SpillError::failed(&path, "read"))?;
        let head = head.ok_or_else(damaged)?;
        let layout = StoreLayout::new(store, geometry);
        let is_whole = read_blocks(&file, None, |source| {
            let mut bytes = [0; ENTRY_BYTES];
            if !source.read(&mut [0; HEAD_BYTES])? || !source.read(&mut bytes)? {
                return Ok(false);
            }
            let Some(entry) = SpillEntry::decode(&bytes, head.number) else {
                return Ok(false);
            };
            let is_same = is_window_of(&entry.state, &copy.state);
            Ok(is_same && load_window(source, &entry, head.number, (&layout, &copy.chunks))?)
        });
        match is_whole.map_err(SpillError::failed(&path, "read"))? {
            true => Ok(()),
            false => Err(damaged()),
        }
    }

    /// The windows that have files.
    ///
    /// # Errors
    /// `WindowDamaged` or `Foreign` for a file that this lender cannot take up.
    pub(crate) fn windows(&self) -> Result<Vec<FoundWindow>, SpillError> {
        let failed = SpillError::failed::<Errno>;
        let names = self.window_names().map_err(failed(self.path(), "list"))?;
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            let path = self.path().join(&name);
            let damaged = || SpillError::WindowDamaged { path: path.clone() };
            let file = self
                .open_window(&name)
                .map_err(SpillError::failed(&path, "open"))?;
            let mut bytes = [0; ENTRY_BYTES];
            let head = read_head(&file).map_err(SpillError::failed(&path, "read"))?;
            let head = head.ok_or_else(damaged)?;
            match file.read_exact_at(&mut bytes, HEAD_BYTES as u64) {
                Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => {
                    return Err(SpillError::failed(&path, "read")(error));
                }
                _ => (),
            }
            if head.lender != self.lender() {
                return Err(SpillError::Foreign {
                    path,
                    lender: head.lender,
                });
            }
            let entry = SpillEntry::decode(&bytes, head.number).filter(is_plausible);
            let entry = entry.filter(|entry| self.window_name(entry.state.journal) == name);
            let entry = entry.ok_or_else(damaged)?;
            found.push(FoundWindow { head, entry });
        }
        Ok(found)
    }

    /// Removes the file of a window that was released.
    pub(crate) fn remove_window(&self, journal: JournalId) -> io::Result<()> {
        match rustix::fs::unlinkat(self.directory(), self.window_name(journal), AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => self.sync(),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Gives the file of a window another name, since it is damaged and an operator may want it.
    pub(crate) fn set_window_aside(&self, journal: JournalId) -> io::Result<()> {
        let name = self.window_name(journal);
        let aside = format!("{name}.damaged");
        rustix::fs::renameat(self.directory(), &name, self.directory(), aside)?;
        self.sync()
    }

    /// The name of the file for this journal's window.
    pub(crate) fn window_name(&self, journal: JournalId) -> String {
        format!("{}.{journal}{SUFFIX}", self.lender())
    }

    /// The names of the windows' files of this lender. Removes what an interrupted write has left.
    fn window_names(&self) -> Result<Vec<String>, Errno> {
        let front = format!("{}.", self.lender());
        let unfinished = format!("{SUFFIX}.next");
        let mut names = Vec::new();
        for entry in Dir::read_from(self.directory())? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else {
                continue;
            };
            let Some(rest) = name.strip_prefix(&front) else {
                continue;
            };
            let is_id = |id: &str| id.len() == 32 && u128::from_str_radix(id, 16).is_ok();
            if rest.strip_suffix(SUFFIX).is_some_and(is_id) {
                names.push(name.to_owned());
            } else if rest.strip_suffix(&unfinished).is_some_and(is_id) {
                let _ = rustix::fs::unlinkat(self.directory(), name, AtFlags::empty());
            }
        }
        names.sort();
        Ok(names)
    }

    /// Bytes of all windows' files but `own`.
    fn windows_bytes(&self, own: &str) -> Result<u64, Errno> {
        let names = self.window_names()?;
        let others = names.iter().filter(|name| *name != own);
        let bytes = others.map(|name| {
            let found = rustix::fs::statat(self.directory(), name, AtFlags::SYMLINK_NOFOLLOW);
            found.map(|found| found.st_size as u64)
        });
        bytes.sum()
    }

    fn create(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(self.directory(), name, flags, MODE)?.into())
    }

    fn open_window(&self, name: &str) -> Result<File, Errno> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(self.directory(), name, flags, rustix::fs::Mode::empty()).map(File::from)
    }
}

/// Whether both are the same window of the same journal.
fn is_window_of(one: &SlotState, other: &SlotState) -> bool {
    let name = |state: &SlotState| {
        let MemberState {
            window_epoch,
            generation,
            trim,
            held,
            ..
        } = state.member;
        (state.journal, window_epoch, generation, trim, held)
    };
    name(one) == name(other)
}

/// The head of a file; `None` if it fails its check, or the file is cut.
fn read_head(file: &File) -> io::Result<Option<SpillHead>> {
    let mut bytes = [0; HEAD_BYTES];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => (),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let length = file.metadata()?.len();
    Ok(SpillHead::decode(&bytes).filter(|head| head.length <= length))
}
