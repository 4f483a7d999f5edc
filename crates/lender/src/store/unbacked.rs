//! Free chunks, with memory behind them or without: the memory of unbacked chunks was released to the
//! machine.
//!
//! An unbacked chunk must not be touched until it has been filled. If a window needs it, memory is reserved
//! again at once, if the machine has any. For deposits it is reserved when the lender raises their limit.

use std::io;
use std::sync::atomic::Ordering;

use super::{Pools, WindowStore, chunk_at};
use crate::file::{fill, free_bytes, is_set_aside, punch_hole};
use crate::limit::UNBACKED_BYTES_PER_TURN;
use crate::memory::Chunk;

impl WindowStore {
    /// Whether releasing memory helps the machine: not with preallocated huge pages.
    pub(crate) fn can_give_back(&self) -> bool {
        !is_set_aside(&self.file).unwrap_or(true)
    }

    /// Bytes that are released to the machine.
    pub fn given_back(&self) -> u64 {
        self.chunks_unbacked.load(Ordering::Relaxed) * self.geometry.chunk_bytes
    }

    /// Moves the released bytes towards `bytes`, as far as chunks are free or the machine has memory. Each
    /// call does a bounded part, since the caller has other work.
    pub(crate) fn give_back(&self, bytes: u64) -> io::Result<()> {
        let wanted = (bytes / self.geometry.chunk_bytes) as usize;
        let turns = (UNBACKED_BYTES_PER_TURN / self.geometry.chunk_bytes).max(1);
        let mut done = Ok(());
        for _ in 0..turns {
            let given = self.pools().unbacked.len();
            let more = match given.cmp(&wanted) {
                std::cmp::Ordering::Less => self.release_one(),
                std::cmp::Ordering::Greater => self.refill_one(),
                std::cmp::Ordering::Equal => Ok(false),
            };
            if !matches!(more, Ok(true)) {
                done = more.map(|_| ());
                break;
            }
        }
        done
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

    /// Reserves memory so that a window gets `count` chunks; windows take precedence over the machine. Costs
    /// a quarter of a millisecond a megabyte, with the lock held.
    pub(super) fn fill_for(&self, pools: &mut Pools, count: usize) {
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
        store.give_back(3 * CHUNK + 1).unwrap();
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
    fn a_window_gets_released_memory_back() {
        let (_dir, store) = opened();
        let all = resident(&store);
        store.give_back(60 * CHUNK).unwrap();
        let mut chunks = store.take_chunks(20).unwrap();
        assert_eq!((store.given_back(), store.free()), (44 * CHUNK, 0));
        for (at, chunk) in chunks.iter_mut().enumerate() {
            assert_eq!(chunk.region.bytes(0, CHUNK as usize), [0; CHUNK as usize]);
            chunk.region.write(0, &[at as u8 + 1; CHUNK as usize]);
        }
        assert_eq!(resident(&store), all - 44 * CHUNK);
        assert_eq!(store.take_chunks(45).err(), Some(0), "there are fewer chunks");
        assert!(
            chunks
                .iter()
                .zip(1..)
                .all(|(chunk, byte)| chunk.region.bytes(0, 1) == [byte])
        );
        store.give_chunks(&mut chunks);
        assert_eq!(store.free(), 20 * CHUNK);
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
