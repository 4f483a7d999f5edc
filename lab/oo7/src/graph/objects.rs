//! Creation and removal of objects.

use std::mem::offset_of;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::bag::{self, BagLocation};
use super::layout::{
    AssemblyRow, Bag, CompositeRow, ConnectionRow, DesignRow, ModuleRow, PartRow, TextRow, inward_room,
    part_bytes, view,
};
use super::space::{BlockOwner, BlockTransaction};
use super::tree::IndexKey;
use super::{AssemblyAt, CompositeAt, GraphTransaction, ModuleAt, PartAt};
use crate::error::Oo7Error;
use crate::store::{AssemblyValues, CompositeUse, DesignValues, Oo7Index, PartLink, PartValues};
use crate::text::{manual_title, type_name};

impl<G: BlockTransaction> GraphTransaction<G> {
    pub(super) fn make_module(&mut self, design: DesignValues, manual: &[u8]) -> Result<ModuleAt, Oo7Error> {
        let row = ModuleRow {
            design: DesignRow::new(design),
            spare: U32::ZERO,
            manual: U64::ZERO,
            top: U64::ZERO,
            assemblies: Bag::EMPTY,
        };
        let at = self.add(BlockOwner::Module(design.id), &row)?;
        let manual = self.make_text(manual_title(design.id), design.id, manual, at)?;
        self.point(at + offset_of!(ModuleRow, manual) as u64, manual)?;
        self.insert_id(Oo7Index::Module, design.id, at)?;
        Ok(ModuleAt(at))
    }

    pub(super) fn make_assembly(
        &mut self,
        module: ModuleAt,
        parent: Option<AssemblyAt>,
        assembly: AssemblyValues,
    ) -> Result<AssemblyAt, Oo7Error> {
        let row = AssemblyRow {
            design: DesignRow::new(assembly.design),
            base: U32::new(assembly.base.into()),
            module: U64::new(module.0),
            parent: U64::new(parent.map_or(0, |parent| parent.0)),
            below: Bag::EMPTY,
            shared: Bag::EMPTY,
        };
        let at = self.add(BlockOwner::Block(module.0), &row)?;
        match parent {
            Some(parent) => bag::push(&mut self.transaction, children_of(parent), at)?,
            None => self.point(module.0 + offset_of!(ModuleRow, top) as u64, at)?,
        }
        let all = BagLocation::detached(module.0 + offset_of!(ModuleRow, assemblies) as u64);
        bag::push(&mut self.transaction, all, at)?;
        if assembly.base {
            self.insert_id(Oo7Index::Base, assembly.design.id, at)?;
        }
        Ok(AssemblyAt(at))
    }

    pub(super) fn make_composite(
        &mut self,
        design: DesignValues,
        title: [u8; 40],
        text: &[u8],
    ) -> Result<CompositeAt, Oo7Error> {
        let row = CompositeRow {
            design: DesignRow::new(design),
            spare: U32::ZERO,
            document: U64::ZERO,
            root: U64::ZERO,
            parts: Bag::EMPTY,
            users: Bag::EMPTY,
            shared_users: Bag::EMPTY,
        };
        let at = self.add(self.owner_of(design.id), &row)?;
        let document = self.make_text(title, design.id, text, at)?;
        self.point(at + offset_of!(CompositeRow, document) as u64, document)?;
        self.insert_id(Oo7Index::Composite, design.id, at)?;
        self.insert_id(Oo7Index::Document, design.id, document)?;
        self.insert_entry(Oo7Index::Title, IndexKey::Title(&title), document)?;
        Ok(CompositeAt(at))
    }

    pub(super) fn make_part(&mut self, composite: CompositeAt, part: PartValues) -> Result<PartAt, Oo7Error> {
        let near = BlockOwner::Block(composite.0);
        let at = self
            .transaction
            .allocate(near, part_bytes(self.header.connections))?;
        let (outward, inward) = (outward(PartAt(at)), inward(PartAt(at), self.header.connections));
        let row = PartRow {
            design: DesignRow::new(part.design),
            x: part.x.into(),
            y: part.y.into(),
            document: part.document.into(),
            composite: U64::new(composite.0),
            outward: Bag {
                items: U64::new(outward.inline),
                count: U32::ZERO,
                room: U32::new(self.header.connections),
            },
            inward: Bag {
                items: U64::new(inward.inline),
                count: U32::ZERO,
                room: U32::new(inward_room(self.header.connections)),
            },
        };
        self.transaction.write(at, row.as_bytes())?;
        let parts = BagLocation::detached(composite.0 + offset_of!(CompositeRow, parts) as u64);
        bag::push(&mut self.transaction, parts, at)?;
        let row: &CompositeRow = self.row(composite.0, "a composite")?;
        if row.root.get() == 0 {
            self.point(composite.0 + offset_of!(CompositeRow, root) as u64, at)?;
        }
        self.insert_id(Oo7Index::Part, part.design.id, at)?;
        let date = self.date_key(part.design.date, part.design.id);
        self.insert_entry(Oo7Index::Date, IndexKey::Number(date), at)?;
        Ok(PartAt(at))
    }

    pub(super) fn make_connection(&mut self, link: PartLink<PartAt>) -> Result<(), Oo7Error> {
        let row = ConnectionRow {
            kind: type_name(link.connection.kind),
            spare: [0; 2],
            length: link.connection.length.into(),
            from: U64::new(link.from.0),
            to: U64::new(link.to.0),
        };
        let at = self.add(BlockOwner::Block(link.from.0), &row)?;
        bag::push(&mut self.transaction, outward(link.from), at)?;
        bag::push(
            &mut self.transaction,
            inward(link.to, self.header.connections),
            at,
        )
    }

    pub(super) fn make_use(
        &mut self,
        assembly: AssemblyAt,
        how: CompositeUse,
        composite: CompositeAt,
    ) -> Result<(), Oo7Error> {
        bag::push(&mut self.transaction, components(assembly, how), composite.0)?;
        bag::push(&mut self.transaction, users(composite, how), assembly.0)
    }

    pub(super) fn replace_text(&mut self, at: u64, text: &[u8]) -> Result<(), Oo7Error> {
        let row: &TextRow = self.row(at, "a document")?;
        let (old, length) = (row.text.get(), row.length.get());
        if text.len() > length as usize {
            // As in the original, a longer text gets a block of its own.
            let moved = self.transaction.allocate(BlockOwner::Block(at), text.len())?;
            self.transaction.write(moved, text)?;
            self.point(at + offset_of!(TextRow, text) as u64, moved)?;
            self.transaction.free(old)?;
        } else {
            self.transaction.write(old, text)?;
        }
        let length = text_length(text)?;
        self.transaction
            .write(at + offset_of!(TextRow, length) as u64, length.as_bytes())
    }

    /// Removes a composite with its document, parts, connections and uses.
    pub(super) fn unmake_composite(&mut self, composite: CompositeAt) -> Result<(), Oo7Error> {
        let bytes = self.transaction.bytes();
        let row: CompositeRow = *view(bytes, composite.0, "a composite")?;
        let parts: Vec<u64> = row.parts.items(bytes)?.iter().map(|part| part.get()).collect();
        for (how, bag) in [
            (CompositeUse::Private, row.users),
            (CompositeUse::Shared, row.shared_users),
        ] {
            for user in bag.items(self.transaction.bytes())?.to_vec() {
                let place = components(AssemblyAt(user.get()), how);
                bag::remove(&mut self.transaction, place, composite.0)?;
            }
            bag::discard(&mut self.transaction, users(composite, how))?;
        }
        for part in parts {
            self.unmake_part(PartAt(part))?;
        }
        let parts = BagLocation::detached(composite.0 + offset_of!(CompositeRow, parts) as u64);
        bag::discard(&mut self.transaction, parts)?;
        let id = u64::from(row.design.id.get());
        let document = row.document.get();
        let TextRow { title, text, .. } = *self.row(document, "a document")?;
        self.remove_entry(Oo7Index::Title, IndexKey::Title(&title))?;
        self.remove_entry(Oo7Index::Document, IndexKey::Number(id))?;
        self.remove_entry(Oo7Index::Composite, IndexKey::Number(id))?;
        for block in [text.get(), document, composite.0] {
            self.transaction.free(block)?;
        }
        Ok(())
    }

    /// Connections stay within a composite, which is removed whole, so each is freed where it begins.
    fn unmake_part(&mut self, part: PartAt) -> Result<(), Oo7Error> {
        let bytes = self.transaction.bytes();
        let row: PartRow = *view(bytes, part.0, "a part")?;
        for connection in row.outward.items(bytes)?.to_vec() {
            self.transaction.free(connection.get())?;
        }
        let (id, date) = (row.design.id.get(), row.design.date.get());
        self.remove_entry(Oo7Index::Part, IndexKey::Number(id.into()))?;
        let date = self.date_key(date, id);
        self.remove_entry(Oo7Index::Date, IndexKey::Number(date))?;
        bag::discard(&mut self.transaction, outward(part))?;
        bag::discard(&mut self.transaction, inward(part, self.header.connections))?;
        self.transaction.free(part.0)
    }

    fn make_text(&mut self, title: [u8; 40], id: u32, text: &[u8], owner: u64) -> Result<u64, Oo7Error> {
        let block = self.transaction.allocate(BlockOwner::Block(owner), text.len())?;
        self.transaction.write(block, text)?;
        let row = TextRow {
            title,
            id: id.into(),
            length: text_length(text)?,
            text: U64::new(block),
            owner: U64::new(owner),
        };
        self.add(BlockOwner::Block(owner), &row)
    }

    /// Stores a reference.
    fn point(&mut self, at: u64, target: u64) -> Result<(), Oo7Error> {
        self.transaction.write(at, &target.to_le_bytes())
    }
}

fn text_length(text: &[u8]) -> Result<U32, Oo7Error> {
    match u32::try_from(text.len()) {
        Ok(length) => Ok(U32::new(length)),
        Err(_) => Err(Oo7Error::Full {
            asked: text.len() as u64,
            largest: u32::MAX.into(),
        }),
    }
}

fn children_of(assembly: AssemblyAt) -> BagLocation {
    BagLocation::detached(assembly.0 + offset_of!(AssemblyRow, below) as u64)
}

fn components(assembly: AssemblyAt, how: CompositeUse) -> BagLocation {
    match how {
        CompositeUse::Private => children_of(assembly),
        CompositeUse::Shared => BagLocation::detached(assembly.0 + offset_of!(AssemblyRow, shared) as u64),
    }
}

fn users(composite: CompositeAt, how: CompositeUse) -> BagLocation {
    let offset = match how {
        CompositeUse::Private => offset_of!(CompositeRow, users),
        CompositeUse::Shared => offset_of!(CompositeRow, shared_users),
    };
    BagLocation::detached(composite.0 + offset as u64)
}

fn outward(part: PartAt) -> BagLocation {
    BagLocation {
        header: part.0 + offset_of!(PartRow, outward) as u64,
        inline: part.0 + size_of::<PartRow>() as u64,
    }
}

fn inward(part: PartAt, connections: u32) -> BagLocation {
    BagLocation {
        header: part.0 + offset_of!(PartRow, inward) as u64,
        inline: part.0 + size_of::<PartRow>() as u64 + 8 * u64::from(connections),
    }
}
