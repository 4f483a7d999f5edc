//! The benchmark's queries and changes as operations on records.

use netram_oo7::store::{
    AssemblyValues, CompositeUse, ConnectionValues, DesignValues, LinkDirection, Oo7Index, PartLink,
    PartValues,
};
use netram_oo7::{Oo7Error, Oo7Transaction};

use super::record::{
    DOCUMENT_HEAD, RecordDraft, RecordKey, StoredRecord, Table, assembly_location, assembly_reference,
    date_key, part_of,
};
use super::{BerkeleyTransaction, COMPLETE, backend_error, end};

/// Index of the first list of assemblies and composites, number of lists, and numbers in an item.
const ASSEMBLY: (usize, usize, usize) = (7, 3, 1);
const COMPOSITE: (usize, usize, usize) = (6, 3, 1);
/// The same of a part, whose items have three numbers.
const PART: (usize, usize, usize) = (8, 2, 3);
/// Byte offset of a part's date in its record, and of its x, which y follows.
const DATE_AT: u32 = 4;
const PLACE_AT: u32 = 8;

impl BerkeleyTransaction<'_> {
    /// A record, if it exists.
    pub(super) fn find(
        &mut self,
        table: Table,
        key: RecordKey,
    ) -> Result<Option<StoredRecord<'_>>, Oo7Error> {
        let inner = &mut *self.inner;
        let read = &mut inner.cached[table as usize];
        if read.key != Some(key) {
            read.key = None;
            let found = inner
                .engine
                .get(table as usize, &key.to_be_bytes(), &mut read.record);
            if !found.map_err(backend_error)? {
                return Ok(None);
            }
            read.key = Some(key);
        }
        Ok(Some(StoredRecord {
            what: table.file(),
            key,
            bytes: &read.record,
        }))
    }

    /// A record that must exist.
    pub(super) fn record(
        &mut self,
        what: &'static str,
        table: Table,
        key: RecordKey,
    ) -> Result<StoredRecord<'_>, Oo7Error> {
        self.find(table, key)?.ok_or(damaged(what, key))
    }

    pub(super) fn put(&mut self, table: Table, key: RecordKey, record: &[u8]) -> Result<(), Oo7Error> {
        let inner = &mut *self.inner;
        inner.cached[table as usize].key = None;
        let put = inner.engine.put(table as usize, &key.to_be_bytes(), record);
        put.map_err(backend_error)
    }

    /// Replaces bytes of the record that was read last.
    fn set(&mut self, table: Table, key: RecordKey, from: u32, new: &[u8]) -> Result<(), Oo7Error> {
        let inner = &mut *self.inner;
        let read = &mut inner.cached[table as usize];
        assert_eq!(read.key, Some(key));
        let set = inner.engine.set(table as usize, &key.to_be_bytes(), from, new);
        if let Err(error) = set {
            read.key = None;
            return Err(backend_error(error));
        }
        read.record[from as usize..][..new.len()].copy_from_slice(new);
        Ok(())
    }

    fn delete(
        &mut self,
        what: &'static str,
        table: Table,
        id: RecordKey,
        key: &[u8],
    ) -> Result<(), Oo7Error> {
        let inner = &mut *self.inner;
        inner.cached[table as usize].key = None;
        match inner.engine.delete(table as usize, key).map_err(backend_error)? {
            true => Ok(()),
            false => Err(damaged(what, id)),
        }
    }

    fn there(&mut self, table: Table, key: RecordKey) -> Result<Option<RecordKey>, Oo7Error> {
        Ok(self.find(table, key)?.map(|_| key))
    }

    fn assembly_record(&mut self, assembly: u32) -> Result<StoredRecord<'_>, Oo7Error> {
        let (table, key) = assembly_location(assembly);
        self.record("an assembly", table, key)
    }

    fn composite_record(&mut self, composite: u32) -> Result<StoredRecord<'_>, Oo7Error> {
        self.record("a composite", Table::Composite, composite)
    }

    fn part_record(&mut self, part: u32) -> Result<StoredRecord<'_>, Oo7Error> {
        self.record("a part", Table::Part, part)
    }

    fn document_record(&mut self, document: u32) -> Result<StoredRecord<'_>, Oo7Error> {
        let record = self.record("a document", Table::Document, document)?;
        match record.bytes.len() {
            DOCUMENT_HEAD.. => Ok(record),
            _ => Err(damaged("a document", document)),
        }
    }

    /// All keys of a table.
    fn keys(&mut self, table: Table, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        let give = |key| into.push(u32::from_be_bytes(key));
        let gone = self.inner.engine.keys(table as usize, [0; 4], [0xff; 4], give);
        gone.map_err(backend_error)
    }

    fn count<const N: usize>(&mut self, table: Table) -> Result<u64, Oo7Error> {
        let mut count = 0;
        let all = ([0_u8; N], [0xff; N]);
        let gone = self
            .inner
            .engine
            .keys(table as usize, all.0, all.1, |_| count += 1);
        gone.map_err(backend_error)?;
        Ok(count)
    }

    fn draft(
        &mut self,
        what: &'static str,
        place: (Table, RecordKey),
        (head, lists, wide): (usize, usize, usize),
        change: impl FnOnce(&mut RecordDraft),
    ) -> Result<(), Oo7Error> {
        let record = self.record(what, place.0, place.1)?;
        let mut draft = RecordDraft::of(record, head, lists, wide)?;
        change(&mut draft);
        self.put(place.0, place.1, &draft.bytes())
    }
}

fn damaged(what: &'static str, id: RecordKey) -> Oo7Error {
    Oo7Error::Damaged { what, at: id.into() }
}

/// Index of the list of uses of a kind, after the parts or children.
fn list_of(how: CompositeUse) -> usize {
    match how {
        CompositeUse::Private => 1,
        CompositeUse::Shared => 2,
    }
}

fn lent(
    record: StoredRecord<'_>,
    (head, lists, wide): (usize, usize, usize),
    list: usize,
    into: &mut Vec<u32>,
) -> Result<(), Oo7Error> {
    into.extend(record.list(head, lists, wide, list)?);
    Ok(())
}

fn design(record: StoredRecord<'_>) -> DesignValues {
    DesignValues {
        id: record.key,
        kind: record.word(0),
        date: record.word(1),
    }
}

impl Oo7Transaction for BerkeleyTransaction<'_> {
    type Module = u32;
    type Assembly = u32;
    type Composite = u32;
    type Part = u32;
    type Document = u32;

    fn module(&mut self, id: u32) -> Result<Option<u32>, Oo7Error> {
        self.there(Table::Module, id)
    }

    fn base_assembly(&mut self, id: u32) -> Result<Option<u32>, Oo7Error> {
        let found = self.there(Table::Base, id)?;
        Ok(found.map(|id| assembly_reference(id, true)))
    }

    fn composite(&mut self, id: u32) -> Result<Option<u32>, Oo7Error> {
        self.there(Table::Composite, id)
    }

    fn part(&mut self, id: u32) -> Result<Option<u32>, Oo7Error> {
        self.there(Table::Part, id)
    }

    fn document(&mut self, id: u32) -> Result<Option<u32>, Oo7Error> {
        self.there(Table::Document, id)
    }

    fn document_titled(&mut self, title: &[u8]) -> Result<Option<u32>, Oo7Error> {
        let mut found = Vec::new();
        let there = self
            .inner
            .engine
            .get(Table::Title as usize, title, &mut found)
            .map_err(backend_error)?;
        let id = found.first_chunk().map(|id| u32::from_le_bytes(*id));
        Ok(id.filter(|_| there))
    }

    fn parts_dated(&mut self, first: u32, last: u32, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        let give = |key| into.push(part_of(key));
        let (first, last) = (date_key(first, 0), date_key(last, u32::MAX));
        self.inner
            .engine
            .keys(Table::Date as usize, first, last, give)
            .map_err(backend_error)
    }

    fn all_parts(&mut self, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        self.keys(Table::Part, into)
    }

    fn all_base_assemblies(&mut self, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        let first = into.len();
        self.keys(Table::Base, into)?;
        into[first..]
            .iter_mut()
            .for_each(|id| *id = assembly_reference(*id, true));
        Ok(())
    }

    fn all_composites(&mut self, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        self.keys(Table::Composite, into)
    }

    fn entries(&mut self, index: Oo7Index) -> Result<u64, Oo7Error> {
        match index {
            Oo7Index::Module => self.count::<4>(Table::Module),
            Oo7Index::Base => self.count::<4>(Table::Base),
            Oo7Index::Composite => self.count::<4>(Table::Composite),
            Oo7Index::Document => self.count::<4>(Table::Document),
            Oo7Index::Title => self.count::<40>(Table::Title),
            Oo7Index::Part => self.count::<4>(Table::Part),
            Oo7Index::Date => self.count::<8>(Table::Date),
        }
    }

    fn module_design(&mut self, module: u32) -> Result<DesignValues, Oo7Error> {
        self.record("a module", Table::Module, module).map(design)
    }

    fn top(&mut self, module: u32) -> Result<u32, Oo7Error> {
        Ok(self.record("a module", Table::Module, module)?.word(2))
    }

    fn manual(&mut self, module: u32, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error> {
        read(self.record("a manual", Table::Manual, module)?.bytes);
        Ok(())
    }

    fn manual_ends(&mut self, module: u32) -> Result<(u8, u8), Oo7Error> {
        let length = self.record("a module", Table::Module, module)?.word(3);
        let last = length.checked_sub(2).ok_or(damaged("a manual", module))?;
        let mut byte = |at| {
            let byte = self
                .inner
                .engine
                .byte(Table::Manual as usize, &module.to_be_bytes(), at);
            byte.map_err(backend_error)?.ok_or(damaged("a manual", module))
        };
        Ok((byte(0)?, byte(last)?))
    }

    fn assembly(&mut self, assembly: u32) -> Result<AssemblyValues, Oo7Error> {
        let base = assembly_location(assembly).0 == Table::Base;
        let design = design(self.assembly_record(assembly)?);
        Ok(AssemblyValues { design, base })
    }

    fn parent(&mut self, assembly: u32) -> Result<Option<u32>, Oo7Error> {
        let parent = self.assembly_record(assembly)?.word(3);
        Ok((parent != 0).then_some(parent))
    }

    fn module_of(&mut self, assembly: u32) -> Result<u32, Oo7Error> {
        Ok(self.assembly_record(assembly)?.word(2))
    }

    fn children(&mut self, assembly: u32, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        lent(self.assembly_record(assembly)?, ASSEMBLY, 0, into)
    }

    fn components(&mut self, assembly: u32, how: CompositeUse, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        lent(self.assembly_record(assembly)?, ASSEMBLY, list_of(how), into)
    }

    fn composite_design(&mut self, composite: u32) -> Result<DesignValues, Oo7Error> {
        self.composite_record(composite).map(design)
    }

    fn root_part(&mut self, composite: u32) -> Result<u32, Oo7Error> {
        match self.composite_record(composite)?.word(2) {
            0 => Err(damaged("a root part", composite)),
            root => Ok(root),
        }
    }

    fn parts(&mut self, composite: u32, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        lent(self.composite_record(composite)?, COMPOSITE, 0, into)
    }

    fn documentation(&mut self, composite: u32) -> Result<u32, Oo7Error> {
        // Both have the same id, and each composite has one document.
        Ok(composite)
    }

    fn users(&mut self, composite: u32, how: CompositeUse, into: &mut Vec<u32>) -> Result<(), Oo7Error> {
        lent(self.composite_record(composite)?, COMPOSITE, list_of(how), into)
    }

    fn document_id(&mut self, document: u32) -> Result<u32, Oo7Error> {
        Ok(self.document_record(document)?.key)
    }

    fn title(&mut self, document: u32) -> Result<[u8; 40], Oo7Error> {
        let record = self.document_record(document)?;
        let title = record.bytes[4..].first_chunk();
        Ok(*title.expect("a document's record has a head"))
    }

    fn described(&mut self, document: u32) -> Result<u32, Oo7Error> {
        Ok(self.document_record(document)?.word(0))
    }

    fn text(&mut self, document: u32, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error> {
        read(&self.document_record(document)?.bytes[DOCUMENT_HEAD..]);
        Ok(())
    }

    fn part_values(&mut self, part: u32) -> Result<PartValues, Oo7Error> {
        let record = self.part_record(part)?;
        Ok(PartValues {
            design: design(record),
            x: record.word(2),
            y: record.word(3),
            document: record.word(4),
        })
    }

    fn composite_of(&mut self, part: u32) -> Result<u32, Oo7Error> {
        Ok(self.part_record(part)?.word(5))
    }

    fn targets(&mut self, part: u32, into: &mut Vec<(u32, u32)>) -> Result<(), Oo7Error> {
        let (head, lists, wide) = PART;
        let outward = self.part_record(part)?.list(head, lists, wide, 0)?;
        into.extend(outward.step_by(wide).map(|target| (target, target)));
        Ok(())
    }

    fn links(
        &mut self,
        part: u32,
        direction: LinkDirection,
        into: &mut Vec<PartLink<u32>>,
    ) -> Result<(), Oo7Error> {
        let (head, lists, wide) = PART;
        let list = match direction {
            LinkDirection::Out => 0,
            LinkDirection::In => 1,
        };
        let mut numbers = self.part_record(part)?.list(head, lists, wide, list)?;
        while let (Some(other), Some(kind), Some(length)) = (numbers.next(), numbers.next(), numbers.next()) {
            let (from, to) = match direction {
                LinkDirection::Out => (part, other),
                LinkDirection::In => (other, part),
            };
            let connection = ConnectionValues { kind, length };
            into.push(PartLink { from, to, connection });
        }
        Ok(())
    }

    fn swap(&mut self, part: u32) -> Result<(), Oo7Error> {
        let record = self.part_record(part)?;
        let (x, y) = (record.word(2), record.word(3));
        let new = [y.to_le_bytes(), x.to_le_bytes()];
        self.set(Table::Part, part, PLACE_AT, new.as_flattened())
    }

    fn set_date(&mut self, part: u32, date: u32) -> Result<(), Oo7Error> {
        let before = self.part_record(part)?.word(1);
        self.set(Table::Part, part, DATE_AT, &date.to_le_bytes())?;
        self.delete("a date", Table::Date, part, &date_key(before, part))?;
        let put = self
            .inner
            .engine
            .put(Table::Date as usize, &date_key(date, part), &[]);
        put.map_err(backend_error)
    }

    fn set_text(&mut self, document: u32, text: &[u8]) -> Result<(), Oo7Error> {
        let head = &self.document_record(document)?.bytes[..DOCUMENT_HEAD];
        let record = [head, text].concat();
        self.put(Table::Document, document, &record)
    }

    fn add_module(&mut self, design: DesignValues, manual: &[u8]) -> Result<u32, Oo7Error> {
        let DesignValues { id, kind, date } = design;
        let length = u32::try_from(manual.len()).expect("manuals are far smaller than 4 GiB");
        let record = [kind, date, 0, length].map(u32::to_le_bytes);
        self.put(Table::Module, id, record.as_flattened())?;
        self.put(Table::Manual, id, manual)?;
        Ok(id)
    }

    fn add_assembly(
        &mut self,
        module: u32,
        parent: Option<u32>,
        assembly: AssemblyValues,
    ) -> Result<u32, Oo7Error> {
        let DesignValues { id, kind, date } = assembly.design;
        let reference = assembly_reference(id, assembly.base);
        let draft = RecordDraft::new(&[kind, date, module, parent.unwrap_or(0)], 1, 3);
        let (table, key) = assembly_location(reference);
        self.put(table, key, &draft.bytes())?;
        match parent {
            Some(parent) => {
                let add = |draft: &mut RecordDraft| draft.list(0).push(reference);
                self.draft("an assembly", assembly_location(parent), ASSEMBLY, add)?;
            }
            None => {
                self.record("a module", Table::Module, module)?;
                self.set(Table::Module, module, 8, &reference.to_le_bytes())?;
            }
        }
        Ok(reference)
    }

    fn add_composite(&mut self, design: DesignValues, title: [u8; 40], text: &[u8]) -> Result<u32, Oo7Error> {
        let DesignValues { id, kind, date } = design;
        self.put(
            Table::Composite,
            id,
            &RecordDraft::new(&[kind, date, 0], 1, 3).bytes(),
        )?;
        let document = [&id.to_le_bytes(), &title[..], text].concat();
        self.put(Table::Document, id, &document)?;
        let titled = self
            .inner
            .engine
            .put(Table::Title as usize, &title, &id.to_le_bytes());
        titled.map_err(backend_error)?;
        Ok(id)
    }

    fn add_part(&mut self, composite: u32, part: PartValues) -> Result<u32, Oo7Error> {
        let PartValues {
            design: DesignValues { id, kind, date },
            x,
            y,
            document,
        } = part;
        let draft = RecordDraft::new(&[kind, date, x, y, document, composite], 3, 2);
        self.put(Table::Part, id, &draft.bytes())?;
        let put = self
            .inner
            .engine
            .put(Table::Date as usize, &date_key(date, id), &[]);
        put.map_err(backend_error)?;
        self.draft("a composite", (Table::Composite, composite), COMPOSITE, |draft| {
            if draft.list(0).is_empty() {
                *draft.word(2) = id;
            }
            draft.list(0).push(id);
        })?;
        Ok(id)
    }

    fn connect(&mut self, link: PartLink<u32>) -> Result<(), Oo7Error> {
        let ConnectionValues { kind, length } = link.connection;
        for (list, part, other) in [(0, link.from, link.to), (1, link.to, link.from)] {
            let add = |draft: &mut RecordDraft| draft.list(list).extend([other, kind, length]);
            self.draft("a part", (Table::Part, part), PART, add)?;
        }
        Ok(())
    }

    fn add_use(&mut self, assembly: u32, how: CompositeUse, composite: u32) -> Result<(), Oo7Error> {
        let add = |draft: &mut RecordDraft| draft.list(list_of(how)).push(composite);
        self.draft("an assembly", assembly_location(assembly), ASSEMBLY, add)?;
        let add = |draft: &mut RecordDraft| draft.list(list_of(how)).push(assembly);
        self.draft("a composite", (Table::Composite, composite), COMPOSITE, add)
    }

    fn remove_composite(&mut self, composite: u32) -> Result<(), Oo7Error> {
        for how in [CompositeUse::Private, CompositeUse::Shared] {
            let mut users = Vec::new();
            self.users(composite, how, &mut users)?;
            users.sort_unstable();
            users.dedup();
            for user in users {
                let remove =
                    |draft: &mut RecordDraft| draft.list(list_of(how)).retain(|used| *used != composite);
                self.draft("an assembly", assembly_location(user), ASSEMBLY, remove)?;
            }
        }
        let mut parts = Vec::new();
        self.parts(composite, &mut parts)?;
        for part in parts {
            let date = self.part_record(part)?.word(1);
            self.delete("a date", Table::Date, part, &date_key(date, part))?;
            self.delete("a part", Table::Part, part, &part.to_be_bytes())?;
        }
        let title = self.title(composite)?;
        self.delete("a title", Table::Title, composite, &title)?;
        self.delete("a document", Table::Document, composite, &composite.to_be_bytes())?;
        self.delete(
            "a composite",
            Table::Composite,
            composite,
            &composite.to_be_bytes(),
        )
    }

    fn complete(&mut self) -> Result<(), Oo7Error> {
        self.put(Table::State, COMPLETE, &1_u32.to_le_bytes())
    }

    fn commit(self) -> Result<(), Oo7Error> {
        end(self)
    }
}
