//! Writing a store into a spill, after the last thread that used it has ended.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use netram_proto::id::Incarnation;
use netram_proto::spill::{SpillRun, SpillStep};

use super::blocks::{BlockSink, write_blocks};
use super::directory::SpillDirectory;
use super::error::SpillError;
use super::format::{CRC_BYTES, ENTRY_BYTES, HEAD_BYTES, SpillEntry, SpillHead, window_crc};
use super::layout::StoreLayout;
use super::{SpillReport, joined_bytes, unix_seconds};
use crate::slot::{JournalNames, SlotState};
use crate::superblock::{StoreSuperblock, fresh_incarnation};
use crate::sys::seconds_of_run;

/// A journal to write, and the chunks of its window.
pub(super) struct KeptJournal {
    entry: SpillEntry,
    chunks: Vec<u32>,
}

impl KeptJournal {
    /// A journal whose window is in these chunks; without chunks it has none, or has it in a file of its own.
    pub(super) fn new(state: SlotState, names: JournalNames, chunks: Vec<u32>) -> KeptJournal {
        let bytes = match chunks.is_empty() {
            true => 0,
            false => joined_bytes(&state.member),
        };
        KeptJournal {
            entry: SpillEntry { state, names, bytes },
            chunks,
        }
    }
}

/// Writes the windows and fences of the store in `file`, whose superblock is `block`. Nothing but this thread
/// may use the store. After an error the store is as it was, or closed: see [`SpillRun::is_final`].
///
/// # Errors
/// `Failed` for a call that the system refused, or a full disk.
pub(crate) fn spill_store(
    file: &File,
    block: StoreSuperblock,
    directory: &SpillDirectory,
) -> Result<SpillReport, SpillError> {
    let began = Instant::now();
    let path = directory.spill_path();
    let failed = |step| SpillError::failed(&path, step);
    let layout = StoreLayout::new(file, block.geometry);
    let journals = kept_journals(&layout).map_err(failed("read the lent memory for"))?;
    // Freeing the blocks of an earlier spill takes time, and may wait until this one is complete.
    let earlier = directory.find().ok().flatten();
    let mut run = SpillRun::default();
    while let Some(step) = run.step() {
        match step {
            SpillStep::Write => {
                let files = (directory.next(), directory.next_direct());
                write_file(&layout, block.incarnation, &journals, directory.lender(), files)
                    .map_err(failed("write"))?;
            }
            SpillStep::Close => {
                let closed = StoreSuperblock {
                    closed: true,
                    ..block
                };
                file.write_all_at(&closed.encode(), 0)
                    .map_err(failed("close the lent memory for"))?;
            }
            SpillStep::Rename => directory.rename().map_err(failed("give its name to"))?,
            SpillStep::SyncDirectory => directory.sync().map_err(failed("sync the directory of"))?,
        }
        run.done();
    }
    let took = began.elapsed();
    drop(earlier);
    let windows = journals.iter().filter(|kept| kept.entry.state.member.joined);
    Ok(SpillReport {
        windows: windows.count(),
        bytes: journals.iter().map(|kept| kept.entry.bytes).sum(),
        took,
        path,
    })
}

/// The journals that the store must remember.
fn kept_journals(layout: &StoreLayout<'_>) -> io::Result<Vec<KeptJournal>> {
    let found = layout.journals()?;
    let kept = found
        .into_iter()
        .filter(|found| !found.state.member.may_be_forgotten());
    Ok(kept
        .map(|found| KeptJournal::new(found.state, found.names, found.chunks))
        .collect())
}

/// Writes journals of the memory with this incarnation into `next`, and syncs it. `direct` is the same file,
/// opened past the page cache.
pub(super) fn write_file(
    layout: &StoreLayout<'_>,
    incarnation: Incarnation,
    journals: &[KeptJournal],
    lender: &str,
    (next, direct): (&File, Option<File>),
) -> io::Result<()> {
    let entries = journals.len() as u64;
    let bytes: u64 = journals.iter().map(|kept| kept.entry.bytes).sum();
    let head = SpillHead {
        entries: entries as u32,
        incarnation,
        length: HEAD_BYTES as u64 + entries * (ENTRY_BYTES + CRC_BYTES) as u64 + bytes,
        number: fresh_incarnation()?.0,
        written_s: unix_seconds(),
        uptime_s: seconds_of_run(),
        lender: lender.to_owned(),
    };
    write_blocks(next, direct, |sink| {
        sink.write(&head.encode())?;
        for kept in journals {
            sink.write(&kept.entry.encode(head.number))?;
            write_window(layout, kept, head.number, sink)?;
        }
        Ok(())
    })?;
    next.set_len(head.length)?;
    next.sync_all()
}

fn write_window(
    layout: &StoreLayout<'_>,
    kept: &KeptJournal,
    number: u64,
    sink: &mut BlockSink,
) -> io::Result<()> {
    let state = &kept.entry.state;
    let mut crc = window_crc(number);
    let mut at = state.member.trim;
    let mut left = kept.entry.bytes;
    while left > 0 {
        let (place, room) = layout.place(&kept.chunks, state.window_bytes, at);
        let taken = sink.fill(left.min(room), |free| {
            layout.file().read_exact_at(free, place)?;
            crc.update(free);
            Ok(())
        })?;
        at = at.plus(taken as u64);
        left -= taken as u64;
    }
    sink.write(&crc.finish().to_le_bytes())
}
