//! Rule 8, *unknown is never reported as done*: a program gets success only for records that were
//! acknowledged, as rule 1 saw it. Rule 5's oracle catches damage that is taken for the end of the log,
//! because the log would be too short.

use netram_proto::id::Lsn;

use super::violation::fail;
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
