//! A stream of bytes through large aligned blocks. One thread gathers and checks while another moves the
//! block before to or from the disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::scope;

use rustix::io::Errno;

/// Bytes of a block. Large, so that one request at a time keeps a disk busy.
const BLOCK_BYTES: usize = 4 << 20;
/// Alignment of a block's memory, offset and length, which suffices to write past the page cache.
const ALIGNMENT: usize = 4096;
/// Blocks under way in a direction: one is gathered, one waits, one moves.
const BLOCKS: usize = 3;
/// Threads that read: while one block is handed over, the disk reads another.
const READERS: usize = 2;

/// A block of aligned memory.
struct Block {
    memory: Vec<u8>,
    start: usize,
    used: usize,
}

impl Block {
    fn new() -> Block {
        let memory = vec![0; BLOCK_BYTES + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Block {
            memory,
            start,
            used: 0,
        }
    }

    fn free(&mut self) -> &mut [u8] {
        &mut self.memory[self.start + self.used..self.start + BLOCK_BYTES]
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.used]
    }
}

/// Where the bytes of a spill go.
pub(super) struct BlockSink {
    block: Block,
    full: SyncSender<Block>,
    empty: Receiver<Block>,
}

impl BlockSink {
    /// Lets `fill` write into the free part of the block, at most `length` bytes. Returns how many.
    pub(super) fn fill(
        &mut self,
        length: u64,
        fill: impl FnOnce(&mut [u8]) -> io::Result<()>,
    ) -> io::Result<usize> {
        let free = self.block.free();
        let taken = free.len().min(usize::try_from(length).unwrap_or(usize::MAX));
        fill(&mut free[..taken])?;
        self.block.used += taken;
        if self.block.used == BLOCK_BYTES {
            self.pass_on()?;
        }
        Ok(taken)
    }

    /// Appends these bytes.
    pub(super) fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = self.fill(bytes.len() as u64, |free| {
                free.copy_from_slice(&bytes[..free.len()]);
                Ok(())
            })?;
            bytes = &bytes[taken..];
        }
        Ok(())
    }

    fn pass_on(&mut self) -> io::Result<()> {
        // The other thread has ended: its error is the one that counts.
        let gone = |_| io::Error::other("the disk's thread has ended");
        let mut next = self.empty.recv().map_err(|_| gone(()))?;
        next.used = 0;
        let full = std::mem::replace(&mut self.block, next);
        self.full.send(full).map_err(|_| gone(()))
    }
}

/// Writes what `gather` puts into the sink to the beginning of a file, past the page cache if `direct` is
/// that file opened so. The last block is padded with zeros.
pub(super) fn write_blocks(
    file: &File,
    direct: Option<File>,
    gather: impl FnOnce(&mut BlockSink) -> io::Result<()>,
) -> io::Result<()> {
    scope(|threads| {
        let (full, to_write) = sync_channel::<Block>(1);
        let (written, empty) = sync_channel::<Block>(BLOCKS);
        for _ in 1..BLOCKS {
            let _ = written.send(Block::new());
        }
        let writer = threads.spawn(move || {
            let (mut at, mut direct) = (0, direct);
            for block in to_write {
                write_at(file, &mut direct, block.bytes(), at)?;
                at += block.used as u64;
                let _ = written.send(block);
            }
            io::Result::Ok(())
        });
        let mut sink = BlockSink {
            block: Block::new(),
            full,
            empty,
        };
        let gathered = gather(&mut sink).and_then(|()| {
            let rest = sink.block.used.next_multiple_of(ALIGNMENT) - sink.block.used;
            sink.write(&[0; ALIGNMENT][..rest])?;
            sink.pass_on()
        });
        drop(sink);
        let wrote = writer
            .join()
            .map_err(|_| io::Error::other("the disk's thread panicked"))?;
        wrote.and(gathered)
    })
}

/// Writes past the page cache, or through it if the file system refuses that.
fn write_at(file: &File, direct: &mut Option<File>, bytes: &[u8], at: u64) -> io::Result<()> {
    if let Some(past) = direct {
        match past.write_all_at(bytes, at) {
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => *direct = None,
            done => return done,
        }
    }
    file.write_all_at(bytes, at)
}

/// Where the bytes of a spill come from. Each reader reads every [`READERS`]th block.
pub(super) struct BlockSource {
    block: Option<Block>,
    taken: usize,
    /// The reader whose block is being taken.
    turn: usize,
    readers: [BlockReader; READERS],
}

/// The blocks that one thread has read, and those that it may read into.
struct BlockReader {
    full: Receiver<io::Result<Block>>,
    empty: SyncSender<Block>,
}

impl BlockSource {
    /// The next bytes, at most `length`; empty at the end of the file.
    pub(super) fn next(&mut self, length: u64) -> io::Result<&[u8]> {
        if self.block.as_ref().is_none_or(|block| self.taken == block.used) {
            if let Some(read) = self.block.take() {
                let _ = self.readers[self.turn].empty.send(read);
                self.turn = (self.turn + 1) % READERS;
            }
            self.taken = 0;
            match self.readers[self.turn].full.recv() {
                Ok(block) => self.block = Some(block?),
                Err(_) => return Ok(&[]),
            }
        }
        let Some(block) = &self.block else { return Ok(&[]) };
        let left = &block.bytes()[self.taken..];
        let length = left.len().min(usize::try_from(length).unwrap_or(usize::MAX));
        self.taken += length;
        Ok(&left[..length])
    }

    /// Fills `bytes`. `false`: the file has fewer.
    pub(super) fn read(&mut self, bytes: &mut [u8]) -> io::Result<bool> {
        let mut done = 0;
        while done < bytes.len() {
            let next = self.next((bytes.len() - done) as u64)?;
            if next.is_empty() {
                return Ok(false);
            }
            bytes[done..done + next.len()].copy_from_slice(next);
            done += next.len();
        }
        Ok(true)
    }
}

/// Lets `take` read a file from its beginning, past the page cache if `direct` is that file opened so.
pub(super) fn read_blocks<T>(
    file: &File,
    direct: Option<File>,
    take: impl FnOnce(&mut BlockSource) -> io::Result<T>,
) -> io::Result<T> {
    let direct = direct.as_ref();
    scope(|threads| {
        let readers = std::array::from_fn(|reader| {
            let (read, full) = sync_channel(1);
            let (empty, to_read) = sync_channel(BLOCKS);
            for _ in 1..BLOCKS {
                let _ = empty.send(Block::new());
            }
            threads.spawn(move || read_every(reader, (file, direct), &to_read, &read));
            BlockReader { full, empty }
        });
        take(&mut BlockSource {
            block: None,
            taken: 0,
            turn: 0,
            readers,
        })
    })
}

/// Reads block `first` and every [`READERS`]th after it, until the file ends or nobody wants more.
fn read_every(
    first: usize,
    (file, mut direct): (&File, Option<&File>),
    empty: &Receiver<Block>,
    read: &SyncSender<io::Result<Block>>,
) {
    let mut at = (first * BLOCK_BYTES) as u64;
    for mut block in empty {
        block.used = 0;
        let mut done = fill_from(direct.unwrap_or(file), at, &mut block);
        if direct.is_some() && done.is_err() {
            // The file system refuses that, or the end of the file is not aligned.
            (direct, block.used) = (None, 0);
            done = fill_from(file, at, &mut block);
        }
        let is_end = !matches!(done, Ok(true));
        at += (READERS * BLOCK_BYTES) as u64;
        if read.send(done.map(|_| block)).is_err() || is_end {
            return;
        }
    }
}

/// Reads until the block is full. `false` at the end of the file.
fn fill_from(file: &File, at: u64, block: &mut Block) -> io::Result<bool> {
    while !block.free().is_empty() {
        let from = at + block.used as u64;
        match file.read_at(block.free(), from) {
            Ok(0) => return Ok(false),
            Ok(count) => block.used += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_an_error_of_either_thread_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let file = File::create_new(&path).unwrap();
        let bytes: Vec<u8> = (0..3 * BLOCK_BYTES + 777).map(|at| (at / 251) as u8).collect();
        write_blocks(&file, None, |sink| sink.write(&bytes)).unwrap();
        let file = File::open(&path).unwrap();
        let read = read_blocks(&file, None, |source| {
            let mut read = vec![0; bytes.len()];
            assert!(source.read(&mut read)?);
            let rest = source.next(u64::MAX)?;
            assert!(rest.iter().all(|byte| *byte == 0) && rest.len() < ALIGNMENT);
            assert!(source.next(1)?.is_empty());
            Ok(read)
        });
        assert!(read.unwrap() == bytes);
        let refused = write_blocks(&file, None, |sink| sink.write(&bytes)).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(Errno::BADF.raw_os_error()));
        let own = write_blocks(&file, None, |_| Err(io::Error::other("own"))).unwrap_err();
        assert_eq!(own.to_string(), "own");
    }
}
