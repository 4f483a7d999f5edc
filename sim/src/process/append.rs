//! Records appended to a journal that serves.

use netram_proto::limit::RECORD_HEADER_BYTES;
use netram_proto::port::{CommitTicket, RecordKind};
use netram_proto::time::Nanos;
use netram_proto::wire::{ChainPoint, RecordHeader, finish_record, record_bytes};

use crate::check::rule21;
use crate::event::WorldEvent;
use crate::process::events::settle;
use crate::process::life::with_serving;
use crate::world::World;

/// Appends a record for which there is room. `None`: the process does not serve.
pub(crate) fn append_now(
    world: &mut World,
    process: usize,
    kind: RecordKind,
    length: usize,
    fill: &mut dyn FnMut(&mut [u8]),
) -> Option<CommitTicket> {
    with_serving(world, process, |world, serving| {
        let lsn = serving.tail.lsn;
        let header = RecordHeader::new(
            serving.tail,
            serving.writer.epoch(),
            serving.writer.stable(),
            kind,
            false,
            length,
        );
        let mut record = vec![0; header.length];
        header.write(&mut record);
        fill(&mut record[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + length]);
        rule21::sealed(world, serving.salt, &header, &record);
        let chain = finish_record(&mut record, serving.log.seed());
        let end = ChainPoint {
            lsn: header.next(),
            chain,
        };
        let host = world.processes[process].host;
        world.hosts[host].history.append(&record, end);
        serving.take_record(&record, end);
        world.kernel.hit("records appended");
        CommitTicket { lsn, end: end.lsn }
    })
}

/// Lets a program beside the scenario's append, if it can without waiting.
pub(crate) fn on_busy(world: &mut World, process: usize) {
    let Some(serving) = world.processes.serving(process) else {
        return;
    };
    let length = 100;
    let end = serving.tail.lsn.plus(record_bytes(length, false) as u64);
    let bytes = record_bytes(length, false) as u64;
    let fits = serving.writer.has_room(bytes)
        && end.since(serving.superblock.head.lsn) <= serving.log.capacity()
        && end.since(serving.writer.stable()) <= world.kernel.profile.window;
    if fits && serving.poisoned.is_none() && serving.writer.fenced().is_none() {
        let mut noise = world.kernel.rng.fork();
        append_now(world, process, RecordKind(16), length, &mut |payload| {
            noise.fill(payload)
        });
        settle(world, process);
    }
    let delay = Nanos::from_us(world.kernel.rng.between(50, 20_000));
    world.kernel.at(delay, WorldEvent::Busy { process });
}
