//! Journals that are deleted: their lenders are told, also later if they were away.
//!
//! Whoever deletes a journal writes down first who must be told ([`JournalDeletion::begin`]), in a list that
//! does not lie in what is deleted:
//!
//! | where | when |
//! |---|---|
//! | `$NETRAM_STATE_DIR/over` | that is set |
//! | `$STATE_DIRECTORY/over` | a service manager set it |
//! | `/var/lib/netram/over` | of root |
//! | `$XDG_STATE_HOME/netram/over`, `~/.local/state/netram/over` | of all others |
//!
//! An entry is `JOURNAL.deleting` until all is removed, then `JOURNAL.over`. Nobody is told of the first
//! kind: a deletion that was cut off may have removed nothing, and the lenders may have the journal's newest
//! bytes. Deleting the rest completes it. An entry goes when all have been told, or are given up after
//! [`RETENTION`].
//!
//! The lenders are told by the program that deletes, and by whatever program of the user opens a journal
//! later.
//!
//! A deleted directory may be a copy, whose original was killed and still needs its lenders: they cannot tell
//! the two apart. So nothing is deleted whose view counts on lenders ([`JournalPaths::not_closed`]), unless
//! the operator says that nobody wants their bytes ([`WindowRelease::All`]). And a lender that holds bytes
//! which the deleted log lacked keeps them: the copy was made before the original counted on it.

mod entry;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::time::{Duration, Instant, SystemTime};

use netram_proto::id::Lsn;
use netram_proto::journal::ForgetNotice;
use netram_proto::wire::Frame;
use netram_transport::{ClusterKey, Link, NetAddress, Security, connect};

use crate::config::JournalConfig;
use crate::open::{open_log, open_view};
use crate::paths::JournalPaths;

pub use entry::ForgetEntry;

/// How long a lender is worth being told. Its memory seldom lasts as long; where it does, its operator sees
/// the age.
pub const RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);
/// How long a deletion waits for lenders that do not answer. They are told another time.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Between looks at a link.
const PAUSE: Duration = Duration::from_micros(200);

/// The list of who must still be told.
#[derive(Clone, Debug)]
pub struct ForgetList {
    directory: PathBuf,
}

/// Somebody deletes journals. If this is dropped before [`JournalDeletion::done`], nobody is told.
#[derive(Debug)]
pub struct JournalDeletion {
    list: ForgetList,
    root: PathBuf,
    /// What could not be written down: told now, or by nobody.
    unwritten: Vec<ForgetEntry>,
}

/// One lender that has not been told, or that has freed nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnfreedWindow {
    /// The journal that is over.
    pub journal: String,
    /// Where the lender was.
    pub lender: String,
    /// Bytes that the lender keeps because the deleted log did not have them. `None`: the lender was away.
    pub bytes_held: Option<u64>,
}

/// Which of a deleted journal's windows lenders may free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowRelease {
    /// Those of which the deleted log had every byte on its disk.
    Logged,
    /// All: nobody wants what the log does not have.
    All,
}

/// Up to where the journal at `place` is on its disk for certain, whatever this machine's memory has. Nothing
/// is changed. `None`: its log is gone, or cannot be read.
fn proven_end(place: &JournalPaths) -> Option<Lsn> {
    let (log, _, superblock) = open_log(place, false, Duration::ZERO).ok()?;
    let limit = superblock.head.lsn.plus(log.capacity());
    let scan = log.scan(superblock.head, limit, &mut |_| true);
    let view = open_view(place, false).ok()?;
    let proof = scan.proof.max(superblock.stable).max(view.newest().proof());
    Some(proof.min(scan.end.lsn))
}

impl ForgetList {
    /// This user's. `None`: there is no home to keep it in.
    pub fn usual() -> Option<ForgetList> {
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
        let base = set("NETRAM_STATE_DIR")
            .or_else(|| set("STATE_DIRECTORY"))
            .or_else(|| is_root.then(|| PathBuf::from("/var/lib/netram")))
            .or_else(homes)?;
        Some(ForgetList::at(base.join("over")))
    }

    /// The list in `directory`.
    pub fn at(directory: PathBuf) -> ForgetList {
        ForgetList { directory }
    }

    /// Whether somebody is to be told.
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

    /// The entries of a kind that can be read.
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

    /// Durable on return.
    fn write(&self, entry: &ForgetEntry, kind: &str) -> io::Result<()> {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.directory)?;
        let (path, unfinished) = (self.file(entry, kind), self.file(entry, "new"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&unfinished)?;
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
            tracing::debug!(path = %path.display(), %error, "an entry of the list of deleted journals stays");
        }
        // Both only if nothing is left in them.
        let _ = fs::remove_dir(&self.directory);
    }

    /// Tells whoever can be reached within `patience` in all. Returns those that could not be.
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
                tracing::debug!(%error, "told lenders stay in the list of deleted journals; they are told again");
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
    /// Writes down, durably, who must be told that the journals at `places` are over, which are about to be
    /// deleted with `root`. `lenders` are those of the settings; the members of the journals' views are told
    /// as well. They free `windows`.
    ///
    /// What cannot be read or written down is no reason to keep a journal: its lenders keep its memory until
    /// their operator frees it.
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
            let entry = ForgetEntry::of(&root, place, end(place), lenders, key)?;
            // Cut off behind its log, an earlier attempt has written down where that ended.
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
                tracing::warn!(%error, %directory, "lenders that are away will not be told that the journal is over: the list cannot be written");
                unwritten.push(entry);
            }
        }
        Some(JournalDeletion {
            list,
            root,
            unwritten,
        })
    }

    /// All is removed, durably, also what an earlier attempt had begun to remove. Tells the lenders, and
    /// those of earlier deletions; returns those of this one that are away, and will be told when the next
    /// program of this user opens a journal.
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

/// Tells in the background whoever was away when a journal was deleted; once in a process.
pub(crate) fn tell_in_background() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(list) = ForgetList::usual().filter(|list| !list.is_empty()) else {
            return;
        };
        let thread = std::thread::Builder::new().name("netram-over".to_owned());
        // Without a thread they are told another time.
        let _ = thread.spawn(move || list.tell(10 * PATIENCE));
    });
}

/// Tells the lenders of `config`, and the members of the last view of the journal at `root`, that the journal
/// is over. It is about to be removed, and whoever else needed it has it. Returns those that are away: they
/// keep its memory until their operator frees it.
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

/// Tells the entry's lenders, and keeps those that have not freed everything: those that could not be told,
/// and those that hold more than the deleted log had, which are returned with how many bytes that is. `away`:
/// not tried again.
fn tell(entry: &mut ForgetEntry, away: &mut BTreeSet<String>, deadline: Instant) -> BTreeMap<String, u64> {
    let security = match &entry.key {
        None => Security::Insecure,
        Some(path) => match ClusterKey::load(path) {
            Ok(key) => Security::Key(key),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "no lender can be told that a journal is over");
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
    for (index, lender) in entry.lenders.iter().enumerate() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Some(address) = lender.parse::<NetAddress>().ok().filter(|_| !left.is_zero()) else {
            continue;
        };
        if away.contains(lender) {
            continue;
        }
        match connect(&address, security, left.min(PATIENCE)) {
            Ok(mut link) => talk(&mut forget, index, &mut link, deadline),
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

/// Talks to one lender until it is told, the link breaks or it is silent.
pub fn talk(forget: &mut ForgetNotice, index: usize, link: &mut Link, deadline: Instant) {
    let deadline = deadline.min(Instant::now() + PATIENCE);
    forget.on_connected(index);
    while !forget.is_answered(index) && Instant::now() < deadline {
        if let Some(outgoing) = forget.next_frame(index) {
            let netram_proto::journal::FrameBody::Inline(body, length) = outgoing.body else {
                unreachable!("there is no ring here")
            };
            let sent = link.send(&[&outgoing.header.encode(length), &body[..length]]);
            if sent.and_then(|_| link.flush()).is_err() {
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
