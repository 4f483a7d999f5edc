//! Rule 8, *unknown is never reported as done*: a program is told "done" only of what was acknowledged, as
//! rule 1 saw it. (That damage below what was durable is never taken for the end, rule 5's oracle sees: the
//! log would be too short.)

use netram_proto::id::Lsn;

use super::fail;
use crate::world::World;

/// A wait returned without error.
pub(crate) fn done(world: &World, process: usize, end: Lsn) {
    let host = &world.hosts[world.processes[process].host];
    if host.history.acked < end {
        fail(
            8,
            format!(
                "a program was told that {end} is done; acknowledged is {}",
                host.history.acked
            ),
        );
    }
}
