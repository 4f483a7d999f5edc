//! Small files that are written, synced, renamed into place and removed, each step synced: when that has
//! returned, it must be there after any crash.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::faults::harness::random::FaultsRandom;
use crate::users::file_system::FileSystem;
use crate::users::process::until;
use crate::users::rounds::Rounds;
use crate::users::testbed::UsersTestbed;

const WRITERS: u64 = 3;
/// Names that a writer uses, over and over.
const NAMES: u64 = 40;
const FILE_BYTES_MAX: u64 = 40_000;
/// Number and writer, name and version: a file's bytes show which file it is.
const HEADER_BYTES: usize = 24;
/// Longest time before the kill of a round.
const ROUND: Duration = Duration::from_millis(1500);

#[test]
fn every_synced_file_on_ext4_outlives_its_killed_server() {
    keeps_synced_files(
        "every_synced_file_on_ext4_outlives_its_killed_server",
        FileSystem::Ext4,
    );
}

#[test]
#[ignore = "minutes: make users"]
fn every_synced_file_on_xfs_outlives_its_killed_server() {
    keeps_synced_files(
        "every_synced_file_on_xfs_outlives_its_killed_server",
        FileSystem::Xfs,
    );
}

#[test]
#[ignore = "minutes: make users"]
fn every_synced_file_on_btrfs_outlives_its_killed_server() {
    keeps_synced_files(
        "every_synced_file_on_btrfs_outlives_its_killed_server",
        FileSystem::Btrfs,
    );
}

/// One lender's acknowledgement is enough, and most bytes went to both at once: what either has acknowledged
/// must be there.
#[test]
#[ignore = "minutes: make users"]
fn every_synced_file_outlives_its_killed_server_with_multicast_and_any() {
    let test = "every_synced_file_outlives_its_killed_server_with_multicast_and_any";
    let Some(site) = UsersTestbed::by_multicast(test, FileSystem::Ext4) else {
        return;
    };
    let mut rounds = Rounds::new(4);
    let mut writers = writers(&site, &mut rounds);
    let mut acked = 0;
    while rounds.another() {
        let killed = while_writing(&mut writers, || {
            rounds.let_it_run(ROUND);
            site.crash_after(Instant::now)
        });
        site.recover();
        acked += check(&mut writers, killed);
    }
    assert!(acked > 0, "nothing was ever written");
    let datagrams = site.datagrams();
    assert!(
        datagrams.iter().all(|count| *count > 0),
        "{datagrams:?}: not multicast"
    );
    eprintln!(
        "{} kills, {acked} acknowledged changes, {datagrams:?} datagrams",
        rounds.done()
    );
    site.close();
}

/// The client's disk goes with it in most rounds; the data lender is killed, too, but is back in time.
#[test]
#[ignore = "minutes: make users"]
fn every_synced_file_comes_back_from_the_data_lender_when_the_disk_is_lost() {
    let test = "every_synced_file_comes_back_from_the_data_lender_when_the_disk_is_lost";
    let Some(mut site) = UsersTestbed::kept_twice(test, FileSystem::Ext4) else {
        return;
    };
    let mut rounds = Rounds::new(3);
    let mut writers = writers(&site, &mut rounds);
    let (mut acked, mut lost) = (0, 0);
    while rounds.another() {
        let (killed, kept) = while_writing(&mut writers, || {
            rounds.let_it_run(ROUND / 2);
            if rounds.random.below(2) == 0 {
                site.restart_keeper();
            }
            until("the data lender is in service", || site.is_kept());
            rounds.let_it_run(ROUND / 2);
            site.crash_after(|| {
                let kept = site.is_kept();
                (Instant::now(), kept)
            })
        });
        // On a busy machine the data lender may be out of service again: then the disk is needed.
        if kept && rounds.random.below(4) > 0 {
            site.lose_disk();
            lost += 1;
        }
        site.recover();
        acked += check(&mut writers, killed);
    }
    assert!(acked > 0, "nothing was ever written");
    eprintln!(
        "{} kills, {lost} disks lost, {acked} acknowledged changes",
        rounds.done()
    );
    site.close();
}

fn writers(site: &UsersTestbed, rounds: &mut Rounds) -> Vec<Writer> {
    (0..WRITERS)
        .map(|number| Writer::new(&site.mounted(), number, rounds.random.next()))
        .collect()
}

/// Lets writers run until `story` has ended with a crash.
fn while_writing<T>(writers: &mut [Writer], story: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let running: Vec<_> = writers
            .iter_mut()
            .map(|writer| scope.spawn(|| writer.run(&stop)))
            .collect();
        let told = story();
        // They have ended with an error by themselves, or never will.
        stop.store(true, Ordering::Relaxed);
        running.into_iter().for_each(|writer| writer.join().unwrap());
        told
    })
}

/// Returns how many changes had been acknowledged before the kill.
fn check(writers: &mut [Writer], killed: Instant) -> usize {
    writers.iter_mut().map(|writer| writer.check(killed)).sum()
}

fn keeps_synced_files(test: &str, file_system: FileSystem) {
    let Some(mut site) = UsersTestbed::new(test, file_system, &[]) else {
        return;
    };
    let mut rounds = Rounds::new(3);
    let mut writers = writers(&site, &mut rounds);
    let mut acked = 0;
    while rounds.another() {
        let killed = while_writing(&mut writers, || {
            rounds.let_it_run(ROUND);
            if rounds.random.below(3) == 0 {
                site.lose_lender(rounds.random.next());
                rounds.let_it_run(ROUND / 4);
            }
            site.crash_after(Instant::now)
        });
        // An empty lender may be in the lost one's place when the volume is recovered, or none.
        if rounds.random.below(2) == 0 {
            site.replace_lender();
        }
        site.recover();
        site.replace_lender();
        acked += check(&mut writers, killed);
    }
    assert!(acked > 0, "nothing was ever written");
    let untrue: usize = writers.iter().map(|writer| writer.untrue).sum();
    eprintln!(
        "{} kills, {acked} acknowledged changes; {untrue} were reported as done while the file system failed, and were not",
        rounds.done()
    );
    site.close();
}

/// A change of a round: version 0 is no file.
#[derive(Debug)]
struct Change {
    index: u64,
    version: u64,
    /// `None`: it failed, or is under way.
    acked: Option<Instant>,
}

struct Writer {
    number: u64,
    directory: PathBuf,
    /// The version of each name when the round began.
    names: Vec<u64>,
    changes: Vec<Change>,
    random: FaultsRandom,
    version: u64,
    /// Changes that were acknowledged after the kill and are not there.
    untrue: usize,
}

impl Writer {
    fn new(below: &Path, number: u64, seed: u64) -> Writer {
        let directory = below.join(format!("writer-{number}"));
        fs::create_dir(&directory).unwrap();
        File::open(below).unwrap().sync_all().unwrap();
        Writer {
            number,
            directory,
            names: vec![0; NAMES as usize],
            changes: Vec::new(),
            random: FaultsRandom(seed),
            version: 0,
            untrue: 0,
        }
    }

    /// Changes files until that fails.
    fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::Relaxed) {
            let index = self.random.below(NAMES);
            let removes = self.path(index).exists() && self.random.below(5) == 0;
            self.version += u64::from(!removes);
            let version = if removes { 0 } else { self.version };
            let outcome = self.change(index, version);
            self.changes.push(Change {
                index,
                version,
                acked: outcome.is_ok().then(Instant::now),
            });
            if outcome.is_err() {
                break;
            }
        }
    }

    fn change(&self, index: u64, version: u64) -> io::Result<()> {
        let path = self.path(index);
        if version == 0 {
            fs::remove_file(path)?;
        } else {
            let new = self.directory.join("new");
            let mut file = File::create(&new)?;
            file.write_all(&self.content(index, version))?;
            file.sync_all()?;
            fs::rename(new, path)?;
        }
        File::open(&self.directory)?.sync_all()
    }

    fn path(&self, index: u64) -> PathBuf {
        self.directory.join(index.to_string())
    }

    fn content(&self, index: u64, version: u64) -> Vec<u8> {
        let mut random = FaultsRandom(self.number << 56 ^ index << 40 ^ version);
        let mut bytes = vec![0; HEADER_BYTES + random.below(FILE_BYTES_MAX) as usize];
        random.fill(&mut bytes);
        for (place, word) in bytes.chunks_mut(8).zip([self.number, index, version]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Each name has what was acknowledged last before the kill, or a later version, and that whole. Returns
    /// how many changes had been acknowledged.
    fn check(&mut self, killed: Instant) -> usize {
        let changes = std::mem::take(&mut self.changes);
        let (sure, doubtful): (Vec<_>, Vec<_>) = changes
            .iter()
            .partition(|change| change.acked.is_some_and(|acked| acked < killed));
        for change in &sure {
            self.names[change.index as usize] = change.version;
        }
        for index in 0..NAMES {
            let acked = self.names[index as usize];
            let found = self.version_of(index);
            let later: Vec<&&Change> = doubtful.iter().filter(|change| change.index == index).collect();
            let reached = later.iter().rposition(|change| change.version == found);
            assert!(
                found == acked || reached.is_some(),
                "{}: version {acked} was acknowledged before the kill, but {found} is there, and not one of {later:?}",
                self.path(index).display(),
            );
            let missing = &later[reached.map_or(0, |reached| reached + 1)..];
            self.untrue += missing.iter().filter(|change| change.acked.is_some()).count();
            self.names[index as usize] = found;
        }
        sure.len()
    }

    /// The version that a name has, which is there as it was written.
    fn version_of(&self, index: u64) -> u64 {
        let path = self.path(index);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return 0,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        let version = version_in(&bytes).unwrap_or_else(|| panic!("{} has no header", path.display()));
        assert!(
            bytes == self.content(index, version),
            "{}: other bytes than were written",
            path.display()
        );
        version
    }
}

fn version_in(bytes: &[u8]) -> Option<u64> {
    let word = bytes.get(16..HEADER_BYTES)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}
