//! A journal's slot in the store: the state that must survive the lender's process, beside the window's
//! bytes.
//!
//! ```text
//!        0     1     2     3     4     5     6     7
//!      +-----+-----+-----+-----+-----+-----+-----+-----+
//!   0  | sequence; the higher of two valid copies counts|
//!   8  | journal                                        |
//!  16  |                                                |
//!  24  | epoch                 | epoch of the window    |
//!  32  | writer                                         |
//!  40  | generation            | chain                  |
//!  48  | trim                                           |
//!  56  | held                                           |
//!  64  | received                                       |
//!  72  | window bytes                                   |
//!  80  | chunks                | CRC32C of their numbers|
//!  88  |joined|ended|closed|signed| CRC32C of signature |
//!  96  | machine uptime at last contact, s; 0: unknown|
//! 104  | incarnation that joined a spilled window; 0: none|
//! 112  | zeros                                          |
//! 120  | zeros                 | CRC32C of bytes 0-123  |
//!      +-----+-----+-----+-----+-----+-----+-----+-----+
//! 128    the other copy
//! 256    signature of the fence, 64 bytes, if `signed` is 1
//! 320    the same, if `signed` is 2
//! 384    who pays: bytes of the name, 1; the name, 32; CRC32C of both and of `journal`, 4
//! 421    what the client calls it: bytes of the name, 1; the name, 64; CRC32C as before, 4
//! 512    numbers of the window's chunks, four bytes each
//! ```
//!
//! The copies are written alternately, so a process killed between any two stores leaves one that is valid.
//! The chunk numbers are stored once: they change only while no valid copy refers to them. A new signature is
//! written where the newest copy does not refer to. A release without signatures ignores them and stores
//! zeros. The names are no part of a copy: one that fails its check counts as none, and only limits depend on
//! them.

use netram_clients::file::NAME_BYTES_MAX;
use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use netram_proto::limit::JOURNAL_NAME_BYTES_MAX;
use netram_proto::member::MemberState;
use netram_proto::owner::{FenceSignature, SIGNATURE_BYTES};
use netram_proto::wire::{Crc, crc32c};

use crate::sys::StoreSlice;

/// Bytes of one copy: two cache lines.
const COPY_BYTES: usize = 128;
const CRC_AT: usize = COPY_BYTES - 4;
/// Offsets of the two places for a signature.
const SIGNATURES_AT: [usize; 2] = [2 * COPY_BYTES, 2 * COPY_BYTES + SIGNATURE_BYTES];
/// The name of the client that pays for the journal.
const PAYER: NameField = NameField {
    at: SIGNATURES_AT[1] + SIGNATURE_BYTES,
    bytes_max: NAME_BYTES_MAX,
};
/// The name that the client has given the journal.
const NAME: NameField = NameField {
    at: PAYER.end(),
    bytes_max: JOURNAL_NAME_BYTES_MAX,
};
/// Offset of the chunk numbers.
const LIST_AT: usize = 512;
const _: () = assert!(NAME.end() <= LIST_AT);

/// Bytes of a slot whose window has up to `chunks_max` chunks.
pub(crate) const fn slot_bytes(chunks_max: u64) -> u64 {
    (LIST_AT as u64 + 4 * chunks_max).next_multiple_of(4096)
}

/// The state of a journal in its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotState {
    pub(crate) journal: JournalId,
    pub(crate) member: MemberState,
    pub(crate) window_bytes: u64,
    pub(crate) chunks: u32,
    pub(crate) list_crc: u32,
    /// The machine's uptime in seconds, including suspension, when a client of the journal last connected or
    /// disconnected; zero if unknown.
    pub(crate) last_contact: u64,
    /// The incarnation under which the journal's member answers while its window is a spilled one; otherwise
    /// zero, and it answers as the store.
    pub(crate) incarnation: Incarnation,
}

/// Bytes of a slot that hold the two copies of the state.
pub(crate) const STATE_BYTES: usize = 2 * COPY_BYTES;

/// The newest valid state in the front of a slot, regardless of the rest; `None` if neither copy is valid.
pub(crate) fn newest(front: &[u8; STATE_BYTES]) -> Option<SlotState> {
    let copies = front.chunks_exact(COPY_BYTES).filter_map(decode);
    copies.max_by_key(|copy| copy.sequence).map(|copy| copy.state)
}

/// Contents of a slot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SlotContents {
    /// No journal, or one whose requests were never answered.
    Empty,
    /// A journal, and the numbers of its window's chunks if it has a window.
    Journal(SlotState, Vec<u32>),
    /// Bytes that no kill can have left. Which journal was fenced here is unknown.
    Damaged,
}

/// A slot, owned by the shard of its journal.
pub(crate) struct Slot {
    region: StoreSlice,
    sequence: u64,
    /// The signature that the newest copy refers to.
    signature: StoredSignature,
}

/// A signature in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredSignature {
    /// Number of its place, from 1; zero: there is none.
    place: u8,
    crc: u32,
    bytes: FenceSignature,
}

/// One valid copy of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotCopy {
    pub(crate) sequence: u64,
    /// The state without its signature, which is elsewhere in the slot.
    pub(crate) state: SlotState,
    pub(crate) signature: StoredSignature,
}

impl Slot {
    pub(crate) fn new(region: StoreSlice) -> Slot {
        Slot {
            region,
            sequence: 0,
            signature: StoredSignature::default(),
        }
    }

    /// Reads what an earlier process left.
    pub(crate) fn find(&mut self) -> SlotContents {
        let copies = [0, COPY_BYTES].map(|at| decode(self.region.bytes(at, COPY_BYTES)));
        let newest = copies.into_iter().flatten().max_by_key(|copy| copy.sequence);
        let Some(SlotCopy {
            sequence,
            mut state,
            signature,
        }) = newest
        else {
            // The first copy of a fresh slot goes to the front. If it is torn, it was never answered for.
            let second_untouched = self
                .region
                .bytes(COPY_BYTES, COPY_BYTES)
                .iter()
                .all(|byte| *byte == 0);
            return if second_untouched {
                SlotContents::Empty
            } else {
                SlotContents::Damaged
            };
        };
        self.sequence = sequence;
        self.signature = self.read_signature(signature);
        state.member.signature = self.signature.bytes;
        if !state.member.joined {
            return SlotContents::Journal(state, Vec::new());
        }
        match self.read_list(&state) {
            Some(list) => SlotContents::Journal(state, list),
            None => SlotContents::Damaged,
        }
    }

    /// Reads the signature that a copy refers to; none if its bytes are others.
    fn read_signature(&self, named: StoredSignature) -> StoredSignature {
        let Some(at) = usize::from(named.place)
            .checked_sub(1)
            .and_then(|place| SIGNATURES_AT.get(place))
        else {
            return StoredSignature::default();
        };
        let bytes = self.region.bytes(*at, SIGNATURE_BYTES);
        match FenceSignature::parse(bytes).filter(|_| crc32c(bytes) == named.crc) {
            Some(bytes) => StoredSignature { bytes, ..named },
            None => StoredSignature::default(),
        }
    }

    /// Stores a new signature where the newest copy does not refer to.
    #[cold]
    fn write_signature(&mut self, bytes: FenceSignature) {
        if !bytes.is_some() {
            self.signature = StoredSignature::default();
            return;
        }
        let place = if self.signature.place == 1 { 2 } else { 1 };
        self.region.write(SIGNATURES_AT[place - 1], &bytes.0);
        self.signature = StoredSignature {
            place: place as u8,
            crc: crc32c(&bytes.0),
            bytes,
        };
    }

    /// The names of `journal`; one that was never stored is empty.
    pub(crate) fn names(&self, journal: JournalId) -> JournalNames {
        JournalNames {
            payer: PAYER.read(&self.region, journal),
            name: NAME.read(&self.region, journal),
        }
    }

    /// Stores the name of the client that pays for `journal`: at most [`NAME_BYTES_MAX`] bytes.
    #[cold]
    pub(crate) fn write_payer(&mut self, journal: JournalId, name: &str) {
        PAYER.write(&mut self.region, journal, name);
    }

    /// Stores what the client calls `journal`: at most [`JOURNAL_NAME_BYTES_MAX`] bytes.
    #[cold]
    pub(crate) fn write_name(&mut self, journal: JournalId, name: &str) {
        NAME.write(&mut self.region, journal, name);
    }

    /// Stores both names.
    #[cold]
    pub(crate) fn write_names(&mut self, journal: JournalId, names: &JournalNames) {
        self.write_payer(journal, &names.payer);
        self.write_name(journal, &names.name);
    }

    fn read_list(&self, state: &SlotState) -> Option<Vec<u32>> {
        let bytes = (state.chunks as usize).checked_mul(4)?;
        if bytes > self.region.length() - LIST_AT {
            return None;
        }
        let list = self.region.bytes(LIST_AT, bytes);
        (crc32c(list) == state.list_crc).then(|| {
            let (numbers, _) = list.as_chunks::<4>();
            numbers.iter().map(|number| u32::from_le_bytes(*number)).collect()
        })
    }

    /// Stores `state` for the next process. Costs about 40 ns and does not allocate.
    pub(crate) fn save(&mut self, state: &SlotState) {
        self.sequence += 1;
        if state.member.signature != self.signature.bytes {
            self.write_signature(state.member.signature);
        }
        let copy = encode(self.sequence, state, &self.signature);
        let at = if self.sequence % 2 == 1 { 0 } else { COPY_BYTES };
        self.region.write(at, &copy);
    }

    /// Clears the slot so that a kill at any point leaves the newest state or nothing. The newest copy is
    /// cleared last, and at the front, where a torn copy counts as empty. There must be no window.
    pub(crate) fn clear(&mut self) {
        if self.sequence == 0 {
            return;
        }
        if self.sequence.is_multiple_of(2) {
            self.sequence += 1;
            let mut newest = [0; COPY_BYTES];
            newest.copy_from_slice(self.region.bytes(COPY_BYTES, COPY_BYTES));
            newest[0..8].copy_from_slice(&self.sequence.to_le_bytes());
            let crc = crc32c(&newest[..CRC_AT]);
            newest[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
            self.region.write(0, &newest);
        }
        self.region.write(COPY_BYTES, &[0; COPY_BYTES]);
        self.region.write(0, &[0; COPY_BYTES]);
        self.sequence = 0;
        self.signature = StoredSignature::default();
    }

    /// Stores the chunk numbers and returns their CRC. No valid copy may refer to the old ones.
    pub(crate) fn write_list(&mut self, numbers: impl ExactSizeIterator<Item = u32>) -> u32 {
        let mut list = Vec::with_capacity(numbers.len() * 4);
        for number in numbers {
            list.extend_from_slice(&number.to_le_bytes());
        }
        self.region.write(LIST_AT, &list);
        crc32c(&list)
    }
}

/// The names of a journal, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JournalNames {
    /// The client that pays for the journal, of those with names.
    pub(crate) payer: String,
    /// The name that the client has given it.
    pub(crate) name: String,
}

/// The place of a name: its length, its bytes, and the CRC of both and of the journal.
struct NameField {
    at: usize,
    bytes_max: usize,
}

impl NameField {
    const fn end(&self) -> usize {
        self.at + 1 + self.bytes_max + 4
    }

    fn crc(checked: &[u8], journal: JournalId) -> [u8; 4] {
        let mut crc = Crc::new();
        crc.update(checked);
        crc.update(&journal.0.to_le_bytes());
        crc.finish().to_le_bytes()
    }

    fn read(&self, region: &StoreSlice, journal: JournalId) -> String {
        let bytes = region.bytes(self.at, self.end() - self.at);
        let (checked, crc) = bytes.split_at(1 + self.bytes_max);
        let name = checked[1..].get(..usize::from(checked[0])).unwrap_or(&[]);
        match crc == NameField::crc(checked, journal) {
            true => String::from_utf8_lossy(name).into_owned(),
            false => String::new(),
        }
    }

    fn write(&self, region: &mut StoreSlice, journal: JournalId, name: &str) {
        let mut bytes = vec![0; 1 + self.bytes_max];
        bytes[0] = name.len() as u8;
        bytes[1..=name.len()].copy_from_slice(name.as_bytes());
        let crc = NameField::crc(&bytes, journal);
        bytes.extend_from_slice(&crc);
        region.write(self.at, &bytes);
    }
}

pub(crate) fn encode(sequence: u64, state: &SlotState, signature: &StoredSignature) -> [u8; COPY_BYTES] {
    let mut copy = [0; COPY_BYTES];
    let member = &state.member;
    copy[0..8].copy_from_slice(&sequence.to_le_bytes());
    copy[8..24].copy_from_slice(&state.journal.0.to_le_bytes());
    copy[24..28].copy_from_slice(&member.epoch.0.to_le_bytes());
    copy[28..32].copy_from_slice(&member.window_epoch.0.to_le_bytes());
    copy[32..40].copy_from_slice(&member.writer.0.to_le_bytes());
    copy[40..44].copy_from_slice(&member.generation.to_le_bytes());
    copy[44..48].copy_from_slice(&member.chain.to_le_bytes());
    copy[48..56].copy_from_slice(&member.trim.0.to_le_bytes());
    copy[56..64].copy_from_slice(&member.held.0.to_le_bytes());
    copy[64..72].copy_from_slice(&member.received.0.to_le_bytes());
    copy[72..80].copy_from_slice(&state.window_bytes.to_le_bytes());
    copy[80..84].copy_from_slice(&state.chunks.to_le_bytes());
    copy[84..88].copy_from_slice(&state.list_crc.to_le_bytes());
    copy[88] = u8::from(member.joined);
    copy[89] = u8::from(member.ended);
    copy[90] = u8::from(member.closed);
    copy[91] = signature.place;
    copy[92..96].copy_from_slice(&signature.crc.to_le_bytes());
    copy[96..104].copy_from_slice(&state.last_contact.to_le_bytes());
    copy[104..112].copy_from_slice(&state.incarnation.0.to_le_bytes());
    let crc = crc32c(&copy[..CRC_AT]);
    copy[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    copy
}

pub(crate) fn decode(copy: &[u8]) -> Option<SlotCopy> {
    let u32_at = |at: usize| u32::from_le_bytes([copy[at], copy[at + 1], copy[at + 2], copy[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    let sequence = u64_at(0);
    if sequence == 0 || u32_at(CRC_AT) != crc32c(&copy[..CRC_AT]) {
        return None;
    }
    let member = MemberState {
        epoch: Epoch(u32_at(24)),
        writer: WriterId(u64_at(32)),
        signature: FenceSignature::NONE,
        joined: copy[88] != 0,
        window_epoch: Epoch(u32_at(28)),
        generation: u32_at(40),
        trim: Lsn(u64_at(48)),
        held: Lsn(u64_at(56)),
        received: Lsn(u64_at(64)),
        chain: u32_at(44),
        ended: copy[89] != 0,
        closed: copy[90] != 0,
        spilled: u64_at(104) != 0,
    };
    let state = SlotState {
        journal: JournalId(u128::from(u64_at(8)) | u128::from(u64_at(16)) << 64),
        member,
        window_bytes: u64_at(72),
        chunks: u32_at(80),
        list_crc: u32_at(84),
        last_contact: u64_at(96),
        incarnation: Incarnation(u64_at(104)),
    };
    let signature = StoredSignature {
        place: copy[91],
        crc: u32_at(92),
        bytes: FenceSignature::NONE,
    };
    Some(SlotCopy {
        sequence,
        state,
        signature,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> Slot {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        Slot::new(StoreSlice::map(&file, 4096, true).unwrap())
    }

    fn state(held: u64) -> SlotState {
        SlotState {
            journal: JournalId(7 << 100 | 9),
            member: MemberState {
                epoch: Epoch(3),
                writer: WriterId(u64::MAX - 1),
                signature: FenceSignature([held as u8; 64]),
                joined: false,
                window_epoch: Epoch(2),
                generation: 5,
                trim: Lsn(64),
                held: Lsn(held),
                received: Lsn(held + 8),
                chain: 0xDEAD_BEEF,
                ended: true,
                closed: held % 16 == 8,
                spilled: true,
            },
            window_bytes: 20_000,
            chunks: 0,
            list_crc: 0,
            last_contact: held << 32,
            incarnation: Incarnation(held),
        }
    }

    #[test]
    fn a_save_torn_at_any_byte_leaves_the_one_before() {
        for cut in 0..COPY_BYTES {
            let mut slot = slot();
            slot.save(&state(100));
            let before = slot.region.bytes(COPY_BYTES, COPY_BYTES).to_vec();
            slot.save(&state(200));
            let torn = &before[cut..];
            let changed = slot.region.bytes(COPY_BYTES + cut, COPY_BYTES - cut) != torn;
            slot.region.write(COPY_BYTES + cut, torn);
            let expected = if changed { state(100) } else { state(200) };
            assert_eq!(
                slot.find(),
                SlotContents::Journal(expected, Vec::new()),
                "cut at {cut}"
            );
            slot.save(&state(300));
            assert_eq!(slot.find(), SlotContents::Journal(state(300), Vec::new()));
        }
    }

    #[test]
    fn a_torn_first_save_leaves_an_empty_slot_and_differs_from_damage() {
        let mut slot = slot();
        assert_eq!(slot.find(), SlotContents::Empty);
        slot.region.write(0, &[1, 2, 3]);
        assert_eq!(slot.find(), SlotContents::Empty);
        slot.save(&state(100));
        slot.save(&state(200));
        slot.region.write(20, &[0xFF; 4]);
        slot.region.write(COPY_BYTES + 20, &[0xFF; 4]);
        assert_eq!(slot.find(), SlotContents::Damaged);
    }

    /// The stores of a clearing, interrupted between any two bytes, leave the journal or nothing; never
    /// damage, and never an older state.
    #[test]
    fn a_clearing_torn_at_any_byte_leaves_the_newest_state_or_nothing() {
        for saves in 1..=4 {
            let mut slot = slot();
            (1..=saves).for_each(|held| slot.save(&state(held)));
            let before = slot.region.bytes(0, 2 * COPY_BYTES).to_vec();
            slot.clear();
            assert_eq!(slot.find(), SlotContents::Empty);
            let signature = StoredSignature {
                place: 2 - (saves % 2) as u8,
                crc: crc32c(&[saves as u8; 64]),
                bytes: FenceSignature([saves as u8; 64]),
            };
            let newest = encode(saves + 1, &state(saves), &signature);
            // The order: the newest copy to the front if it is not there, zeros to the second copy, zeros to
            // the first.
            let mut steps: Vec<(usize, [u8; COPY_BYTES])> = vec![(0, newest)];
            steps.retain(|_| saves % 2 == 0);
            steps.extend([(COPY_BYTES, [0; COPY_BYTES]), (0, [0; COPY_BYTES])]);
            slot.region.write(0, &before);
            for (step, (at, bytes)) in steps.iter().enumerate() {
                for cut in 1..=COPY_BYTES {
                    slot.region.write(*at, &bytes[..cut]);
                    let last = step + 1 == steps.len();
                    match slot.find() {
                        SlotContents::Journal(found, _) => {
                            assert_eq!(found, state(saves), "{saves}, {step}, {cut}")
                        }
                        SlotContents::Empty => assert!(last, "{saves}, {step}, {cut}"),
                        SlotContents::Damaged => panic!("{saves}, {step}, {cut}"),
                    }
                }
            }
            assert_eq!(slot.find(), SlotContents::Empty);
        }
    }

    #[test]
    fn invalid_chunk_numbers_of_a_window_are_damage() {
        let mut slot = slot();
        let list_crc = slot.write_list([5, 6].into_iter());
        let mut joined = SlotState {
            chunks: 2,
            list_crc,
            ..state(100)
        };
        joined.member.joined = true;
        slot.save(&joined);
        assert_eq!(slot.find(), SlotContents::Journal(joined, vec![5, 6]));
        slot.region.write(LIST_AT, &[9]);
        assert_eq!(slot.find(), SlotContents::Damaged);
    }
}
