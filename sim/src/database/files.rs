//! Three files with a page cache in front of the disk, tracked byte by byte.

use netram_sqlite_machine::FileRole;

use crate::rng::Rng;

/// A file whatever its name. Dirty bytes are in the cache and perhaps on the disk until a sync writes them.
/// After a failed sync they are clean and in the cache, but not on the disk.
#[derive(Clone, Debug, Default)]
struct Inode {
    number: u64,
    cache: Vec<u8>,
    dirty: Vec<bool>,
    size_is_dirty: bool,
    disk: Vec<u8>,
}

/// The files of a database.
#[derive(Debug, Default)]
pub(super) struct DatabaseFiles {
    named: [Option<Inode>; 3],
    /// The file on the disk under each name.
    on_disk: [Option<Inode>; 3],
    numbers: u64,
}

impl Inode {
    fn resize(&mut self, size: usize) {
        self.size_is_dirty |= size != self.cache.len();
        self.cache.resize(size, 0);
        // Bytes behind the file's end are zeros when the file grows again.
        self.dirty.resize(size, true);
    }

    fn sync(&mut self) {
        if self.size_is_dirty {
            self.disk.resize(self.cache.len(), 0);
        }
        for at in (0..self.cache.len()).filter(|at| self.dirty[*at]) {
            if at >= self.disk.len() {
                self.disk.resize(at + 1, 0);
            }
            self.disk[at] = self.cache[at];
        }
        self.clean();
    }

    /// Marks all bytes clean. A failed sync does this too.
    fn clean(&mut self) {
        self.dirty.fill(false);
        self.size_is_dirty = false;
    }

    /// Reverts the cached bytes to the disk's, except dirty ones.
    fn drop_cache(&mut self) {
        let behind = (0..self.cache.len()).rev().find(|at| self.dirty[*at]);
        let size = match self.size_is_dirty {
            true => self.cache.len(),
            false => self.disk.len().max(behind.map_or(0, |at| at + 1)),
        };
        self.cache.resize(size, 0);
        self.dirty.resize(size, false);
        for at in (0..size).filter(|at| !self.dirty[*at]) {
            self.cache[at] = self.disk.get(at).copied().unwrap_or(0);
        }
    }

    /// Reduces the file to what a loss of power leaves.
    fn lose_power(&mut self, rng: &mut Rng) {
        let size = match self.size_is_dirty && rng.chance(500) {
            true => self.cache.len(),
            false => self.disk.len(),
        };
        let mut left: Vec<u8> = (0..size)
            .map(|at| self.disk.get(at).copied().unwrap_or(0))
            .collect();
        for (at, byte) in left.iter_mut().enumerate().take(self.cache.len()) {
            if self.dirty[at] && rng.chance(500) {
                *byte = self.cache[at];
            }
        }
        self.cache.clone_from(&left);
        self.dirty = vec![false; size];
        self.size_is_dirty = false;
        self.disk = left;
    }
}

impl DatabaseFiles {
    /// Contents of a file, as every process sees them.
    pub(super) fn bytes(&self, role: FileRole) -> Option<&Vec<u8>> {
        self.named[role as usize].as_ref().map(|file| &file.cache)
    }

    fn get_or_create(&mut self, role: FileRole) -> &mut Inode {
        self.numbers += 1;
        let number = self.numbers;
        self.named[role as usize].get_or_insert(Inode {
            number,
            size_is_dirty: true,
            ..Inode::default()
        })
    }

    pub(super) fn write(&mut self, role: FileRole, offset: usize, bytes: &[u8]) {
        let file = self.get_or_create(role);
        if file.cache.len() < offset + bytes.len() {
            file.resize(offset + bytes.len());
        }
        file.cache[offset..offset + bytes.len()].copy_from_slice(bytes);
        file.dirty[offset..offset + bytes.len()].fill(true);
    }

    pub(super) fn resize(&mut self, role: FileRole, size: usize) {
        self.get_or_create(role).resize(size);
    }

    pub(super) fn remove(&mut self, role: FileRole) {
        let Some(gone) = self.named[role as usize].take() else {
            return;
        };
        // The name stays on the disk until names are synced, with the bytes that the file got until now.
        if let Some(on_disk) = &mut self.on_disk[role as usize]
            && on_disk.number == gone.number
        {
            *on_disk = gone;
        }
    }

    /// Syncs one file. If the sync fails, its dirty bytes count as clean all the same.
    pub(super) fn sync(&mut self, role: FileRole, fails: bool) {
        if let Some(file) = &mut self.named[role as usize] {
            match fails {
                true => file.clean(),
                false => file.sync(),
            }
        }
    }

    /// Syncs the directory, and with it all names.
    pub(super) fn sync_names(&mut self) {
        for (on_disk, named) in self.on_disk.iter_mut().zip(&self.named) {
            on_disk.clone_from(named);
        }
    }

    pub(super) fn drop_cache(&mut self, role: FileRole) {
        if let Some(file) = &mut self.named[role as usize] {
            file.drop_cache();
        }
    }

    /// Writes the file's bytes over themselves.
    pub(super) fn rewrite(&mut self, role: FileRole) {
        if let Some(file) = &mut self.named[role as usize] {
            file.dirty.fill(true);
            file.size_is_dirty = true;
        }
    }

    /// Applies a loss of power: synced bytes stay, and any part of the others.
    pub(super) fn lose_power(&mut self, rng: &mut Rng) {
        for role in FileRole::ALL {
            let (named, on_disk) = (&mut self.named[role as usize], &mut self.on_disk[role as usize]);
            // If a name still belongs to the same file, the disk has the bytes that the file got since.
            if let (Some(now), Some(then)) = (&named, &mut *on_disk)
                && now.number == then.number
            {
                then.clone_from(now);
            }
            let same = match (&named, &on_disk) {
                (Some(now), Some(then)) => now.number == then.number,
                _ => false,
            };
            let mut left = match !same && rng.chance(500) {
                true => named.take(),
                false => on_disk.take(),
            };
            if let Some(file) = &mut left {
                file.lose_power(rng);
            }
            named.clone_from(&left);
            *on_disk = left;
        }
    }
}
