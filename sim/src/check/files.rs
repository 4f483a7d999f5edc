//! Oracle of a directory of files. After a crash its names are those of a moment at or after the last
//! acknowledged change of names. A file that was synced and not changed since has its bytes. In other files
//! that are written by pages, each page is whole and no older than at its last sync.
//!
//! The first letter of a name says how the file is written: `p` by whole pages, each filled with its stamp;
//! `l` at any offset.

use std::collections::{BTreeMap, BTreeSet};

use super::violation::fail;

/// Page size in bytes. Programs that write whole pages of this size rely on never finding a torn one.
pub const PAGE: usize = 4096;

/// The model's number of a file or directory; it survives renames.
pub type ModelFileId = u64;

type Names = BTreeMap<Vec<u8>, ModelFileId>;

/// State of one path on the simulated disk.
#[derive(Clone, Debug)]
pub struct PathEntry {
    /// Inode number of the file or directory.
    pub inode: u64,
    /// Whether the path is a directory.
    pub directory: bool,
    /// Contents of the file; empty for a directory.
    pub bytes: Vec<u8>,
}

/// Everything on the simulated disk, by path.
pub type DiskListing = BTreeMap<Vec<u8>, PathEntry>;

/// A change of names, by path.
#[derive(Clone, Debug)]
pub enum NameChange {
    /// A file is created, or with `true` a directory.
    Make(Vec<u8>, bool),
    /// A file has one more name.
    Link(Vec<u8>, Vec<u8>),
    /// A name is taken away.
    Remove(Vec<u8>),
    /// A path is renamed; with `true` the two paths exchange their names.
    Rename(Vec<u8>, Vec<u8>, bool),
}

/// Stamps that each page of a page-written file may have after a crash; zero stands for a page that was never
/// written.
#[derive(Clone, Debug)]
struct Pages {
    stamps: Vec<BTreeSet<u64>>,
    lengths: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
struct Content {
    /// Bytes as the running program sees them.
    bytes: Vec<u8>,
    /// True if a crash of any kind leaves exactly `bytes`.
    durable: bool,
    /// True if a crash of the server alone leaves exactly `bytes`: either no record has any of them and the
    /// disk has all, or records have all.
    disk_only: bool,
    recorded: bool,
    /// Present only for a file that is written by pages.
    pages: Option<Pages>,
}

/// The reference model of a directory.
#[derive(Clone, Debug)]
pub struct DirectoryModel {
    /// Names as they were at the last opening, and after each change since.
    moments: Vec<Names>,
    /// Index in `moments` of the last acknowledged state.
    acked: usize,
    /// `None` stands for a directory.
    files: BTreeMap<ModelFileId, Option<Content>>,
    count: u64,
}

/// Whether a file with this path is written by whole pages.
pub fn is_paged(path: &[u8]) -> bool {
    name(path).starts_with(b"p")
}

/// Last component of a path.
pub fn name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// A page filled with this stamp.
pub fn page(stamp: u64) -> Vec<u8> {
    stamp.to_le_bytes().repeat(PAGE / 8)
}

/// The stamp of a page; `None` if the page is torn or has no stamp.
fn stamp(page: &[u8]) -> Option<u64> {
    let (stamps, rest) = page.as_chunks::<8>();
    let first = stamps.first()?;
    let whole = page.len() == PAGE && rest.is_empty() && stamps.iter().all(|stamp| stamp == first);
    whole.then(|| u64::from_le_bytes(*first))
}

impl Content {
    fn new(bytes: Vec<u8>, paged: bool) -> Content {
        let mut content = Content {
            bytes,
            durable: true,
            disk_only: false,
            recorded: false,
            pages: paged.then(|| Pages {
                stamps: Vec::new(),
                lengths: BTreeSet::new(),
            }),
        };
        content.mark_durable();
        content
    }

    /// Marks the current bytes as durable.
    fn mark_durable(&mut self) {
        self.durable = true;
        self.disk_only = false;
        if let Some(pages) = &mut self.pages {
            pages.stamps = stamps_of(&self.bytes)
                .map(|stamp| BTreeSet::from([stamp]))
                .collect();
            pages.lengths = BTreeSet::from([self.bytes.len()]);
        }
    }

    fn resize(&mut self, size: usize) {
        (self.durable, self.recorded) = (false, false);
        self.bytes.resize(size, 0);
        if let Some(pages) = &mut self.pages {
            let count = size / PAGE;
            pages.lengths.insert(size);
            pages.stamps.iter_mut().skip(count).for_each(|stamps| {
                stamps.insert(0);
            });
            while pages.stamps.len() < count {
                pages.stamps.push(BTreeSet::from([0]));
            }
        }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        (self.durable, self.recorded) = (false, false);
        if end > self.bytes.len() {
            self.resize(end);
        }
        self.bytes[offset..end].copy_from_slice(bytes);
        if let Some(pages) = &mut self.pages {
            // Pages that the write touched may have their old stamp or the new one.
            let ends = (offset / PAGE + 1)..=end / PAGE;
            pages.lengths.extend(ends.map(|page| page * PAGE));
            for (stamps, stamp) in pages.stamps[offset / PAGE..].iter_mut().zip(stamps_of(bytes)) {
                stamps.insert(stamp);
            }
        }
    }

    /// Checks whether a crash may leave the file with the bytes `found`.
    fn may_be(&self, found: &[u8]) -> Result<(), String> {
        if self.durable && self.bytes != found {
            return Err(String::from("is not as it was synced"));
        }
        let Some(pages) = &self.pages else {
            return Ok(());
        };
        if !pages.lengths.contains(&found.len()) {
            return Err(format!("has {} bytes, which it never had", found.len()));
        }
        for (index, stamp) in stamps_of(found).enumerate() {
            if !pages.stamps[index].contains(&stamp) {
                return Err(format!(
                    "has page {index} of {stamp}, and may have {:?}",
                    pages.stamps[index]
                ));
            }
        }
        Ok(())
    }
}

fn stamps_of(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(PAGE).map(|page| stamp(page).unwrap_or(u64::MAX))
}

impl DirectoryModel {
    /// An empty directory.
    pub fn empty() -> DirectoryModel {
        DirectoryModel {
            moments: vec![Names::new()],
            acked: 0,
            files: BTreeMap::new(),
            count: 0,
        }
    }

    /// Returns a number that was never used before, for a file, a directory or a page stamp.
    pub fn next_number(&mut self) -> u64 {
        self.count += 1;
        self.count
    }

    /// Names as they are now.
    pub fn names(&self) -> &BTreeMap<Vec<u8>, ModelFileId> {
        &self.moments[self.moments.len() - 1]
    }

    /// Whether `thing` is a directory.
    pub fn is_directory(&self, thing: ModelFileId) -> bool {
        matches!(self.files.get(&thing), Some(None))
    }

    /// Length of a file in bytes.
    pub fn length(&self, thing: ModelFileId) -> usize {
        let content = self.files.get(&thing).and_then(Option::as_ref);
        content.map_or(0, |content| content.bytes.len())
    }

    /// Bytes of a file as the running program sees them.
    pub fn bytes(&self, thing: ModelFileId) -> &[u8] {
        let content = self.files.get(&thing).and_then(Option::as_ref);
        content.map_or(&[], |content| &content.bytes)
    }

    /// Records a change of names. With `held` it is acknowledged, otherwise it is in doubt.
    pub fn name(&mut self, naming: &NameChange, held: bool) {
        let mut names = self.names().clone();
        match naming {
            NameChange::Make(path, directory) => {
                let thing = self.next_number();
                let content = (!directory).then(|| Content {
                    disk_only: true,
                    ..Content::new(Vec::new(), is_paged(path))
                });
                self.files.insert(thing, content);
                names.insert(path.clone(), thing);
            }
            NameChange::Link(of, path) => {
                if let Some(thing) = names.get(of).copied() {
                    names.insert(path.clone(), thing);
                }
            }
            NameChange::Remove(path) => drop(names.remove(path)),
            // Two names of one file: nothing happens.
            NameChange::Rename(from, to, _) if names.get(from) == names.get(to) => (),
            NameChange::Rename(from, to, exchange) => rename(&mut names, from, to, *exchange),
        }
        self.moments.push(names);
        if held {
            self.acked = self.moments.len() - 1;
        }
    }

    /// Records a write that is not yet known to be synced.
    pub fn write(&mut self, thing: ModelFileId, offset: usize, bytes: &[u8]) {
        if let Some(Some(content)) = self.files.get_mut(&thing) {
            content.write(offset, bytes);
        }
    }

    /// Records a change of a file's length that is not yet known to be synced.
    pub fn resize(&mut self, thing: ModelFileId, size: usize) {
        if let Some(Some(content)) = self.files.get_mut(&thing) {
            content.disk_only = false;
            content.resize(size);
        }
    }

    /// Records an attempt to journal a file's contents, successful or not.
    pub fn asked_to_record(&mut self, thing: ModelFileId) {
        if let Some(Some(content)) = self.files.get_mut(&thing) {
            content.disk_only = false;
        }
    }

    /// Records an attempt to journal the contents of all files.
    pub fn asked_to_record_all(&mut self) {
        let all = self.files.values_mut().flatten();
        all.for_each(|content| content.disk_only = false);
    }

    /// Records that the contents of all files are journaled and the records acknowledged.
    pub fn recorded_all(&mut self) {
        let all = self.files.values_mut().flatten();
        all.for_each(|content| (content.disk_only, content.recorded) = (false, true));
    }

    /// Records that a file's contents are durable.
    pub fn synced(&mut self, thing: ModelFileId) {
        if let Some(Some(content)) = self.files.get_mut(&thing) {
            content.mark_durable();
        }
    }

    /// Records that the contents of all files are durable.
    pub fn synced_all(&mut self) {
        self.files.values_mut().flatten().for_each(Content::mark_durable);
    }

    /// Checks the directory found after a crash; `killed` says that only the server died. Returns the number
    /// of changes in doubt that were found. Everything found counts as durable from then on.
    pub fn reopened(&mut self, found: DiskListing, killed: bool) -> usize {
        whole_pages(&found);
        let (mut why, mut harm) = (String::new(), None);
        for moment in self.acked..self.moments.len() {
            let names = &self.moments[moment];
            // An exchange in doubt of two files with bytes in doubt may look done and undone.
            let unharmed = |()| match killed {
                true => self
                    .check_unharmed(names, &found)
                    .map_err(|what| harm = Some(what)),
                false => Ok(()),
            };
            match self
                .may_be(names, &found)
                .map_err(|reason| why = reason)
                .and_then(unharmed)
            {
                Ok(()) => {
                    let in_doubt = moment - self.acked;
                    self.adopt(found);
                    return in_doubt;
                }
                Err(()) => continue,
            }
        }
        if let Some(harm) = harm {
            fail(17, harm);
        }
        fail(
            6,
            format!("the directory is that of no moment it may have: {why}"),
        );
    }

    /// Checks the directory found after an accepted loss: only whole pages are promised then.
    pub fn reopened_with_loss(&mut self, found: DiskListing) {
        whole_pages(&found);
        self.adopt(found);
    }

    /// Checks the directory while the server runs.
    pub fn check_running(&self, found: &DiskListing, when: &str) {
        let bytes = |thing: &ModelFileId| self.files[thing].as_ref().map(|content| &content.bytes);
        let is_so = |(path, thing)| bytes(thing).is_none_or(|bytes| *bytes == found[path].bytes);
        if let Err(why) = same_names(self.names(), found) {
            fail(6, format!("{when}, {why}"));
        }
        if !self.names().iter().all(is_so) {
            fail(6, format!("{when}, a file is not what was written"));
        }
    }

    /// Checks the directory after a crash of the server without a loss of power: contents without a record
    /// are as the disk has them, the others as last recorded.
    fn check_unharmed(&self, names: &Names, found: &DiskListing) -> Result<(), String> {
        for (path, thing) in names {
            let Some(content) = &self.files[thing] else {
                continue;
            };
            let (path, same) = (path.escape_ascii(), content.bytes == found[&path[..]].bytes);
            if content.disk_only && !same {
                return Err(format!(
                    "{path} had no record, and is not as the disk had it when the server was killed"
                ));
            }
            if content.recorded && !same {
                return Err(format!(
                    "{path} was written long before the server was killed, and is not as it was written"
                ));
            }
        }
        Ok(())
    }

    fn may_be(&self, names: &Names, found: &DiskListing) -> Result<(), String> {
        same_names(names, found)?;
        for (path, thing) in names {
            let (content, found) = (&self.files[thing], &found[path]);
            let path = path.escape_ascii();
            if content.is_none() != found.directory {
                return Err(format!(
                    "{path} is a file where a directory was, or the other way round"
                ));
            }
            if let Some(content) = content {
                { content.may_be(&found.bytes) }.map_err(|why| format!("{path} {why}"))?;
            }
        }
        Ok(())
    }

    fn adopt(&mut self, found: DiskListing) {
        let (mut names, mut known) = (Names::new(), BTreeMap::new());
        self.files.clear();
        for (
            path,
            PathEntry {
                inode,
                directory,
                bytes,
            },
        ) in found
        {
            let thing = *known.entry(inode).or_insert_with(|| self.next_number());
            let content = (!directory).then(|| Content::new(bytes, is_paged(&path)));
            self.files.insert(thing, content);
            names.insert(path, thing);
        }
        (self.moments, self.acked) = (vec![names], 0);
    }
}

/// Checks that the paths are the same and that the same paths share a file.
fn same_names(names: &Names, found: &DiskListing) -> Result<(), String> {
    if !names.keys().eq(found.keys()) {
        let told = |path: &Vec<u8>| path.escape_ascii().to_string();
        let expected: Vec<String> = names.keys().map(told).collect();
        let found: Vec<String> = found.keys().map(told).collect();
        return Err(format!("names are {found:?} instead of {expected:?}"));
    }
    let pairs = names.values().zip(found.values().map(|found| found.inode));
    let pairs: BTreeSet<(ModelFileId, u64)> = pairs.map(|(thing, inode)| (*thing, inode)).collect();
    let things: BTreeSet<ModelFileId> = pairs.iter().map(|pair| pair.0).collect();
    let inodes: BTreeSet<u64> = pairs.iter().map(|pair| pair.1).collect();
    match pairs.len() == things.len() && pairs.len() == inodes.len() {
        true => Ok(()),
        false => Err(String::from(
            "one file with two names is two files, or the other way round",
        )),
    }
}

/// Checks that page-written files have only whole pages.
fn whole_pages(found: &DiskListing) {
    for (path, found) in { found.iter() }.filter(|(path, found)| !found.directory && is_paged(path)) {
        if let Some(index) = { found.bytes.chunks(PAGE) }.position(|page| stamp(page).is_none()) {
            fail(
                6,
                format!(
                    "page {index} of {} is cut: half of it is of one write",
                    path.escape_ascii()
                ),
            );
        }
    }
}

fn rename(names: &mut Names, from: &[u8], to: &[u8], exchange: bool) {
    let (one, other) = (take(names, from), take(names, to));
    names.extend(one.into_iter().map(|(rest, thing)| ([to, &rest].concat(), thing)));
    if exchange {
        names.extend(
            other
                .into_iter()
                .map(|(rest, thing)| ([from, &rest].concat(), thing)),
        );
    }
}

/// Removes and returns the entry at a path and everything below it.
fn take(names: &mut Names, path: &[u8]) -> Vec<(Vec<u8>, ModelFileId)> {
    let below = [path, b"/"].concat();
    let taken = names.extract_if(.., |other, _| other == path || other.starts_with(&below));
    taken
        .map(|(other, thing)| (other[path.len()..].to_vec(), thing))
        .collect()
}
