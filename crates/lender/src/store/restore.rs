//! Members that an earlier process left, or that are in files.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;

use netram_proto::member::{Member, MemberState, Window};
use netram_proto::spill::WindowPlace;

use super::WindowStore;
use crate::memory::{Chunk, JournalMemory};
use crate::slot::{Slot, SlotState};

/// A member that an earlier process left, verified.
pub struct RestoredMember {
    /// The member's state machine.
    pub member: Member,
    /// The member's memory.
    pub memory: JournalMemory,
    /// Whether its window was dropped because its bytes were invalid; its fence is kept.
    pub window_lost: bool,
}

/// A slot that holds a journal, and the chunks of its window.
pub(super) struct OccupiedSlot {
    pub(super) slot: Slot,
    pub(super) state: SlotState,
    pub(super) chunks: Vec<Chunk>,
    /// Whether its window is in a file of its own.
    pub(super) has_file: bool,
}

impl OccupiedSlot {
    /// Where its window is.
    pub(super) fn place(&self) -> WindowPlace {
        match (self.state.member.joined, self.chunks.is_empty(), self.has_file) {
            (true, true, _) => WindowPlace::Disk,
            (true, false, true) => WindowPlace::Both,
            _ => WindowPlace::Memory,
        }
    }
}

/// Makes members of what an earlier process left. Each core checks some: the bytes of all windows are read.
pub(super) fn restore_all(store: &Arc<WindowStore>, found: Vec<OccupiedSlot>) -> Vec<RestoredMember> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let mut shares: Vec<Vec<OccupiedSlot>> = Vec::new();
    shares.resize_with(threads.min(found.len()), Vec::new);
    let count = shares.len();
    for (number, slot) in found.into_iter().enumerate() {
        shares[number % count].push(slot);
    }
    let restore_share =
        |share: Vec<OccupiedSlot>| share.into_iter().map(|slot| restore(store, slot)).collect();
    thread::scope(|scope| {
        let running: Vec<_> = shares
            .into_iter()
            .map(|share| scope.spawn(|| restore_share(share)))
            .collect();
        let joined = running.into_iter().map(|thread| thread.join());
        joined
            .flat_map(|members: thread::Result<Vec<_>>| members.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// Makes a member of what an earlier process left of it.
pub(super) fn restore(store: &Arc<WindowStore>, found: OccupiedSlot) -> RestoredMember {
    let place = found.place();
    let OccupiedSlot {
        slot, state, chunks, ..
    } = found;
    let mut memory = JournalMemory::restored(Arc::clone(store), slot, chunks, (state, place));
    let incarnations = (state.incarnation, store.incarnation);
    let restored = match (state.member.spilled, place) {
        (_, WindowPlace::Disk) => Some(Member::of_file(state.journal, incarnations, state.member)),
        (true, _) => Member::restore_spilled(state.journal, incarnations, state.member, &memory),
        (false, _) => Member::restore(state.journal, store.incarnation, state.member, &memory),
    };
    let restored = restored.or_else(|| {
        // Its file has what memory has lost.
        let dropped = memory.drop_window();
        dropped.then(|| Member::of_file(state.journal, incarnations, state.member))
    });
    if let Some(member) = restored {
        return RestoredMember {
            member,
            memory,
            window_lost: false,
        };
    }
    // The bytes are worthless, but the fence stands: a fenced writer stays fenced.
    memory.release();
    if state.member.spilled && state.member.joined {
        store.keep_spill();
    }
    let sealed = MemberState {
        joined: false,
        spilled: false,
        ..state.member
    };
    let Some(member) = Member::restore(state.journal, store.incarnation, sealed, &memory) else {
        unreachable!("a member without a window has no bytes to check")
    };
    RestoredMember {
        member,
        memory,
        window_lost: true,
    }
}
