//! Deleted journals: their lenders are told to free the windows, later if they are unreachable.
//!
//! A deletion first writes down which lenders must be told ([`JournalDeletion::begin`]), in a list outside
//! the deleted directory:
//!
//! | directory | used |
//! |---|---|
//! | `$NETRAM_STATE_DIR/over` | if that variable is set |
//! | `$STATE_DIRECTORY/over` | if a service manager set that variable |
//! | `/var/lib/netram/over` | by root |
//! | `$XDG_STATE_HOME/netram/over`, `~/.local/state/netram/over` | by other users |
//!
//! An entry is named `JOURNAL.deleting` until everything is removed, then `JOURNAL.over`. Lenders are not
//! told of a `.deleting` entry: an interrupted deletion may have removed nothing, and the lenders may hold
//! the journal's newest bytes. Repeating the deletion completes it. An entry is removed when all lenders have
//! been told, or after [`RETENTION`].
//!
//! Lenders are told by the deleting program, and later by any program of the user that opens a journal.
//!
//! A deleted directory may be a copy whose original was killed and still needs its lenders, and lenders
//! cannot tell the two apart. A journal whose view counts on lenders is therefore not deleted
//! ([`JournalPaths::not_closed`]), unless the operator says that those bytes are not needed
//! ([`WindowRelease::All`]). A lender that holds bytes which the deleted log lacked keeps them, since the
//! copy was made before the original counted on it.

mod entry;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant, SystemTime};

use netram_process::files::{PRIVATE, create_new};
use netram_proto::id::Lsn;
use netram_proto::journal::ForgetNotice;
use netram_proto::wire::Frame;
use netram_transport::{ClusterKey, Link, NetAddress, Security, connect};

use crate::config::JournalConfig;
use crate::open::{open_log, open_view};
use crate::owner::JournalOwner;
use crate::paths::{JournalPaths, remove};

pub use entry::ForgetEntry;

/// Time for which lenders of a deleted journal are told. A lender's memory seldom lasts as long; if it does,
/// the age is shown to its operator.
pub const RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);
/// Maximum time that a deletion waits for lenders that do not answer. They are told later.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Interval between polls of a link.
const PAUSE: Duration = Duration::from_micros(200);

/// The durable list of lenders that must still be told of deleted journals.
#[derive(Clone, Debug)]
pub struct ForgetList {
    directory: PathBuf,
}

/// A deletion under way. If this is dropped before [`JournalDeletion::done`], no lender is told.
#[derive(Debug)]
pub struct JournalDeletion {
    list: ForgetList,
    root: PathBuf,
    /// Entries that could not be written; their lenders are told at the end of this deletion or never.
    unwritten: Vec<ForgetEntry>,
}

/// A lender that was not told, or that kept its window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfreedWindow {
    /// The deleted journal's id.
    pub journal: String,
    /// The lender's address.
    pub lender: String,
    /// Bytes that the lender keeps because the deleted log lacked them; `None` if the lender was unreachable.
    pub bytes_held: Option<u64>,
}

/// Which windows of a deleted journal lenders may free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowRelease {
    /// Windows whose bytes were all on the disk of the deleted log.
    Logged,
    /// All windows: bytes that the log lacks are not needed.
    All,
}

/// LSN up to which the journal at `place` is proven to be on its disk, regardless of the page cache. Changes
/// nothing. `None` if its log is gone or cannot be read.
fn proven_end(place: &JournalPaths) -> Option<Lsn> {
    let (log, _, superblock) = open_log(place, false, Duration::ZERO).ok()?;
    let limit = superblock.head.lsn.plus(log.capacity());
    let scan = log.scan(superblock.head, limit, &mut |_| true);
    let view = open_view(place, false).ok()?;
    let proof = scan.proof.max(superblock.stable).max(view.newest().proof());
    Some(proof.min(scan.end.lsn))
}

/// The directory in which this user's programs keep what concerns no single journal; `None` if none is known.
pub fn state_directory() -> Option<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|path| !path.is_empty())
            .map(PathBuf::from)
    };
    let is_root = rustix::process::geteuid().is_root();
    let homes = || {
        let state = set("XDG_STATE_HOME").or_else(|| Some(set("HOME")?.join(".local/state")));
        state.map(|state| state.join("netram"))
    };
    set("NETRAM_STATE_DIR")
        .or_else(|| set("STATE_DIRECTORY"))
        .or_else(|| is_root.then(|| PathBuf::from("/var/lib/netram")))
        .or_else(homes)
}

impl ForgetList {
    /// The list of this user; `None` if no directory for it is known.
    pub fn usual() -> Option<ForgetList> {
        Some(ForgetList::at(state_directory()?.join("over")))
    }

    /// The list in `directory`.
    pub fn at(directory: PathBuf) -> ForgetList {
        ForgetList { directory }
    }

    /// Whether no lender is left to be told.
    pub fn is_empty(&self) -> bool {
        self.files("over").next().is_none()
    }

    /// Whether a deletion of `root` was begun and not completed.
    pub(crate) fn has_begun(&self, root: &Path) -> bool {
        let Ok(root) = std::path::absolute(root) else {
            return false;
        };
        self.entries("deleting").any(|(_, entry)| entry.root == root)
    }

    /// The readable entries of one kind.
    fn entries(&self, kind: &'static str) -> impl Iterator<Item = (PathBuf, ForgetEntry)> + use<> {
        self.files(kind).filter_map(|path| {
            let entry = ForgetEntry::parse(&fs::read_to_string(&path).ok()?)?;
            Some((path, entry))
        })
    }

    fn files(&self, kind: &'static str) -> impl Iterator<Item = PathBuf> + use<> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths.filter(move |path| path.extension().is_some_and(|found| found == kind))
    }

    fn file(&self, entry: &ForgetEntry, kind: &str) -> PathBuf {
        self.directory.join(format!("{}.{kind}", entry.journal))
    }

    /// Writes an entry durably.
    fn write(&self, entry: &ForgetEntry, kind: &str) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)?;
        let (path, unfinished) = (self.file(entry, kind), self.file(entry, "new"));
        // The remains of a process that was killed.
        remove(&unfinished)?;
        let mut file = create_new(&unfinished, PRIVATE)?;
        file.write_all(entry.to_text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)?;
        self.sync()
    }

    fn sync(&self) -> io::Result<()> {
        File::open(&self.directory)?.sync_all()
    }

    fn remove(&self, path: &Path) {
        if let Err(error) = fs::remove_file(path) {
            tracing::debug!(path = %path.display(), %error, "cannot remove an entry from the list of deleted journals");
        }
        // The directories are removed only if they are empty.
        let _ = fs::remove_dir(&self.directory);
    }

    /// Tells the lenders that can be reached within `patience` in all. Returns the others.
    pub fn tell(&self, patience: Duration) -> Vec<UnfreedWindow> {
        let deadline = Instant::now() + patience;
        let (mut away, mut untold) = (BTreeSet::new(), Vec::new());
        for (path, mut entry) in self.entries("over") {
            let before = entry.lenders.len();
            let holds = tell(&mut entry, &mut away, deadline);
            let age = fs::metadata(&path).and_then(|file| file.modified()).ok();
            let age = age.and_then(|at| SystemTime::now().duration_since(at).ok());
            if entry.lenders.is_empty() || age.is_some_and(|age| age > RETENTION) {
                self.remove(&path);
                continue;
            }
            if entry.lenders.len() < before
                && let Err(error) = self.write(&entry, "over")
            {
                tracing::debug!(%error, "cannot update the list of deleted journals; its lenders will be told again");
            }
            let journal = entry.journal.to_string();
            untold.extend(entry.lenders.into_iter().map(|lender| UnfreedWindow {
                journal: journal.clone(),
                bytes_held: holds.get(&lender).copied(),
                lender,
            }));
        }
        untold
    }
}

impl JournalDeletion {
    /// Durably records that the lenders of the journals at `places`, which are about to be deleted together
    /// with `root`, must be told. These are `lenders`, from the settings, and the members of the journals'
    /// views. They will free `windows`.
    ///
    /// A view or list that cannot be read or written does not stop the deletion. The lenders then keep the
    /// memory until their operator frees it.
    pub fn begin(
        list: Option<ForgetList>,
        root: &Path,
        places: &[JournalPaths],
        windows: WindowRelease,
        lenders: &[NetAddress],
        key: Option<&Path>,
    ) -> Option<JournalDeletion> {
        let list = list?;
        let root = std::path::absolute(root).ok()?;
        let begun: Vec<ForgetEntry> = list.entries("deleting").map(|(_, entry)| entry).collect();
        let end = |place| match windows {
            WindowRelease::All => ForgetNotice::ALL,
            WindowRelease::Logged => proven_end(place).unwrap_or_default(),
        };
        let entries = places.iter().filter_map(|place| {
            let found = crate::auto::kept(place);
            let lenders = [lenders, &found].concat();
            let entry = ForgetEntry::of(&root, place, end(place), &lenders, key)?;
            // An earlier deletion interrupted after the log's removal has recorded where the log ended.
            let is_it = |one: &&ForgetEntry| (one.journal, &one.root) == (entry.journal, &root);
            let before = begun.iter().find(is_it).filter(|_| !place.log().exists());
            Some(ForgetEntry {
                end: before.map_or(entry.end, |before| before.end.max(entry.end)),
                ..entry
            })
        });
        let mut entries: Vec<ForgetEntry> = entries.collect();
        if windows == WindowRelease::All {
            let rest = begun.into_iter().filter(|one| one.root == root);
            let is_new = |one: &ForgetEntry| entries.iter().all(|entry| entry.journal != one.journal);
            let rest: Vec<ForgetEntry> = rest.filter(is_new).collect();
            entries.extend(rest.into_iter().map(|one| ForgetEntry {
                end: ForgetNotice::ALL,
                ..one
            }));
        }
        let mut unwritten = Vec::new();
        for entry in entries {
            if let Err(error) = list.write(&entry, "deleting") {
                let directory = list.directory.display();
                tracing::warn!(%error, %directory, "cannot write the list of deleted journals; unreachable lenders will not be told of this deletion");
                unwritten.push(entry);
            }
        }
        Some(JournalDeletion {
            list,
            root,
            unwritten,
        })
    }

    /// Called when all files are durably removed, including those of an interrupted deletion. Tells the
    /// lenders of this deletion and of earlier ones. Returns those of this one that were unreachable; they
    /// are told when a program of this user next opens a journal.
    pub fn done(self, patience: Duration) -> Vec<UnfreedWindow> {
        let mut ours = BTreeSet::new();
        for (path, entry) in self.list.entries("deleting") {
            if entry.root == self.root {
                ours.insert(entry.journal.to_string());
                let _ = fs::rename(&path, path.with_extension("over"));
            }
        }
        let _ = self.list.sync();
        let deadline = Instant::now() + patience;
        for mut entry in self.unwritten {
            tell(&mut entry, &mut BTreeSet::new(), deadline);
        }
        let mut untold = self.list.tell(patience);
        untold.retain(|one| ours.contains(&one.journal));
        untold
    }
}

/// Starts a thread, once per process, that tells lenders which were unreachable during earlier deletions.
pub(crate) fn tell_in_background() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(list) = ForgetList::usual().filter(|list| !list.is_empty()) else {
            return;
        };
        let thread = std::thread::Builder::new().name("netram-forget".to_owned());
        // If no thread can be started they are told another time.
        let _ = thread.spawn(move || list.tell(10 * PATIENCE));
    });
}

/// Tells the lenders of `config`, and the members of the last view of the journal at `root`, that the journal
/// is over. The caller is about to remove it and has its records elsewhere. Returns the unreachable lenders,
/// which keep the memory until their operator frees it.
pub fn tell_now(root: &Path, config: &JournalConfig, patience: Duration) -> Vec<String> {
    let Some(mut entry) = ForgetEntry::of(
        root,
        &JournalPaths::at(root),
        ForgetNotice::ALL,
        &config.lenders,
        None,
    ) else {
        return Vec::new();
    };
    let deadline = Instant::now() + patience;
    tell_with(&mut entry, &config.security, &mut BTreeSet::new(), deadline);
    entry.lenders
}

/// Tells the entry's lenders and keeps in the entry those that have not freed everything. Returns the lenders
/// that hold more than the deleted log had, with the number of bytes. Lenders in `away` are not tried again.
fn tell(entry: &mut ForgetEntry, away: &mut BTreeSet<String>, deadline: Instant) -> BTreeMap<String, u64> {
    let security = match &entry.key {
        None => Security::Insecure,
        Some(path) => match ClusterKey::load(path) {
            Ok(key) => Security::Key(key),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "cannot tell lenders of a deleted journal: its cluster key cannot be read");
                return BTreeMap::new();
            }
        },
    };
    tell_with(entry, &security, away, deadline)
}

fn tell_with(
    entry: &mut ForgetEntry,
    security: &Security,
    away: &mut BTreeSet<String>,
    deadline: Instant,
) -> BTreeMap<String, u64> {
    let fence = (entry.epoch, entry.writer);
    let mut forget = ForgetNotice::deleted(entry.journal, fence, entry.end, &entry.lenders);
    let owner = entry.journal_owner();
    for (index, lender) in entry.lenders.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(address) = lender.parse::<NetAddress>().ok().filter(|_| !left.is_zero()) else {
            continue;
        };
        if away.contains(lender) {
            continue;
        }
        match connect(&address, security, left.min(PATIENCE)) {
            Ok(mut link) => talk(&mut forget, &owner, index, &mut link, deadline),
            Err(_) => {
                away.insert(lender.clone());
            }
        }
    }
    let lenders = std::mem::take(&mut entry.lenders).into_iter().enumerate();
    let left: Vec<(usize, String)> = lenders.filter(|(index, _)| !forget.is_done(*index)).collect();
    let holds = left
        .iter()
        .filter_map(|(index, lender)| Some((lender.clone(), forget.holds_more(*index)?)));
    let holds = holds.collect();
    entry.lenders = left.into_iter().map(|(_, lender)| lender).collect();
    holds
}

/// Exchanges frames with one lender until it is told, the link breaks, or it stays silent.
pub fn talk(
    forget: &mut ForgetNotice,
    owner: &JournalOwner,
    index: usize,
    link: &mut Link,
    deadline: Instant,
) {
    let deadline = deadline.min(Instant::now() + PATIENCE);
    if owner.introduce(link).is_err() {
        return;
    }
    forget.on_connected(index);
    while !forget.is_answered(index) && Instant::now() < deadline {
        if let Some(outgoing) = forget.next_frame(index) {
            let netram_proto::journal::FrameBody::Inline(body, length) = outgoing.body else {
                unreachable!("a forget notice sends no log bytes")
            };
            let sent = owner.queue(link, &outgoing.header, &body[..length]);
            if sent.and_then(|()| link.flush()).is_err() {
                return;
            }
        }
        match link.receive() {
            Ok(Some(packet)) => match Frame::parse(packet) {
                Ok(frame) => forget.on_frame(index, &frame),
                Err(_) => return,
            },
            Ok(None) => std::thread::sleep(PAUSE),
            Err(_) => return,
        }
    }
}
