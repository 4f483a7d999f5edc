//! Rule 17, *only a failed sync is a failed disk*: a journal that gives its disk up has met a sync that
//! failed.

use netram_proto::failure::CallError;

use super::fail;
use crate::process::ServingState;
use crate::world::World;

/// The driver gives the disk up for `failure`. The disk itself knows whether a sync failed: in this world no
/// write fails for longer than the system refuses it.
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
