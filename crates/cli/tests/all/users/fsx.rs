//! The file system exerciser: random operations on a file, each compared with the same on an array of bytes.
//! After the last sync the server is killed, and the file must be the array again.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};

use crate::faults::harness::random::FaultsRandom;
use crate::users::file_system::FileSystem;
use crate::users::rounds::Rounds;
use crate::users::testbed::UsersTestbed;

const PLAYERS: u64 = 3;
const FILE_BYTES_MAX: u64 = 1 << 20;
const PIECE_BYTES_MAX: u64 = 80_000;
const BLOCK_BYTES: u64 = 4096;
const ROUND: Duration = Duration::from_millis(1200);

#[test]
fn a_file_after_random_operations_is_right_even_after_a_kill() {
    let test = "a_file_after_random_operations_is_right_even_after_a_kill";
    plays(test, FileSystem::Ext4);
}

#[test]
#[ignore = "minutes: make users"]
fn a_file_on_xfs_after_random_operations_is_right_even_after_a_kill() {
    let test = "a_file_on_xfs_after_random_operations_is_right_even_after_a_kill";
    plays(test, FileSystem::Xfs);
}

fn plays(test: &str, file_system: FileSystem) {
    let Some(site) = UsersTestbed::new(test, file_system, &[]) else {
        return;
    };
    let mut rounds = Rounds::new(2);
    let mut players: Vec<Player> = (0..PLAYERS)
        .map(|number| Player::new(&site.mounted(), number, rounds.random.next()))
        .collect();
    while rounds.another() {
        thread::scope(|scope| {
            for player in &mut players {
                scope.spawn(|| player.play(ROUND));
            }
        });
        site.crash();
        site.recover();
        players.iter().for_each(Player::compare_all);
    }
    let operations: u64 = players.iter().map(|player| player.operations).sum();
    eprintln!("{} kills, {operations} operations", rounds.done());
    site.close();
}

struct Player {
    path: PathBuf,
    model: Vec<u8>,
    random: FaultsRandom,
    operations: u64,
}

impl Player {
    fn new(below: &Path, number: u64, seed: u64) -> Player {
        let path = below.join(format!("fsx-{number}"));
        File::create_new(&path).unwrap();
        Player {
            path,
            model: Vec::new(),
            random: FaultsRandom(seed),
            operations: 0,
        }
    }

    /// Plays for a while, and syncs.
    fn play(&mut self, span: Duration) {
        let mut file = self.open();
        let until = Instant::now() + span;
        while Instant::now() < until {
            self.operations += 1;
            match self.random.below(10) {
                0..=2 => self.write(&file),
                3..=5 => self.read(&file),
                6 => self.truncate(&file),
                7 => self.make_zero(&file),
                8 => self.shift(&file),
                _ if self.random.below(4) == 0 => {
                    file = self.open();
                }
                _ => file.sync_data().unwrap(),
            }
            let length = file.metadata().unwrap().len();
            assert_eq!(length, self.model.len() as u64, "{}", self.path.display());
        }
        file.sync_all().unwrap();
        // And its name, which nothing had synced yet.
        let directory = self.path.parent().unwrap();
        File::open(directory).unwrap().sync_all().unwrap();
        // The next read comes from the volume.
        fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        self.compare_all();
    }

    fn open(&self) -> File {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(&self.path)
            .unwrap()
    }

    /// A piece of the file that may hang over its end.
    fn piece(&mut self, bound: u64) -> (u64, u64) {
        let offset = self.random.below(bound);
        let length = 1 + self.random.below(PIECE_BYTES_MAX);
        (offset, length.min(FILE_BYTES_MAX - offset))
    }

    fn write(&mut self, file: &File) {
        let (offset, length) = self.piece(FILE_BYTES_MAX);
        let mut bytes = vec![0; length as usize];
        self.random.fill(&mut bytes);
        file.write_all_at(&bytes, offset).unwrap();
        let end = (offset + length) as usize;
        self.model.resize(self.model.len().max(end), 0);
        self.model[offset as usize..end].copy_from_slice(&bytes);
    }

    fn read(&mut self, file: &File) {
        let size = self.model.len() as u64;
        if size == 0 {
            return;
        }
        let (offset, length) = self.piece(size);
        let length = length.min(size - offset);
        if self.random.below(2) == 0 {
            // Dirty pages stay; clean ones are read from the volume again.
            fadvise(file, 0, None, Advice::DontNeed).unwrap();
        }
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, offset).unwrap();
        self.same(&bytes, offset);
    }

    fn truncate(&mut self, file: &File) {
        let size = self.random.below(FILE_BYTES_MAX);
        file.set_len(size).unwrap();
        self.model.resize(size as usize, 0);
    }

    /// A hole, or zeros, in the middle or over the end.
    fn make_zero(&mut self, file: &File) {
        let (offset, length) = self.piece(FILE_BYTES_MAX);
        let size = self.model.len() as u64;
        let (flags, grows) = match self.random.below(3) {
            0 => (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, false),
            1 => (FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, false),
            _ => (FallocateFlags::ZERO_RANGE, true),
        };
        fallocate(file, flags, offset, length).unwrap();
        let end = offset + length;
        if grows && end > size {
            self.model.resize(end as usize, 0);
        }
        let end = end.min(self.model.len() as u64) as usize;
        if let Some(zeros) = self.model.get_mut(offset as usize..end) {
            zeros.fill(0);
        }
    }

    /// Removes blocks from the file, or inserts some.
    fn shift(&mut self, file: &File) {
        let blocks = self.model.len() as u64 / BLOCK_BYTES;
        if blocks < 3 {
            return;
        }
        let first = self.random.below(blocks - 2);
        let count = 1 + self.random.below((blocks - first - 1).min(8));
        let (offset, length) = (first * BLOCK_BYTES, count * BLOCK_BYTES);
        let at = offset as usize..(offset + length) as usize;
        // Neither may touch the end, which is what `count` leaves room for.
        if self.random.below(2) == 0 {
            fallocate(file, FallocateFlags::COLLAPSE_RANGE, offset, length).unwrap();
            self.model.drain(at);
        } else if self.model.len() as u64 + length <= FILE_BYTES_MAX {
            fallocate(file, FallocateFlags::INSERT_RANGE, offset, length).unwrap();
            let zeros = std::iter::repeat_n(0, length as usize);
            self.model.splice(at.start..at.start, zeros);
        }
    }

    fn same(&self, bytes: &[u8], offset: u64) {
        let model = &self.model[offset as usize..offset as usize + bytes.len()];
        if let Some(at) = bytes
            .iter()
            .zip(model)
            .position(|(found, wanted)| found != wanted)
        {
            panic!(
                "{}: byte {} is {} and should be {}, after {} operations",
                self.path.display(),
                offset as usize + at,
                bytes[at],
                model[at],
                self.operations
            );
        }
    }

    fn compare_all(&self) {
        let found = std::fs::read(&self.path).unwrap();
        assert_eq!(found.len(), self.model.len(), "{}", self.path.display());
        self.same(&found, 0);
    }
}
