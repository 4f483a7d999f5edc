//! Objects made and removed.

use std::mem::offset_of;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::bag::{self, Place};
use super::ground::{Ground, Near};
use super::layout::{
    AssemblyRow, Bag, CompositeRow, ConnectionRow, DesignRow, ModuleRow, PartRow, TextRow, inward_room,
    part_bytes, view,
};
use super::tree::Key;
use super::{AssemblyAt, CompositeAt, GraphOpen, ModuleAt, PartAt};
use crate::error::StoreError;
use crate::store::{Assembly, Design, Index, Link, Part, Use};
use crate::text::{manual_title, type_name};

impl<G: Ground> GraphOpen<G> {
    pub(super) fn make_module(&mut self, design: Design, manual: &[u8]) -> Result<ModuleAt, StoreError> {
        let row = ModuleRow {
            design: DesignRow::new(design),
            spare: U32::ZERO,
            manual: U64::ZERO,
            top: U64::ZERO,
            assemblies: Bag::EMPTY,
        };
        let at = self.add(Near::Module(design.id), &row)?;
        let manual = self.make_text(manual_title(design.id), design.id, manual, at)?;
        self.point(at + offset_of!(ModuleRow, manual) as u64, manual)?;
        self.enter_id(Index::Module, design.id, at)?;
        Ok(ModuleAt(at))
    }

    pub(super) fn make_assembly(
        &mut self,
        module: ModuleAt,
        parent: Option<AssemblyAt>,
        assembly: Assembly,
    ) -> Result<AssemblyAt, StoreError> {
        let row = AssemblyRow {
            design: DesignRow::new(assembly.design),
            base: U32::new(assembly.base.into()),
            module: U64::new(module.0),
            parent: U64::new(parent.map_or(0, |parent| parent.0)),
            below: Bag::EMPTY,
            shared: Bag::EMPTY,
        };
        let at = self.add(Near::Block(module.0), &row)?;
        match parent {
            Some(parent) => bag::push(&mut self.ground, below(parent), at)?,
            None => self.point(module.0 + offset_of!(ModuleRow, top) as u64, at)?,
        }
        let all = Place::apart(module.0 + offset_of!(ModuleRow, assemblies) as u64);
        bag::push(&mut self.ground, all, at)?;
        if assembly.base {
            self.enter_id(Index::Base, assembly.design.id, at)?;
        }
        Ok(AssemblyAt(at))
    }

    pub(super) fn make_composite(
        &mut self,
        design: Design,
        title: [u8; 40],
        text: &[u8],
    ) -> Result<CompositeAt, StoreError> {
        let row = CompositeRow {
            design: DesignRow::new(design),
            spare: U32::ZERO,
            document: U64::ZERO,
            root: U64::ZERO,
            parts: Bag::EMPTY,
            users: Bag::EMPTY,
            shared_users: Bag::EMPTY,
        };
        let at = self.add(self.home_of(design.id), &row)?;
        let document = self.make_text(title, design.id, text, at)?;
        self.point(at + offset_of!(CompositeRow, document) as u64, document)?;
        self.enter_id(Index::Composite, design.id, at)?;
        self.enter_id(Index::Document, design.id, document)?;
        self.enter(Index::Title, Key::Title(&title), document)?;
        Ok(CompositeAt(at))
    }

    pub(super) fn make_part(&mut self, composite: CompositeAt, part: Part) -> Result<PartAt, StoreError> {
        let near = Near::Block(composite.0);
        let at = self.ground.allocate(near, part_bytes(self.facts.connections))?;
        let (outward, inward) = (outward(PartAt(at)), inward(PartAt(at), self.facts.connections));
        let row = PartRow {
            design: DesignRow::new(part.design),
            x: part.x.into(),
            y: part.y.into(),
            document: part.document.into(),
            composite: U64::new(composite.0),
            outward: Bag {
                items: U64::new(outward.inline),
                count: U32::ZERO,
                room: U32::new(self.facts.connections),
            },
            inward: Bag {
                items: U64::new(inward.inline),
                count: U32::ZERO,
                room: U32::new(inward_room(self.facts.connections)),
            },
        };
        self.ground.write(at, row.as_bytes())?;
        let parts = Place::apart(composite.0 + offset_of!(CompositeRow, parts) as u64);
        bag::push(&mut self.ground, parts, at)?;
        let row: &CompositeRow = self.row(composite.0, "a composite")?;
        if row.root.get() == 0 {
            self.point(composite.0 + offset_of!(CompositeRow, root) as u64, at)?;
        }
        self.enter_id(Index::Part, part.design.id, at)?;
        let date = self.date_key(part.design.date, part.design.id);
        self.enter(Index::Date, Key::Number(date), at)?;
        Ok(PartAt(at))
    }

    pub(super) fn make_connection(&mut self, link: Link<PartAt>) -> Result<(), StoreError> {
        let row = ConnectionRow {
            kind: type_name(link.connection.kind),
            spare: [0; 2],
            length: link.connection.length.into(),
            from: U64::new(link.from.0),
            to: U64::new(link.to.0),
        };
        let at = self.add(Near::Block(link.from.0), &row)?;
        bag::push(&mut self.ground, outward(link.from), at)?;
        bag::push(&mut self.ground, inward(link.to, self.facts.connections), at)
    }

    pub(super) fn make_use(
        &mut self,
        assembly: AssemblyAt,
        how: Use,
        composite: CompositeAt,
    ) -> Result<(), StoreError> {
        bag::push(&mut self.ground, components(assembly, how), composite.0)?;
        bag::push(&mut self.ground, users(composite, how), assembly.0)
    }

    pub(super) fn replace_text(&mut self, at: u64, text: &[u8]) -> Result<(), StoreError> {
        let row: &TextRow = self.row(at, "a document")?;
        let (old, length) = (row.text.get(), row.length.get());
        if text.len() > length as usize {
            // As the original: a longer text gets a block of its own.
            let moved = self.ground.allocate(Near::Block(at), text.len())?;
            self.ground.write(moved, text)?;
            self.point(at + offset_of!(TextRow, text) as u64, moved)?;
            self.ground.free(old)?;
        } else {
            self.ground.write(old, text)?;
        }
        let length = text_length(text)?;
        self.ground
            .write(at + offset_of!(TextRow, length) as u64, length.as_bytes())
    }

    /// Removes a composite with its document, parts, connections and uses.
    pub(super) fn unmake_composite(&mut self, composite: CompositeAt) -> Result<(), StoreError> {
        let bytes = self.ground.bytes();
        let row: CompositeRow = *view(bytes, composite.0, "a composite")?;
        let parts: Vec<u64> = row.parts.items(bytes)?.iter().map(|part| part.get()).collect();
        for (how, bag) in [(Use::Private, row.users), (Use::Shared, row.shared_users)] {
            for user in bag.items(self.ground.bytes())?.to_vec() {
                let place = components(AssemblyAt(user.get()), how);
                bag::remove(&mut self.ground, place, composite.0)?;
            }
            bag::discard(&mut self.ground, users(composite, how))?;
        }
        for part in parts {
            self.unmake_part(PartAt(part))?;
        }
        let parts = Place::apart(composite.0 + offset_of!(CompositeRow, parts) as u64);
        bag::discard(&mut self.ground, parts)?;
        let id = u64::from(row.design.id.get());
        let document = row.document.get();
        let TextRow { title, text, .. } = *self.row(document, "a document")?;
        self.leave(Index::Title, Key::Title(&title))?;
        self.leave(Index::Document, Key::Number(id))?;
        self.leave(Index::Composite, Key::Number(id))?;
        for block in [text.get(), document, composite.0] {
            self.ground.free(block)?;
        }
        Ok(())
    }

    /// Connections stay within a composite, which goes whole: each is freed where it begins.
    fn unmake_part(&mut self, part: PartAt) -> Result<(), StoreError> {
        let bytes = self.ground.bytes();
        let row: PartRow = *view(bytes, part.0, "a part")?;
        for connection in row.outward.items(bytes)?.to_vec() {
            self.ground.free(connection.get())?;
        }
        let (id, date) = (row.design.id.get(), row.design.date.get());
        self.leave(Index::Part, Key::Number(id.into()))?;
        let date = self.date_key(date, id);
        self.leave(Index::Date, Key::Number(date))?;
        bag::discard(&mut self.ground, outward(part))?;
        bag::discard(&mut self.ground, inward(part, self.facts.connections))?;
        self.ground.free(part.0)
    }

    fn make_text(&mut self, title: [u8; 40], id: u32, text: &[u8], owner: u64) -> Result<u64, StoreError> {
        let block = self.ground.allocate(Near::Block(owner), text.len())?;
        self.ground.write(block, text)?;
        let row = TextRow {
            title,
            id: id.into(),
            length: text_length(text)?,
            text: U64::new(block),
            owner: U64::new(owner),
        };
        self.add(Near::Block(owner), &row)
    }

    /// Stores a reference.
    fn point(&mut self, at: u64, target: u64) -> Result<(), StoreError> {
        self.ground.write(at, &target.to_le_bytes())
    }
}

fn text_length(text: &[u8]) -> Result<U32, StoreError> {
    match u32::try_from(text.len()) {
        Ok(length) => Ok(U32::new(length)),
        Err(_) => Err(StoreError::NoRoom {
            asked: text.len() as u64,
            largest: u32::MAX.into(),
        }),
    }
}

fn below(assembly: AssemblyAt) -> Place {
    Place::apart(assembly.0 + offset_of!(AssemblyRow, below) as u64)
}

fn components(assembly: AssemblyAt, how: Use) -> Place {
    match how {
        Use::Private => below(assembly),
        Use::Shared => Place::apart(assembly.0 + offset_of!(AssemblyRow, shared) as u64),
    }
}

fn users(composite: CompositeAt, how: Use) -> Place {
    let offset = match how {
        Use::Private => offset_of!(CompositeRow, users),
        Use::Shared => offset_of!(CompositeRow, shared_users),
    };
    Place::apart(composite.0 + offset as u64)
}

fn outward(part: PartAt) -> Place {
    Place {
        header: part.0 + offset_of!(PartRow, outward) as u64,
        inline: part.0 + size_of::<PartRow>() as u64,
    }
}

fn inward(part: PartAt, connections: u32) -> Place {
    Place {
        header: part.0 + offset_of!(PartRow, inward) as u64,
        inline: part.0 + size_of::<PartRow>() as u64 + 8 * u64::from(connections),
    }
}
