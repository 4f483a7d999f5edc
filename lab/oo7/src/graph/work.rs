//! The benchmark's queries and changes on the objects in place.

use std::mem::offset_of;

use super::layout::{
    AssemblyRow, Bag, CompositeRow, ConnectionRow, DatabaseRow, DesignRow, ModuleRow, PartRow, TextRow, view,
    views,
};
use super::space::BlockTransaction;
use super::tree::IndexKey;
use super::{AssemblyAt, CompositeAt, DocumentAt, GraphTransaction, ModuleAt, PartAt};
use crate::error::Oo7Error;
use crate::store::{
    AssemblyValues, CompositeUse, DesignValues, LinkDirection, Oo7Index, Oo7Transaction, PartLink, PartValues,
};

impl<G: BlockTransaction> GraphTransaction<G> {
    fn module_row(&mut self, at: ModuleAt) -> Result<&ModuleRow, Oo7Error> {
        self.row(at.0, "a module")
    }

    fn assembly_row(&mut self, at: AssemblyAt) -> Result<&AssemblyRow, Oo7Error> {
        self.row(at.0, "an assembly")
    }

    fn composite_row(&mut self, at: CompositeAt) -> Result<&CompositeRow, Oo7Error> {
        self.row(at.0, "a composite")
    }

    fn part_row(&mut self, at: PartAt) -> Result<&PartRow, Oo7Error> {
        self.row(at.0, "a part")
    }

    fn text_row(&mut self, at: u64) -> Result<&TextRow, Oo7Error> {
        self.row(at, "a document")
    }

    /// Adds the references of a bag that was read from a row.
    fn items<T>(
        &mut self,
        bag: Bag,
        into: &mut Vec<T>,
        reference: impl Fn(u64) -> T,
    ) -> Result<(), Oo7Error> {
        let items = bag.items(self.transaction.bytes())?;
        into.extend(items.iter().map(|item| reference(item.get())));
        Ok(())
    }

    fn lend(&mut self, at: u64, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error> {
        let bytes = self.transaction.bytes();
        let row: &TextRow = view(bytes, at, "a document")?;
        read(views(bytes, row.text.get(), row.length.get(), "a text")?);
        Ok(())
    }
}

impl<G: BlockTransaction> Oo7Transaction for GraphTransaction<G> {
    type Module = ModuleAt;
    type Assembly = AssemblyAt;
    type Composite = CompositeAt;
    type Part = PartAt;
    type Document = DocumentAt;

    fn module(&mut self, id: u32) -> Result<Option<ModuleAt>, Oo7Error> {
        Ok(self.find_id(Oo7Index::Module, id)?.map(ModuleAt))
    }

    fn base_assembly(&mut self, id: u32) -> Result<Option<AssemblyAt>, Oo7Error> {
        Ok(self.find_id(Oo7Index::Base, id)?.map(AssemblyAt))
    }

    fn composite(&mut self, id: u32) -> Result<Option<CompositeAt>, Oo7Error> {
        Ok(self.find_id(Oo7Index::Composite, id)?.map(CompositeAt))
    }

    fn part(&mut self, id: u32) -> Result<Option<PartAt>, Oo7Error> {
        Ok(self.find_id(Oo7Index::Part, id)?.map(PartAt))
    }

    fn document(&mut self, id: u32) -> Result<Option<DocumentAt>, Oo7Error> {
        Ok(self.find_id(Oo7Index::Document, id)?.map(DocumentAt))
    }

    fn document_titled(&mut self, title: &[u8]) -> Result<Option<DocumentAt>, Oo7Error> {
        match title.try_into() {
            Ok(title) => Ok(self
                .find(Oo7Index::Title, IndexKey::Title(title))?
                .map(DocumentAt)),
            Err(_) => Ok(None),
        }
    }

    fn parts_dated(&mut self, first: u32, last: u32, into: &mut Vec<PartAt>) -> Result<(), Oo7Error> {
        let keys = (
            u64::from(first) << 32,
            u64::from(last) << 32 | u64::from(u32::MAX),
        );
        self.range(Oo7Index::Date, keys, &mut |at| into.push(PartAt(at)))
    }

    fn all_parts(&mut self, into: &mut Vec<PartAt>) -> Result<(), Oo7Error> {
        self.range(Oo7Index::Part, (0, u64::MAX), &mut |at| into.push(PartAt(at)))
    }

    fn all_base_assemblies(&mut self, into: &mut Vec<AssemblyAt>) -> Result<(), Oo7Error> {
        self.range(Oo7Index::Base, (0, u64::MAX), &mut |at| into.push(AssemblyAt(at)))
    }

    fn all_composites(&mut self, into: &mut Vec<CompositeAt>) -> Result<(), Oo7Error> {
        self.range(Oo7Index::Composite, (0, u64::MAX), &mut |at| {
            into.push(CompositeAt(at))
        })
    }

    fn entries(&mut self, index: Oo7Index) -> Result<u64, Oo7Error> {
        let mut entries = 0;
        self.range(index, (0, u64::MAX), &mut |_| entries += 1)?;
        Ok(entries)
    }

    fn module_design(&mut self, module: ModuleAt) -> Result<DesignValues, Oo7Error> {
        self.module_row(module)?.design.values()
    }

    fn top(&mut self, module: ModuleAt) -> Result<AssemblyAt, Oo7Error> {
        Ok(AssemblyAt(self.module_row(module)?.top.get()))
    }

    fn manual(&mut self, module: ModuleAt, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error> {
        let manual = self.module_row(module)?.manual.get();
        self.lend(manual, read)
    }

    fn manual_ends(&mut self, module: ModuleAt) -> Result<(u8, u8), Oo7Error> {
        let mut ends = None;
        self.manual(module, &mut |text| {
            if let [first, .., last, _] = text {
                ends = Some((*first, *last));
            }
        })?;
        ends.ok_or(Oo7Error::Damaged {
            what: "a manual",
            at: module.0,
        })
    }

    fn assembly(&mut self, assembly: AssemblyAt) -> Result<AssemblyValues, Oo7Error> {
        let row = self.assembly_row(assembly)?;
        Ok(AssemblyValues {
            design: row.design.values()?,
            base: row.base.get() != 0,
        })
    }

    fn parent(&mut self, assembly: AssemblyAt) -> Result<Option<AssemblyAt>, Oo7Error> {
        let parent = self.assembly_row(assembly)?.parent.get();
        Ok((parent != 0).then_some(AssemblyAt(parent)))
    }

    fn module_of(&mut self, assembly: AssemblyAt) -> Result<ModuleAt, Oo7Error> {
        Ok(ModuleAt(self.assembly_row(assembly)?.module.get()))
    }

    fn children(&mut self, assembly: AssemblyAt, into: &mut Vec<AssemblyAt>) -> Result<(), Oo7Error> {
        let row = *self.assembly_row(assembly)?;
        if row.base.get() != 0 {
            return Ok(());
        }
        self.items(row.below, into, AssemblyAt)
    }

    fn components(
        &mut self,
        assembly: AssemblyAt,
        how: CompositeUse,
        into: &mut Vec<CompositeAt>,
    ) -> Result<(), Oo7Error> {
        let row = *self.assembly_row(assembly)?;
        match how {
            _ if row.base.get() == 0 => Ok(()),
            CompositeUse::Private => self.items(row.below, into, CompositeAt),
            CompositeUse::Shared => self.items(row.shared, into, CompositeAt),
        }
    }

    fn composite_design(&mut self, composite: CompositeAt) -> Result<DesignValues, Oo7Error> {
        self.composite_row(composite)?.design.values()
    }

    fn root_part(&mut self, composite: CompositeAt) -> Result<PartAt, Oo7Error> {
        Ok(PartAt(self.composite_row(composite)?.root.get()))
    }

    fn parts(&mut self, composite: CompositeAt, into: &mut Vec<PartAt>) -> Result<(), Oo7Error> {
        let parts = self.composite_row(composite)?.parts;
        self.items(parts, into, PartAt)
    }

    fn documentation(&mut self, composite: CompositeAt) -> Result<DocumentAt, Oo7Error> {
        Ok(DocumentAt(self.composite_row(composite)?.document.get()))
    }

    fn users(
        &mut self,
        composite: CompositeAt,
        how: CompositeUse,
        into: &mut Vec<AssemblyAt>,
    ) -> Result<(), Oo7Error> {
        let row = self.composite_row(composite)?;
        let users = match how {
            CompositeUse::Private => row.users,
            CompositeUse::Shared => row.shared_users,
        };
        self.items(users, into, AssemblyAt)
    }

    fn document_id(&mut self, document: DocumentAt) -> Result<u32, Oo7Error> {
        Ok(self.text_row(document.0)?.id.get())
    }

    fn title(&mut self, document: DocumentAt) -> Result<[u8; 40], Oo7Error> {
        Ok(self.text_row(document.0)?.title)
    }

    fn described(&mut self, document: DocumentAt) -> Result<CompositeAt, Oo7Error> {
        Ok(CompositeAt(self.text_row(document.0)?.owner.get()))
    }

    fn text(&mut self, document: DocumentAt, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error> {
        self.lend(document.0, read)
    }

    fn part_values(&mut self, part: PartAt) -> Result<PartValues, Oo7Error> {
        let row = self.part_row(part)?;
        Ok(PartValues {
            design: row.design.values()?,
            x: row.x.get(),
            y: row.y.get(),
            document: row.document.get(),
        })
    }

    fn composite_of(&mut self, part: PartAt) -> Result<CompositeAt, Oo7Error> {
        Ok(CompositeAt(self.part_row(part)?.composite.get()))
    }

    fn targets(&mut self, part: PartAt, into: &mut Vec<(PartAt, u32)>) -> Result<(), Oo7Error> {
        let bytes = self.transaction.bytes();
        let row: &PartRow = view(bytes, part.0, "a part")?;
        for connection in row.outward.items(bytes)? {
            let connection: &ConnectionRow = view(bytes, connection.get(), "a connection")?;
            let to = connection.to.get();
            let target: &PartRow = view(bytes, to, "a part")?;
            into.push((PartAt(to), target.design.id.get()));
        }
        Ok(())
    }

    fn links(
        &mut self,
        part: PartAt,
        direction: LinkDirection,
        into: &mut Vec<PartLink<PartAt>>,
    ) -> Result<(), Oo7Error> {
        let bytes = self.transaction.bytes();
        let row: &PartRow = view(bytes, part.0, "a part")?;
        let bag = match direction {
            LinkDirection::Out => row.outward,
            LinkDirection::In => row.inward,
        };
        for connection in bag.items(bytes)? {
            let row: &ConnectionRow = view(bytes, connection.get(), "a connection")?;
            into.push(PartLink {
                from: PartAt(row.from.get()),
                to: PartAt(row.to.get()),
                connection: row.values()?,
            });
        }
        Ok(())
    }

    fn swap(&mut self, part: PartAt) -> Result<(), Oo7Error> {
        let row = self.part_row(part)?;
        let exchanged = [row.y, row.x];
        let at = part.0 + offset_of!(PartRow, x) as u64;
        self.transaction
            .write(at, zerocopy::IntoBytes::as_bytes(&exchanged))
    }

    fn set_date(&mut self, part: PartAt, date: u32) -> Result<(), Oo7Error> {
        let DesignRow { id, date: old, .. } = self.part_row(part)?.design;
        let old = self.date_key(old.get(), id.get());
        self.remove_entry(Oo7Index::Date, IndexKey::Number(old))?;
        let at = part.0 + offset_of!(DesignRow, date) as u64;
        self.transaction.write(at, &date.to_le_bytes())?;
        let new = self.date_key(date, id.get());
        self.insert_entry(Oo7Index::Date, IndexKey::Number(new), part.0)
    }

    fn set_text(&mut self, document: DocumentAt, text: &[u8]) -> Result<(), Oo7Error> {
        self.replace_text(document.0, text)
    }

    fn add_module(&mut self, design: DesignValues, manual: &[u8]) -> Result<ModuleAt, Oo7Error> {
        self.make_module(design, manual)
    }

    fn add_assembly(
        &mut self,
        module: ModuleAt,
        parent: Option<AssemblyAt>,
        assembly: AssemblyValues,
    ) -> Result<AssemblyAt, Oo7Error> {
        self.make_assembly(module, parent, assembly)
    }

    fn add_composite(
        &mut self,
        design: DesignValues,
        title: [u8; 40],
        text: &[u8],
    ) -> Result<CompositeAt, Oo7Error> {
        self.make_composite(design, title, text)
    }

    fn add_part(&mut self, composite: CompositeAt, part: PartValues) -> Result<PartAt, Oo7Error> {
        self.make_part(composite, part)
    }

    fn connect(&mut self, link: PartLink<PartAt>) -> Result<(), Oo7Error> {
        self.make_connection(link)
    }

    fn add_use(
        &mut self,
        assembly: AssemblyAt,
        how: CompositeUse,
        composite: CompositeAt,
    ) -> Result<(), Oo7Error> {
        self.make_use(assembly, how, composite)
    }

    fn remove_composite(&mut self, composite: CompositeAt) -> Result<(), Oo7Error> {
        self.unmake_composite(composite)
    }

    fn complete(&mut self) -> Result<(), Oo7Error> {
        let at = self.database + offset_of!(DatabaseRow, complete) as u64;
        self.transaction.write(at, &1u32.to_le_bytes())
    }

    fn commit(self) -> Result<(), Oo7Error> {
        self.transaction.commit()
    }
}
