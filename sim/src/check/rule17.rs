//! Rule 17, *only a failed sync is a failed disk*: a journal gives up its disk only after a failed sync.

use netram_proto::failure::CallError;

use super::violation::fail;
use crate::process::ServingState;
use crate::world::World;

/// Checks that the driver gives up the disk for `failure` only after a failed sync. In this world no write
/// fails for longer than the system's refusals last.
pub(crate) fn given_up(world: &World, process: usize, serving: &ServingState, failure: CallError) {
    let host = world.processes[process].host;
    let failed = world.hosts[host].disk.borrow().counts.sync_failures;
    if failed == serving.syncs_failed_before {
        fail(
            17,
            format!("process {process} gave its disk up ({failure}), and no sync of it has failed"),
        );
    }
}
