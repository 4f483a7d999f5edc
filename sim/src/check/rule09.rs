//! Rule 9, *a failed sync is final*: everything reported as stable is on the platter, byte for byte.

use netram_proto::id::Lsn;

use super::violation::fail;
use crate::world::World;

/// Checks a report to the writer that everything below `end` is stable.
pub(crate) fn stable(world: &mut World, process: usize, end: Lsn) {
    let host = world.processes[process].host;
    let from = world.hosts[host].history.durable;
    if let Some(at) = world.hosts.platter_lacks(host, from, end) {
        fail(
            9,
            format!("{end} is called stable; the platter has something else at {at}"),
        );
    }
    let history = &mut world.hosts[host].history;
    history.durable = history.durable.max(end);
}
