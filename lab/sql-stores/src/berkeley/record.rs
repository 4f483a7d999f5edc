//! The tables, and the layout of an object's record.
//!
//! Keys are big endian, so that a btree sorts them by number. Records are numbers of four bytes, little
//! endian:
//!
//! ```text
//! module     kind, date, top assembly, bytes of the manual
//! manual     its bytes
//! complex,   kind, date, module, parent or 0, children, private and shared components: three counts,
//! base         then three lists
//! composite  kind, date, root part, parts, private and shared users: three counts, then three lists
//! document   composite, title (40 bytes), text
//! part       kind, date, x, y, document, composite, connections out and in: two counts, then
//!              for each of them the other part, kind, length
//! title      composite            by the title
//! date       nothing              by date and part
//! state      0: whole; 1: transactions that were noted
//! ```

use netram_oo7::Oo7Error;

macro_rules! tables {
    ($($variant:ident $file:literal,)*) => {
        /// A btree.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Table { $($variant,)* }

        impl Table {
            pub(super) const ALL: [Table; [$($file,)*].len()] = [$(Table::$variant,)*];
            pub(super) const COUNT: usize = Table::ALL.len();

            /// Name of its file.
            pub(super) fn file(self) -> &'static str {
                match self { $(Table::$variant => $file,)* }
            }
        }
    };
}

tables! {
    State "state.db",
    Module "module.db",
    Manual "manual.db",
    Complex "complex.db",
    Base "base.db",
    Composite "composite.db",
    Document "document.db",
    Title "title.db",
    Part "part.db",
    Date "date.db",
}

/// Key of a record that is found by one number.
pub(super) type RecordKey = u32;

/// Bytes of a document's record before its text.
pub(super) const DOCUMENT_HEAD: usize = 4 + 40;

/// Bit of an assembly's reference that marks a base assembly; the two kinds are numbered separately.
const BASE: u32 = 1 << 31;

/// Reference to an assembly.
pub(super) fn assembly_reference(id: u32, base: bool) -> u32 {
    if base { id | BASE } else { id }
}

/// Table and key of an assembly.
pub(super) fn assembly_location(reference: u32) -> (Table, RecordKey) {
    match reference & BASE {
        0 => (Table::Complex, reference),
        _ => (Table::Base, reference & !BASE),
    }
}

/// Key in the date index.
pub(super) fn date_key(date: u32, part: u32) -> [u8; 8] {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&date.to_be_bytes());
    key[4..].copy_from_slice(&part.to_be_bytes());
    key
}

/// The part in a key of the date index.
pub(super) fn part_of(key: [u8; 8]) -> u32 {
    let [.., a, b, c, d] = key;
    u32::from_be_bytes([a, b, c, d])
}

/// A record as read.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoredRecord<'r> {
    pub(super) what: &'static str,
    pub(super) key: RecordKey,
    pub(super) bytes: &'r [u8],
}

impl<'r> StoredRecord<'r> {
    /// The number at index `at`; zero beyond the end. `list` checks the length before.
    pub(super) fn word(&self, at: usize) -> u32 {
        let word = self.bytes.get(4 * at..).and_then(|bytes| bytes.first_chunk());
        word.map_or(0, |word| u32::from_le_bytes(*word))
    }

    /// Numbers from `head` on, in lists whose lengths are the numbers before `head`, with `wide` numbers in
    /// each item. `list` counts from zero.
    pub(super) fn list(
        &self,
        head: usize,
        lists: usize,
        wide: usize,
        list: usize,
    ) -> Result<impl ExactSizeIterator<Item = u32> + use<'r>, Oo7Error> {
        let count = |at: usize| self.word(head - lists + at) as usize * wide;
        let before: usize = head + (0..list).map(count).sum::<usize>();
        let bytes = self.bytes.get(4 * before..4 * (before + count(list)));
        let bytes = bytes.ok_or(Oo7Error::Damaged {
            what: self.what,
            at: self.key.into(),
        })?;
        Ok(bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word)))
    }
}

/// A record under change: its numbers and its lists.
#[derive(Clone, Debug)]
pub(super) struct RecordDraft {
    head: Vec<u32>,
    wide: usize,
    lists: Vec<Vec<u32>>,
}

impl RecordDraft {
    /// A draft with this number of empty lists.
    pub(super) fn new(head: &[u32], wide: usize, lists: usize) -> RecordDraft {
        RecordDraft {
            head: head.to_vec(),
            wide,
            lists: vec![Vec::new(); lists],
        }
    }

    /// A draft of a record as read.
    pub(super) fn of(
        record: StoredRecord<'_>,
        head: usize,
        lists: usize,
        wide: usize,
    ) -> Result<RecordDraft, Oo7Error> {
        let read = |list| Ok(record.list(head, lists, wide, list)?.collect());
        Ok(RecordDraft {
            head: (0..head - lists).map(|at| record.word(at)).collect(),
            wide,
            lists: (0..lists).map(read).collect::<Result<_, Oo7Error>>()?,
        })
    }

    /// A number of the head, to be set.
    pub(super) fn word(&mut self, at: usize) -> &mut u32 {
        &mut self.head[at]
    }

    /// A list, to be changed.
    pub(super) fn list(&mut self, list: usize) -> &mut Vec<u32> {
        &mut self.lists[list]
    }

    /// Encoded bytes of the record.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let counts = self.lists.iter().map(|list| (list.len() / self.wide) as u32);
        let numbers = self.head.iter().copied().chain(counts);
        let numbers = numbers.chain(self.lists.iter().flatten().copied());
        numbers.flat_map(u32::to_le_bytes).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_round_trips() {
        let mut draft = RecordDraft::new(&[7, 8], 1, 3);
        draft.list(0).extend([1, 2]);
        draft.list(2).push(3);
        let bytes = draft.bytes();
        let record = StoredRecord {
            what: "a test's record",
            key: 1,
            bytes: &bytes,
        };
        assert_eq!(record.word(1), 8);
        let lists = [0, 1, 2].map(|list| record.list(5, 3, 1, list).unwrap().collect::<Vec<u32>>());
        assert_eq!(lists, [vec![1, 2], vec![], vec![3]]);
        assert_eq!(RecordDraft::of(record, 5, 3, 1).unwrap().bytes(), bytes);
        let cut = StoredRecord {
            bytes: &bytes[..bytes.len() - 1],
            ..record
        };
        assert!(cut.list(5, 3, 1, 2).is_err());
    }

    #[test]
    fn the_order_of_dates_is_the_order_of_their_keys() {
        assert!(date_key(255, 9) < date_key(256, 1));
        assert!(date_key(256, 1) < date_key(256, 256));
        assert_eq!(part_of(date_key(3, 70_000)), 70_000);
    }
}
