//! A journal's files: view, superblock, log.

use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use netram_proto::journal::{
    AssembleOptions, ClaimNote, CommitRule, EpochHistory, JoinId, LogFile, SlotError, SlotPair, View,
    ViewMember, assemble,
};
use netram_proto::limit::{EPOCH_MAX, LOG_BYTES_MIN, MEMBERS_MAX, RECORD_HEADER_BYTES, VIEW_VERSION_MAX};
use netram_proto::planted::FaultSwitch;
use netram_proto::wire::{ChainPoint, RecordHeader, crc32c, finish_record};

use crate::frames::record;
use crate::input::FuzzInput;
use crate::recovery::MemoryFile;

const JOURNAL: JournalId = JournalId(0xF00D);
const SLOT_BYTES: usize = 256;

/// A view from a file, a node or a data lender. It must be decoded as it was encoded, and every view derived
/// from it can be stored.
pub fn view(bytes: &[u8]) {
    let Ok(view) = View::decode(bytes) else {
        return;
    };
    assert!(view.members.len() <= MEMBERS_MAX);
    let check = |view: &View| assert_eq!(View::decode(&view.encode()).as_ref(), Ok(view));
    let can_be = |view: &&View| view.epoch.0 <= EPOCH_MAX && view.version <= VIEW_VERSION_MAX;
    check(&view);
    let writer = WriterId(5);
    let later = [
        view.claimed(writer),
        view.restored(writer),
        view.adopted(),
        view.released(view.base),
    ];
    later.iter().filter(can_be).for_each(check);
    assert!(later[..2].iter().all(|claim| claim.epoch > view.epoch));
    let (fence, _) = view.fence();
    assert!(fence >= view.epoch);
    assert!(view.answers() <= view.members.len().max(1));
    let _ = (
        view.proof(),
        view.window_bytes_max(),
        view.has_served(),
        view.claimant(),
    );
    let _ = (
        view.is_fenced_by(&later[0]),
        later[0].lacks_epoch_of(&view),
        view.with_claim_of(&later[1]),
    );
}

pub(crate) fn a_view() -> View {
    let member = |number: u64| ViewMember {
        incarnation: Incarnation(number),
        join: Some(JoinId {
            epoch: Epoch(3),
            generation: 1,
        }),
        address: "tcp://lender:7000".into(),
        domain: "rack 1".into(),
    };
    let mut epochs = EpochHistory::default();
    epochs.begin(Epoch(2), WriterId(8), Lsn(0));
    epochs.begin(Epoch(3), WriterId(9), Lsn(64));
    View {
        version: 4,
        epoch: Epoch(3),
        writer: WriterId(9),
        rule: CommitRule::AtLeast(2),
        counting: true,
        clean: Some(Lsn(640)),
        window_bytes: 1 << 20,
        members: vec![member(7), member(8)],
        epochs,
        note: Some(ClaimNote::new(1_700_000_000, "netram journal on machine")),
        ..View::first(JOURNAL)
    }
}

pub(crate) fn view_seeds() -> Vec<Vec<u8>> {
    vec![
        View::first(JOURNAL).encode(),
        a_view().encode(),
        a_view().claimed(WriterId(1)).encode(),
    ]
}

/// A small file of two slots, torn and changed anywhere. A slot that is read was written, and the next stored
/// value is read again. The first byte says which checksums are made valid.
pub fn slots(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let mend = input.u8();
    let payload = input.bytes();
    let mut file = input.rest().to_vec();
    file.resize(2 * SLOT_BYTES, 0);
    for index in 0..2 {
        if mend & 1 << index != 0 {
            fix_slot_checksum(&mut file[index * SLOT_BYTES..][..SLOT_BYTES]);
        }
    }
    let magic = View::MAGIC;
    let file = MemoryFile(file.into());
    let (mut slots, found) = match SlotPair::open(&file, magic, SLOT_BYTES) {
        Ok(opened) => opened,
        Err(SlotError::Damaged) => return,
        Err(SlotError::Foreign) => {
            assert!(!file.0.borrow().starts_with(&magic));
            return;
        }
        Err(SlotError::Io(error)) => panic!("memory fails: {error}"),
    };
    assert!(found.len() <= SLOT_BYTES - 24);
    let payload = &payload[..payload.len().min(SLOT_BYTES - 24)];
    if mend & 4 != 0 {
        slots.store(&file, payload).expect("memory stores");
        // One of the two is damaged: the value must still be there.
        file.0.borrow_mut()[usize::from(mend >> 4 & 1) * SLOT_BYTES + 30] ^= 1;
    } else {
        slots.store_loosely(&file, payload).expect("memory stores");
    }
    let again = SlotPair::open(&file, magic, SLOT_BYTES).map(|(_, payload)| payload);
    let rotten_padding = payload.len() <= 6;
    assert!(
        again.as_deref() == Ok(payload) || rotten_padding && again.is_ok(),
        "{again:?}"
    );
}

/// Makes a slot's checksum and magic valid. A sequence number that no file reaches is replaced by a possible
/// one.
fn fix_slot_checksum(slot: &mut [u8]) {
    slot[..8].copy_from_slice(&View::MAGIC);
    slot[15] = 0;
    let length = u32::from_le_bytes([slot[16], slot[17], slot[18], slot[19]]) as usize % (SLOT_BYTES - 24);
    slot[16..20].copy_from_slice(&(length as u32).to_le_bytes());
    let checked = [&slot[..20], &slot[24..24 + length]].concat();
    slot[20..24].copy_from_slice(&crc32c(&checked).to_le_bytes());
}

pub(crate) fn slots_seeds() -> Vec<Vec<u8>> {
    let file = MemoryFile(vec![0; 2 * SLOT_BYTES].into());
    let mut made = SlotPair::create(&file, View::MAGIC, SLOT_BYTES, b"first value").expect("memory stores");
    made.store_loosely(&file, b"second").expect("memory stores");
    let file = file.0.into_inner();
    let with = |head: u8| [&[head, 3, 1, 2, 3], &file[..]].concat();
    vec![with(0), with(3), with(6), with(0x16), vec![7]]
}

/// A log on a damaged disk: a valid one, into which the bytes are written somewhere, with or without valid
/// checksums. It is recovered or refused, and a second scan must find everything that recovery found.
pub fn log(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let (records, mend) = (input.u8() % 6, input.u8());
    let file = MemoryFile::default();
    let size = LogFile::<MemoryFile>::file_bytes(LOG_BYTES_MIN);
    file.0.borrow_mut().resize(size as usize, 0);
    let (log, _) = LogFile::create(file, JOURNAL, LOG_BYTES_MIN).expect("a log");
    let (mut link, mut places) = (ChainPoint::default(), Vec::new());
    for index in 0..records {
        let bytes = record(JOURNAL, link, 1, link.lsn, &vec![index; usize::from(index) * 333]);
        log.write(link.lsn, &bytes).expect("room");
        places.push(link);
        link.lsn = link.lsn.plus(bytes.len() as u64);
        link.chain = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    }
    while !input.is_over() {
        let place = match places.get(usize::from(input.u8()) % (places.len() + 2)) {
            Some(link) => 8192 + link.lsn.0 + u64::from(input.u8()),
            None if mend & 8 != 0 => 8192 + link.lsn.0,
            None => u64::from(input.u16()) % size,
        };
        let mut damage = input.bytes().to_vec();
        if mend & 1 != 0 && damage.len() >= RECORD_HEADER_BYTES {
            finish_record(&mut damage, JOURNAL.into());
        }
        let mut bytes = log.file().0.borrow_mut();
        for (into, byte) in bytes[place as usize..].iter_mut().zip(damage) {
            *into = byte;
        }
    }
    let mut file = log.file().0.take();
    if mend & 2 != 0 {
        fix_log_slot_checksum(&mut file[..4096]);
    }
    open_log(MemoryFile(file.into()));
}

fn open_log(file: MemoryFile) {
    let Ok((log, _, superblock)) = LogFile::open(file) else {
        return;
    };
    let limit = superblock.head.lsn.plus(superblock.capacity);
    let mut end = superblock.head;
    let local = log.scan(superblock.head, limit, &mut |checked| {
        assert_eq!(checked.header.lsn, end.lsn, "records follow on");
        assert_eq!(checked.header.chain, end.chain);
        let front = checked.bytes.first_chunk().map(RecordHeader::parse);
        assert_eq!(front, Some(Ok(checked.header)));
        end = checked.header.next_point();
        true
    });
    assert_eq!(local.end, end);
    assert!(end.lsn <= limit);
    let known = AssembleOptions {
        proof: superblock.stable,
        limit,
        accept_loss: false,
        local_durable: None,
    };
    if let Ok(taken) = assemble(&log, &local, &[], known, FaultSwitch::NONE, &mut |_| true) {
        assert!(
            taken.end.lsn >= superblock.stable,
            "what was on the disk is there"
        );
        let again = log.scan(superblock.head, limit, &mut |_| true);
        assert_eq!(again.end, taken.end);
    }
}

fn fix_log_slot_checksum(slot: &mut [u8]) {
    let length = u32::from_le_bytes([slot[16], slot[17], slot[18], slot[19]]) as usize % 4000;
    slot[16..20].copy_from_slice(&(length as u32).to_le_bytes());
    let checked = [&slot[..20], &slot[24..24 + length]].concat();
    slot[20..24].copy_from_slice(&crc32c(&checked).to_le_bytes());
}

pub(crate) fn log_seeds() -> Vec<Vec<u8>> {
    let next = record(JOURNAL, ChainPoint::default(), 1, Lsn(0), b"one more");
    vec![
        vec![5, 0],
        vec![5, 0, 2, 44, 1, 9],
        vec![4, 1, 1, 0, 60, 7, 7, 7],
        [&[0, 9, 0, next.len() as u8], &next[..]].concat(),
        [&[3, 2, 4, 30, 0, 8, 1, 2, 3, 4, 5, 6, 7, 8], &[0; 8][..]].concat(),
    ]
}
