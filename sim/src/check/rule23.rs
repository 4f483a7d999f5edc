//! Rule 23, *what was is not what is, and nobody guesses*: a deletion frees the memory of the deleted log
//! only, and the window of a client whose key is revoked stays.

use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::member::{MemberState, Window};

use super::violation::fail;
use crate::world::World;

/// Checks lender `index`, in state `before`, after it was told of the deletion of a directory with `view`
/// that had everything below `had` on a disk.
pub(crate) fn check_forget(world: &mut World, index: usize, before: &MemberState, (view, had): (&View, Lsn)) {
    let after = world.lenders[index].state();
    if !before.joined {
        return;
    }
    if before.held > had {
        let same = after.joined && (after.generation, after.held) == (before.generation, before.held);
        if !same {
            fail(
                23,
                format!(
                    "lender {index} held LSN {had} to {}, which the deleted directory lacked, and was made to free it",
                    before.held
                ),
            );
        }
        world.kernel.hit("deletions: windows kept");
    } else if before.epoch <= view.epoch {
        if after.joined {
            fail(
                23,
                format!(
                    "lender {index} keeps a window up to {}, and the deleted directory had everything below {had}",
                    before.held
                ),
            );
        }
        world.kernel.hit("deletions: windows freed");
    }
}

/// Checks lender `lender`, which had a window in state `before`, after it revoked the window's client.
pub(crate) fn kept_when_revoked(world: &mut World, lender: usize, (before, capacity): (&MemberState, u64)) {
    let one = &world.lenders[lender];
    if !before.joined {
        return;
    }
    if one.state() != *before || one.window.capacity() != capacity {
        fail(
            23,
            format!(
                "lender {lender} held LSN {} to {} for a client, and no longer does since its key was revoked",
                before.trim, before.held
            ),
        );
    }
    world.kernel.hit("clients: revoked with a window");
}
