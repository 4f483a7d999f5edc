//! Rule 23, *what was is not what is, and nobody guesses*: a deletion frees the memory of the deleted log
//! only.

use netram_proto::id::Lsn;
use netram_proto::journal::View;
use netram_proto::member::MemberState;

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
