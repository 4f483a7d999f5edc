//! Rule 10, *memory is bounded*: the window never exceeds its size, and a member drops nothing that its
//! writer has not declared to be on the disk.

use super::violation::fail;
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
