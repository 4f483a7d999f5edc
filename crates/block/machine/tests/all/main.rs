//! Tests of a source and a replica, each on its own, with the driver's work done by the test. The simulator
//! tests whole histories.

mod client;
mod lender;
mod resync;

use netram_block_machine::ReplicaIdentity;
use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::journal::View;
use netram_proto::port::RecordKind;
use netram_proto::wire::{ChainPoint, RecordHeader, finish_record};

const IDENTITY: ReplicaIdentity = ReplicaIdentity {
    volume: 3,
    journal: JournalId(7),
};
const CAPACITY: u64 = 1 << 16;
const BYTES: u64 = 16 * 4096;
const WRITER: WriterId = WriterId(5);

fn view(epoch: u32, version: u64) -> View {
    View {
        epoch: Epoch(epoch),
        version,
        writer: WRITER,
        ..View::first(IDENTITY.journal)
    }
}

/// A log of records of 48 bytes, with the end of each.
fn log(records: usize) -> (Vec<u8>, Vec<ChainPoint>) {
    let (mut bytes, mut ends) = (Vec::new(), vec![ChainPoint::default()]);
    for number in 0..records {
        let link = ends[number];
        let header = RecordHeader::new(link, Epoch(1), Lsn(0), RecordKind(32), false, 8);
        let mut record = vec![number as u8; header.length];
        header.write(&mut record);
        let chain = finish_record(&mut record, IDENTITY.journal.into());
        bytes.extend_from_slice(&record);
        ends.push(ChainPoint {
            lsn: header.next(),
            chain,
        });
    }
    (bytes, ends)
}
