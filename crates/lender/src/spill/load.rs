//! Taking a spill up into new memory, and a closed store that is still there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use netram_proto::id::Incarnation;
use netram_proto::member::MemberState;

use super::blocks::{BlockSource, read_blocks};
use super::directory::SpillDirectory;
use super::error::SpillError;
use super::format::{CRC_BYTES, ENTRY_BYTES, HEAD_BYTES, SpillEntry, SpillHead, window_crc};
use super::layout::StoreLayout;
use super::{joined_bytes, unix_seconds};
use crate::slot::{Slot, SlotState};
use crate::superblock::{StoreGeometry, StoreSuperblock, fresh_incarnation};
use crate::sys::seconds_of_run;

/// Why reading ended early.
enum LoadFailure {
    Damaged,
    /// The journal with this many bytes does not fit behind the journals and chunks before it.
    DoesNotFit,
}

/// Takes the spill `head`, at the beginning of `spill`, up into the empty store in `store`, whose slots have
/// memory. The superblock comes last, so a start that is interrupted takes it up again.
///
/// # Errors
/// `Damaged` if a check fails, `DoesNotFit` if the store is too small; the store has no superblock then.
pub(crate) fn load_spill(
    (spill, head, directory): (&File, &SpillHead, &SpillDirectory),
    (store, geometry): (&File, StoreGeometry),
) -> Result<(), SpillError> {
    let layout = StoreLayout::new(store, geometry);
    let path = &directory.spill_path();
    let failed = |step| SpillError::failed(path, step);
    let outcome = read_blocks(spill, directory.find_direct(), |source| {
        load_entries(source, head, &layout, geometry)
    });
    match outcome.map_err(failed("take up"))? {
        Ok(()) => Ok(()),
        Err(LoadFailure::Damaged) => Err(SpillError::Damaged {
            path: path.to_owned(),
        }),
        Err(LoadFailure::DoesNotFit) => {
            let needed = needed_bytes(spill, head, geometry).map_err(failed("read"))?;
            Err(SpillError::DoesNotFit {
                path: path.to_owned(),
                needed,
                journals: head.entries.into(),
            })
        }
    }
}

/// Completes a store that a spill was taken up into.
///
/// # Errors
/// The system's.
pub(crate) fn finish_load(
    store: &File,
    (geometry, boot): (StoreGeometry, u128),
    took_up: Incarnation,
) -> io::Result<()> {
    let block = StoreSuperblock {
        incarnation: fresh_incarnation()?,
        boot,
        geometry,
        closed: false,
        took_up: Some(took_up),
    };
    store.write_all_at(&block.encode(), 0)
}

/// Makes a closed store serve again under a new incarnation. Its windows keep the one that joined them, and
/// are read-only. An interrupted start finds the store closed, and does it again.
///
/// # Errors
/// The system's.
pub(crate) fn reopen_store(store: &File, block: StoreSuperblock) -> io::Result<()> {
    for mut found in StoreLayout::new(store, block.geometry).journals()? {
        let is_new = found.state.incarnation == Incarnation(0);
        if is_new && !found.state.member.may_be_forgotten() {
            found.slot.save(&spilled(found.state, block.incarnation));
        }
    }
    let open = StoreSuperblock {
        incarnation: fresh_incarnation()?,
        closed: false,
        took_up: Some(block.incarnation),
        ..block
    };
    store.write_all_at(&open.encode(), 0)
}

/// The state of a journal that was written to a disk. One that had been loaded before keeps its incarnation.
fn spilled(state: SlotState, incarnation: Incarnation) -> SlotState {
    SlotState {
        incarnation: match state.incarnation {
            Incarnation(0) => incarnation,
            earlier => earlier,
        },
        member: MemberState {
            spilled: true,
            received: state.member.held,
            ..state.member
        },
        ..state
    }
}

fn load_entries(
    source: &mut BlockSource,
    head: &SpillHead,
    layout: &StoreLayout<'_>,
    geometry: StoreGeometry,
) -> io::Result<Result<(), LoadFailure>> {
    let mut slots = layout.slots()?.into_iter();
    let mut free = 0;
    if !source.read(&mut [0; HEAD_BYTES])? {
        return Ok(Err(LoadFailure::Damaged));
    }
    for _ in 0..head.entries {
        let mut bytes = [0; ENTRY_BYTES];
        let entry = match source.read(&mut bytes)? {
            true => SpillEntry::decode(&bytes, head.number).filter(is_plausible),
            false => None,
        };
        let Some(entry) = entry else {
            return Ok(Err(LoadFailure::Damaged));
        };
        let count = chunks_of(&entry, geometry);
        let chunks: Vec<u32> = (free..).take(count as usize).collect();
        free += count as u32;
        let Some(slot) = slots.next().filter(|_| u64::from(free) <= geometry.chunks) else {
            return Ok(Err(LoadFailure::DoesNotFit));
        };
        if !load_window(source, &entry, head.number, (layout, &chunks))? {
            return Ok(Err(LoadFailure::Damaged));
        }
        fill_slot(slot, entry, &chunks, head);
    }
    Ok(Ok(()))
}

/// Whether the numbers of an entry agree, so that a file of our own making can have them.
pub(super) fn is_plausible(entry: &SpillEntry) -> bool {
    let member = &entry.state.member;
    let ordered = member.trim <= member.held;
    let bytes = joined_bytes(member);
    ordered && (entry.bytes == bytes || is_elsewhere(entry)) && bytes <= entry.state.window_bytes
}

/// Whether the journal's window is in a file of its own.
fn is_elsewhere(entry: &SpillEntry) -> bool {
    entry.state.member.joined && entry.state.chunks == 0 && entry.bytes == 0
}

/// Number of chunks of a journal's window.
fn chunks_of(entry: &SpillEntry, geometry: StoreGeometry) -> u64 {
    match entry.state.member.joined && !is_elsewhere(entry) {
        true => entry.state.window_bytes.div_ceil(geometry.chunk_bytes).max(1),
        false => 0,
    }
}

/// Copies the bytes of a window into its chunks. `false` if their check fails.
pub(super) fn load_window(
    source: &mut BlockSource,
    entry: &SpillEntry,
    number: u64,
    (layout, chunks): (&StoreLayout<'_>, &[u32]),
) -> io::Result<bool> {
    let mut crc = window_crc(number);
    let (mut at, mut left) = (entry.state.member.trim, entry.bytes);
    while left > 0 {
        let (place, room) = layout.place(chunks, entry.state.window_bytes, at);
        let bytes = source.next(left.min(room))?;
        if bytes.is_empty() {
            return Ok(false);
        }
        crc.update(bytes);
        layout.file().write_all_at(bytes, place)?;
        at = at.plus(bytes.len() as u64);
        left -= bytes.len() as u64;
    }
    let mut stored = [0; CRC_BYTES];
    Ok(source.read(&mut stored)? && stored == crc.finish().to_le_bytes())
}

fn fill_slot(mut slot: Slot, entry: SpillEntry, chunks: &[u32], head: &SpillHead) {
    let list_crc = slot.write_list(chunks.iter().copied());
    slot.write_names(entry.state.journal, &entry.names);
    slot.save(&SlotState {
        chunks: chunks.len() as u32,
        list_crc,
        last_contact: head.heard_at(entry.state.last_contact, unix_seconds(), seconds_of_run()),
        ..spilled(entry.state, head.incarnation)
    });
}

/// Bytes of memory that the windows of a spill need.
fn needed_bytes(spill: &File, head: &SpillHead, geometry: StoreGeometry) -> io::Result<u64> {
    let (mut at, mut chunks) = (HEAD_BYTES as u64, 0);
    for _ in 0..head.entries {
        let mut bytes = [0; ENTRY_BYTES];
        spill.read_exact_at(&mut bytes, at)?;
        let Some(entry) = SpillEntry::decode(&bytes, head.number) else {
            break;
        };
        chunks += chunks_of(&entry, geometry);
        at += (ENTRY_BYTES + CRC_BYTES) as u64 + entry.bytes;
    }
    Ok(chunks * geometry.chunk_bytes)
}
