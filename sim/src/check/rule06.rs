//! Rules 6 and 7: recovery finds exactly the appended bytes, whole and in order. Torn, stale and foreign
//! bytes are no part of the log.

use netram_proto::id::Lsn;
use netram_proto::port::LogError;
use netram_proto::wire::ChainPoint;

use super::violation::fail;
use crate::world::World;

/// Compares the recovered log, as a reader would see it, with what was truly appended.
pub(crate) fn genuine(world: &World, host: usize, head: ChainPoint, end: ChainPoint) {
    let history = world.hosts.truth(host, end);
    if end.lsn > history.tail() {
        fail(
            7,
            format!(
                "recovery found a log up to {}; only {} bytes were ever appended",
                end.lsn,
                history.tail()
            ),
        );
    }
    if history.link_at(end.lsn) != Some(end) {
        fail(
            6,
            format!("recovery ended at {}, where no record of this log ends", end.lsn),
        );
    }
    let found = world.hosts.log_bytes(host, head.lsn, end.lsn, false);
    let wanted = history.bytes(head.lsn, end.lsn);
    if let Some(at) = found
        .iter()
        .zip(wanted)
        .position(|(found, wanted)| found != wanted)
    {
        fail(
            7,
            format!(
                "the recovered log differs from what was appended at {}",
                head.lsn.plus(at as u64)
            ),
        );
    }
}

/// Fails the run: a program read bytes that were never appended there.
pub(crate) fn misread(from: Lsn, to: Lsn) -> ! {
    fail(
        6,
        format!("reading from {from} ended at {to} and gave other records than were appended"),
    )
}

/// Checks a failed read of the log. Only damage at rest excuses one.
pub(crate) fn unread(world: &World, host: usize, error: LogError) {
    if !world.hosts[host].damaged {
        fail(8, format!("the log is sound, and reading it failed: {error}"));
    }
}
