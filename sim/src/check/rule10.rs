//! Rule 10, *memory is bounded*: the window never exceeds its size, and a member drops nothing that its
//! writer has not declared to be on the disk.

use netram_proto::id::Lsn;
use netram_proto::member::MemberState;

use super::fail;
use crate::process::ServingState;
use crate::world::World;

/// Checks the size of the writer's window.
pub(crate) fn bounded(world: &World, serving: &ServingState) {
    let window = serving.writer.tail().since(serving.writer.stable());
    if window > world.kernel.profile.window {
        fail(
            10,
            format!("the window has {window} of {} bytes", world.kernel.profile.window),
        );
    }
}

/// Checks the size and the trim point of one member's window.
pub(crate) fn member(state: &MemberState, capacity: u64, declared: Lsn) {
    if !state.joined {
        return;
    }
    let used = state.received.since(state.trim);
    if used > capacity {
        fail(
            10,
            format!("a member holds {used} bytes in a window of {capacity}"),
        );
    }
    if state.trim > declared {
        fail(
            10,
            format!(
                "a member gave up bytes below {}, its writer had declared {declared} stable",
                state.trim
            ),
        );
    }
}
