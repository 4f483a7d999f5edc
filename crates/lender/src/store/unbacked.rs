//! What may be lent now, and free chunks, with memory behind them or without: that of unbacked chunks was
//! released to the machine.
//!
//! An unbacked chunk must not be touched until it has been filled: when the lender offers more again, and the
//! machine has the memory.

use std::io;
use std::sync::atomic::Ordering;

use super::{Pools, WindowStore, chunk_at};
use crate::file::{fill, free_bytes, is_set_aside, punch_hole};
use crate::limit::UNBACKED_BYTES_PER_TURN;
use crate::memory::Chunk;

impl WindowStore {
    /// Bytes that may be lent now: neither lent nor released to the machine, nor about to be released.
    pub fn free(&self) -> u64 {
        let backed = self.chunks_free.load(Ordering::Relaxed);
        backed.min(self.room(backed)) * self.geometry.chunk_bytes
    }

    /// Bytes in windows and deposits.
    pub fn lent(&self) -> u64 {
        self.chunks_lent(self.chunks_free.load(Ordering::Relaxed)) * self.geometry.chunk_bytes
    }

    /// Bytes in windows.
    pub fn windows_bytes(&self) -> u64 {
        self.lent().saturating_sub(self.deposits())
    }

    /// Bytes that may be lent now in all.
    pub fn offered(&self) -> u64 {
        self.chunks_offered.load(Ordering::Relaxed) * self.geometry.chunk_bytes
    }

    /// Lends at most `bytes` from now on. What is lent already stays until it is left.
    pub(crate) fn offer(&self, bytes: u64) {
        let chunks = bytes / self.geometry.chunk_bytes;
        self.chunks_offered.store(chunks, Ordering::Relaxed);
    }

    fn chunks_lent(&self, backed: u64) -> u64 {
        let unbacked = self.chunks_unbacked.load(Ordering::Relaxed);
        self.geometry.chunks.saturating_sub(backed + unbacked)
    }

    /// Number of chunks that may be lent beside those that are.
    pub(super) fn room(&self, backed: u64) -> u64 {
        let offered = self.chunks_offered.load(Ordering::Relaxed);
        offered.saturating_sub(self.chunks_lent(backed))
    }

    /// Whether releasing memory helps the machine: not with preallocated huge pages.
    pub(crate) fn can_give_back(&self) -> bool {
        !is_set_aside(&self.file).unwrap_or(true)
    }

    /// Bytes that are released to the machine.
    pub fn given_back(&self) -> u64 {
        self.chunks_unbacked.load(Ordering::Relaxed) * self.geometry.chunk_bytes
    }

    /// Moves the released bytes towards `bytes`, as far as chunks are free or the machine has memory. Each
    /// call does a bounded part, since the caller has other work. Returns whether that bound ended it.
    pub(crate) fn give_back(&self, bytes: u64) -> io::Result<bool> {
        let wanted = bytes.div_ceil(self.geometry.chunk_bytes) as usize;
        let turns = (UNBACKED_BYTES_PER_TURN / self.geometry.chunk_bytes).max(1);
        for _ in 0..turns {
            let given = self.pools().unbacked.len();
            let more = match given.cmp(&wanted) {
                std::cmp::Ordering::Less => self.release_one(),
                std::cmp::Ordering::Greater => self.refill_one(),
                std::cmp::Ordering::Equal => Ok(false),
            };
            if !more? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Releases one chunk. `false` if none is free. During the system call the chunk is in no list and the
    /// lock is free.
    fn release_one(&self) -> io::Result<bool> {
        let mut pools = self.pools();
        let Some(chunk) = pools.chunks.pop() else {
            return Ok(false);
        };
        self.count(&pools);
        drop(pools);
        let emptied = punch_hole(
            &self.file,
            chunk_at(self.geometry, &chunk),
            self.geometry.chunk_bytes,
        );
        let mut pools = self.pools();
        match emptied {
            Ok(()) => pools.unbacked.push(chunk),
            // The chunk's contents are unknown and irrelevant.
            Err(_) => pools.chunks.insert(0, chunk),
        }
        self.count(&pools);
        emptied.map(|()| true)
    }

    /// Reserves memory for one chunk. `false` if the machine lacks it.
    fn refill_one(&self) -> io::Result<bool> {
        if free_bytes(&self.file)? < self.geometry.chunk_bytes {
            return Ok(false);
        }
        let Some(mut chunk) = self.pools().unbacked.pop() else {
            return Ok(false);
        };
        let filled = self.fill(&mut chunk);
        let mut pools = self.pools();
        match filled {
            Ok(()) => pools.chunks.push(chunk),
            Err(_) => pools.unbacked.push(chunk),
        }
        self.count(&pools);
        filled.map(|()| true)
    }

    /// Takes `count` chunks for a window that its client needs back, whatever the machine lacks: a copy on
    /// the disk alone cannot be read without. The error is the number of free bytes.
    pub(crate) fn take_chunks_back(&self, count: usize) -> Result<Vec<Chunk>, u64> {
        let mut pools = self.pools();
        self.fill_for(&mut pools, count);
        let Some(keep) = pools.chunks.len().checked_sub(count) else {
            self.silent.want(count - pools.chunks.len());
            return Err(pools.chunks.len() as u64 * self.geometry.chunk_bytes);
        };
        let taken = pools.chunks.split_off(keep);
        self.count(&pools);
        Ok(taken)
    }

    /// Reserves memory so that there are `count` free chunks. Costs a quarter of a millisecond a megabyte,
    /// with the lock held.
    fn fill_for(&self, pools: &mut Pools, count: usize) {
        let lacking = count.saturating_sub(pools.chunks.len());
        if lacking == 0 || lacking > pools.unbacked.len() {
            return;
        }
        let bytes = lacking as u64 * self.geometry.chunk_bytes;
        if !free_bytes(&self.file).is_ok_and(|free| bytes <= free) {
            return;
        }
        for _ in 0..lacking {
            let Some(mut chunk) = pools.unbacked.pop() else {
                unreachable!("there are as many")
            };
            if self.fill(&mut chunk).is_err() {
                pools.unbacked.push(chunk);
                break;
            }
            pools.chunks.push(chunk);
        }
        self.count(pools);
    }

    fn fill(&self, chunk: &mut Chunk) -> io::Result<()> {
        fill(
            &self.file,
            chunk_at(self.geometry, chunk),
            self.geometry.chunk_bytes,
        )?;
        chunk.region.touch();
        Ok(())
    }

    fn count(&self, pools: &Pools) {
        self.chunks_free
            .store(pools.chunks.len() as u64, Ordering::Relaxed);
        self.chunks_unbacked
            .store(pools.unbacked.len() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::sync::Arc;

    use super::super::{StoreConfig, StoreOrigin};
    use super::*;

    const CHUNK: u64 = 16 * 1024;

    fn config(dir: &tempfile::TempDir) -> StoreConfig {
        StoreConfig {
            discard_windows: false,
            spill: None,
            path: dir.path().join("store"),
            memory: 64 * CHUNK,
            set_aside: u64::MAX,
            chunk_bytes: CHUNK,
            quota: 64 * CHUNK,
            journals_max: 2,
            mlock: false,
            huge_pages: false,
            allow_disk: false,
        }
    }

    fn opened() -> (tempfile::TempDir, Arc<WindowStore>) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (store, _) = WindowStore::open(&config(&dir)).unwrap();
        (dir, store)
    }

    /// Bytes of memory behind the store's file.
    fn resident(store: &WindowStore) -> u64 {
        store.file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn released_memory_is_the_machines_until_it_is_reserved_again() {
        let (_dir, store) = opened();
        let (all, memory) = (resident(&store), store.memory());
        assert!(store.can_give_back());
        store.give_back(10 * CHUNK).unwrap();
        assert_eq!(
            (store.given_back(), store.free()),
            (10 * CHUNK, memory - 10 * CHUNK)
        );
        assert_eq!(resident(&store), all - 10 * CHUNK);
        store.give_back(3 * CHUNK - 1).unwrap();
        assert_eq!(
            (store.given_back(), resident(&store)),
            (3 * CHUNK, all - 3 * CHUNK)
        );
        // At most the free chunks are released.
        let mut lent = Vec::new();
        store.resize_deposit(&mut lent, 40, memory).unwrap();
        store.give_back(memory).unwrap();
        assert_eq!((store.given_back(), store.free()), (24 * CHUNK, 0));
        assert_eq!(store.resize_deposit(&mut lent, 41, memory), Err(40 * CHUNK));
        store.give_back(0).unwrap();
        assert_eq!((store.given_back(), resident(&store)), (0, all));
    }

    #[test]
    fn no_more_is_lent_than_what_is_offered() {
        let (_dir, store) = opened();
        let mut window = store.take_chunks(20).unwrap();
        store.offer(30 * CHUNK);
        assert_eq!((store.free(), store.lent()), (10 * CHUNK, 20 * CHUNK));
        assert_eq!(
            store.take_chunks(11).err(),
            Some(10 * CHUNK),
            "the rest is on its way"
        );
        let mut pages = Vec::new();
        assert_eq!(store.resize_deposit(&mut pages, 11, 64 * CHUNK), Err(10 * CHUNK));
        store.resize_deposit(&mut pages, 4, 64 * CHUNK).unwrap();
        assert_eq!((store.windows_bytes(), store.free()), (20 * CHUNK, 6 * CHUNK));
        // What exceeds the offer stays until it is left, and is not lent again then.
        store.offer(8 * CHUNK);
        assert_eq!((store.free(), store.take_chunks(1).err()), (0, Some(0)));
        store.give_chunks(&mut window);
        assert_eq!((store.free(), store.lent()), (4 * CHUNK, 4 * CHUNK));
        store.give_back(56 * CHUNK).unwrap();
        while store.give_back(56 * CHUNK).unwrap() {}
        assert_eq!((store.given_back(), store.free()), (56 * CHUNK, 4 * CHUNK));
        let mut back = store.take_chunks_back(9).unwrap();
        assert_eq!(back.len(), 9, "a client needs its bytes");
        store.give_chunks(&mut back);
        store.give_back(56 * CHUNK).unwrap();
        store.offer(64 * CHUNK);
        assert_eq!(
            store.take_chunks(5).err(),
            Some(4 * CHUNK),
            "the machine has it still"
        );
        store.give_back(0).unwrap();
        assert_eq!(store.take_chunks(60).unwrap().len(), 60);
    }

    #[test]
    fn the_next_process_finds_released_chunks_unbacked() {
        let (dir, store) = opened();
        let all = resident(&store);
        store.give_back(30 * CHUNK).unwrap();
        drop(store);
        for mlock in [false, true] {
            let config = StoreConfig {
                mlock,
                ..config(&dir)
            };
            let Ok((store, _)) = WindowStore::open(&config) else {
                assert!(mlock, "only locking may be refused here");
                continue;
            };
            assert_eq!(store.origin(), StoreOrigin::Restored);
            assert_eq!((store.given_back(), store.free()), (30 * CHUNK, 34 * CHUNK));
            assert_eq!(resident(&store), all - 30 * CHUNK);
        }
        let (store, _) = WindowStore::open(&config(&dir)).unwrap();
        store.give_back(0).unwrap();
        assert_eq!(resident(&store), all);
    }
}
