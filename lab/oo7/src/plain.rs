//! The store in ordinary structures, as in a program without a database; other stores are compared with it.
//!
//! Objects are in vectors and refer to each other by index. There is one transaction at a time. It cannot
//! undo: after a dropped transaction with changes the store refuses everything.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Oo7Error;
use crate::store::{
    AssemblyValues, CompositeUse, ConnectionValues, DesignValues, LinkDirection, Oo7Index, Oo7Store,
    Oo7Transaction, PartLink, PartValues,
};

/// An OO7 database in ordinary memory.
#[derive(Debug, Default)]
pub struct PlainStore {
    data: Mutex<PlainData>,
}

#[derive(Debug, Default)]
struct PlainData {
    modules: Vec<ModuleRow>,
    assemblies: Vec<AssemblyRow>,
    composites: Vec<Option<CompositeRow>>,
    parts: Vec<Option<PartRow>>,
    base_by_id: BTreeMap<u32, usize>,
    composite_by_id: BTreeMap<u32, usize>,
    by_title: BTreeMap<[u8; 40], usize>,
    part_by_id: BTreeMap<u32, usize>,
    by_date: BTreeMap<(u32, u32), usize>,
    poisoned: bool,
}

#[derive(Debug)]
struct ModuleRow {
    design: DesignValues,
    manual: Vec<u8>,
    top: Option<usize>,
}

#[derive(Debug)]
struct AssemblyRow {
    values: AssemblyValues,
    module: usize,
    parent: Option<usize>,
    children: Vec<usize>,
    /// Private ones, then shared ones.
    components: [Vec<usize>; 2],
}

/// A composite with its document.
#[derive(Debug)]
struct CompositeRow {
    design: DesignValues,
    title: [u8; 40],
    text: Vec<u8>,
    parts: Vec<usize>,
    /// As [`AssemblyRow::components`].
    users: [Vec<usize>; 2],
}

#[derive(Debug)]
struct PartRow {
    values: PartValues,
    composite: usize,
    outward: Vec<(usize, ConnectionValues)>,
    inward: Vec<(usize, ConnectionValues)>,
}

/// A transaction of [`PlainStore`].
#[derive(Debug)]
pub struct PlainTransaction<'s> {
    data: MutexGuard<'s, PlainData>,
    changed: bool,
}

impl Oo7Store for PlainStore {
    type Open<'s> = PlainTransaction<'s>;

    fn begin(&self) -> Result<PlainTransaction<'_>, Oo7Error> {
        let data = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        if data.poisoned {
            return Err(Oo7Error::Poisoned);
        }
        Ok(PlainTransaction { data, changed: false })
    }
}

impl Drop for PlainTransaction<'_> {
    fn drop(&mut self) {
        self.data.poisoned |= self.changed;
    }
}

impl PlainTransaction<'_> {
    fn change(&mut self) -> &mut PlainData {
        self.changed = true;
        &mut self.data
    }
}

impl PlainData {
    fn module(&self, at: usize) -> Result<&ModuleRow, Oo7Error> {
        self.modules.get(at).ok_or(damaged("a module", at))
    }

    fn assembly(&self, at: usize) -> Result<&AssemblyRow, Oo7Error> {
        self.assemblies.get(at).ok_or(damaged("an assembly", at))
    }

    fn composite(&self, at: usize) -> Result<&CompositeRow, Oo7Error> {
        let row = self.composites.get(at).and_then(Option::as_ref);
        row.ok_or(damaged("a composite", at))
    }

    fn composite_mut(&mut self, at: usize) -> Result<&mut CompositeRow, Oo7Error> {
        let row = self.composites.get_mut(at).and_then(Option::as_mut);
        row.ok_or(damaged("a composite", at))
    }

    fn part(&self, at: usize) -> Result<&PartRow, Oo7Error> {
        let row = self.parts.get(at).and_then(Option::as_ref);
        row.ok_or(damaged("a part", at))
    }

    fn part_mut(&mut self, at: usize) -> Result<&mut PartRow, Oo7Error> {
        let row = self.parts.get_mut(at).and_then(Option::as_mut);
        row.ok_or(damaged("a part", at))
    }
}

fn damaged(what: &'static str, at: usize) -> Oo7Error {
    Oo7Error::Damaged { what, at: at as u64 }
}

fn kind_of(how: CompositeUse) -> usize {
    match how {
        CompositeUse::Private => 0,
        CompositeUse::Shared => 1,
    }
}

impl Oo7Transaction for PlainTransaction<'_> {
    type Module = usize;
    type Assembly = usize;
    type Composite = usize;
    type Part = usize;
    type Document = usize;

    fn module(&mut self, id: u32) -> Result<Option<usize>, Oo7Error> {
        Ok(self.data.modules.iter().position(|module| module.design.id == id))
    }

    fn base_assembly(&mut self, id: u32) -> Result<Option<usize>, Oo7Error> {
        Ok(self.data.base_by_id.get(&id).copied())
    }

    fn composite(&mut self, id: u32) -> Result<Option<usize>, Oo7Error> {
        Ok(self.data.composite_by_id.get(&id).copied())
    }

    fn part(&mut self, id: u32) -> Result<Option<usize>, Oo7Error> {
        Ok(self.data.part_by_id.get(&id).copied())
    }

    fn document(&mut self, id: u32) -> Result<Option<usize>, Oo7Error> {
        self.composite(id)
    }

    fn document_titled(&mut self, title: &[u8]) -> Result<Option<usize>, Oo7Error> {
        Ok(self.data.by_title.get(title).copied())
    }

    fn parts_dated(&mut self, first: u32, last: u32, into: &mut Vec<usize>) -> Result<(), Oo7Error> {
        into.extend(
            self.data
                .by_date
                .range((first, 0)..=(last, u32::MAX))
                .map(|(_, at)| *at),
        );
        Ok(())
    }

    fn all_parts(&mut self, into: &mut Vec<usize>) -> Result<(), Oo7Error> {
        into.extend(self.data.part_by_id.values());
        Ok(())
    }

    fn all_base_assemblies(&mut self, into: &mut Vec<usize>) -> Result<(), Oo7Error> {
        into.extend(self.data.base_by_id.values());
        Ok(())
    }

    fn all_composites(&mut self, into: &mut Vec<usize>) -> Result<(), Oo7Error> {
        into.extend(self.data.composite_by_id.values());
        Ok(())
    }

    fn entries(&mut self, index: Oo7Index) -> Result<u64, Oo7Error> {
        let entries = match index {
            Oo7Index::Module => self.data.modules.len(),
            Oo7Index::Base => self.data.base_by_id.len(),
            Oo7Index::Composite | Oo7Index::Document => self.data.composite_by_id.len(),
            Oo7Index::Title => self.data.by_title.len(),
            Oo7Index::Part => self.data.part_by_id.len(),
            Oo7Index::Date => self.data.by_date.len(),
        };
        Ok(entries as u64)
    }

    fn module_design(&mut self, module: usize) -> Result<DesignValues, Oo7Error> {
        Ok(self.data.module(module)?.design)
    }

    fn top(&mut self, module: usize) -> Result<usize, Oo7Error> {
        self.data
            .module(module)?
            .top
            .ok_or(damaged("a top assembly", module))
    }

    fn manual(&mut self, module: usize, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error> {
        read(&self.data.module(module)?.manual);
        Ok(())
    }

    fn manual_ends(&mut self, module: usize) -> Result<(u8, u8), Oo7Error> {
        match self.data.module(module)?.manual.as_slice() {
            [first, .., last, _] => Ok((*first, *last)),
            _ => Err(damaged("a manual", module)),
        }
    }

    fn assembly(&mut self, assembly: usize) -> Result<AssemblyValues, Oo7Error> {
        Ok(self.data.assembly(assembly)?.values)
    }

    fn parent(&mut self, assembly: usize) -> Result<Option<usize>, Oo7Error> {
        Ok(self.data.assembly(assembly)?.parent)
    }

    fn module_of(&mut self, assembly: usize) -> Result<usize, Oo7Error> {
        Ok(self.data.assembly(assembly)?.module)
    }

    fn children(&mut self, assembly: usize, into: &mut Vec<usize>) -> Result<(), Oo7Error> {
        into.extend(&self.data.assembly(assembly)?.children);
        Ok(())
    }

    fn components(
        &mut self,
        assembly: usize,
        how: CompositeUse,
        into: &mut Vec<usize>,
    ) -> Result<(), Oo7Error> {
        into.extend(&self.data.assembly(assembly)?.components[kind_of(how)]);
        Ok(())
    }

    fn composite_design(&mut self, composite: usize) -> Result<DesignValues, Oo7Error> {
        Ok(self.data.composite(composite)?.design)
    }

    fn root_part(&mut self, composite: usize) -> Result<usize, Oo7Error> {
        let first = self.data.composite(composite)?.parts.first();
        first.copied().ok_or(damaged("a root part", composite))
    }

    fn parts(&mut self, composite: usize, into: &mut Vec<usize>) -> Result<(), Oo7Error> {
        into.extend(&self.data.composite(composite)?.parts);
        Ok(())
    }

    fn documentation(&mut self, composite: usize) -> Result<usize, Oo7Error> {
        Ok(composite)
    }

    fn users(&mut self, composite: usize, how: CompositeUse, into: &mut Vec<usize>) -> Result<(), Oo7Error> {
        into.extend(&self.data.composite(composite)?.users[kind_of(how)]);
        Ok(())
    }

    fn document_id(&mut self, document: usize) -> Result<u32, Oo7Error> {
        Ok(self.data.composite(document)?.design.id)
    }

    fn title(&mut self, document: usize) -> Result<[u8; 40], Oo7Error> {
        Ok(self.data.composite(document)?.title)
    }

    fn described(&mut self, document: usize) -> Result<usize, Oo7Error> {
        Ok(document)
    }

    fn text(&mut self, document: usize, read: &mut dyn FnMut(&[u8])) -> Result<(), Oo7Error> {
        read(&self.data.composite(document)?.text);
        Ok(())
    }

    fn part_values(&mut self, part: usize) -> Result<PartValues, Oo7Error> {
        Ok(self.data.part(part)?.values)
    }

    fn composite_of(&mut self, part: usize) -> Result<usize, Oo7Error> {
        Ok(self.data.part(part)?.composite)
    }

    fn targets(&mut self, part: usize, into: &mut Vec<(usize, u32)>) -> Result<(), Oo7Error> {
        for (to, _) in &self.data.part(part)?.outward {
            into.push((*to, self.data.part(*to)?.values.design.id));
        }
        Ok(())
    }

    fn links(
        &mut self,
        part: usize,
        direction: LinkDirection,
        into: &mut Vec<PartLink<usize>>,
    ) -> Result<(), Oo7Error> {
        let row = self.data.part(part)?;
        match direction {
            LinkDirection::Out => into.extend(row.outward.iter().map(|(to, connection)| PartLink {
                from: part,
                to: *to,
                connection: *connection,
            })),
            LinkDirection::In => into.extend(row.inward.iter().map(|(from, connection)| PartLink {
                from: *from,
                to: part,
                connection: *connection,
            })),
        }
        Ok(())
    }

    fn swap(&mut self, part: usize) -> Result<(), Oo7Error> {
        let PartValues { x, y, .. } = &mut self.change().part_mut(part)?.values;
        std::mem::swap(x, y);
        Ok(())
    }

    fn set_date(&mut self, part: usize, date: u32) -> Result<(), Oo7Error> {
        let data = self.change();
        let design = &mut data.part_mut(part)?.values.design;
        let (old, id) = (std::mem::replace(&mut design.date, date), design.id);
        data.by_date.remove(&(old, id));
        data.by_date.insert((date, id), part);
        Ok(())
    }

    fn set_text(&mut self, document: usize, text: &[u8]) -> Result<(), Oo7Error> {
        self.change().composite_mut(document)?.text = text.to_vec();
        Ok(())
    }

    fn add_module(&mut self, design: DesignValues, manual: &[u8]) -> Result<usize, Oo7Error> {
        let data = self.change();
        data.modules.push(ModuleRow {
            design,
            manual: manual.to_vec(),
            top: None,
        });
        Ok(data.modules.len() - 1)
    }

    fn add_assembly(
        &mut self,
        module: usize,
        parent: Option<usize>,
        values: AssemblyValues,
    ) -> Result<usize, Oo7Error> {
        let data = self.change();
        let at = data.assemblies.len();
        data.assemblies.push(AssemblyRow {
            values,
            module,
            parent,
            children: Vec::new(),
            components: Default::default(),
        });
        match parent {
            Some(parent) => data.assemblies[parent].children.push(at),
            None => data.modules[module].top = Some(at),
        }
        if values.base {
            data.base_by_id.insert(values.design.id, at);
        }
        Ok(at)
    }

    fn add_composite(
        &mut self,
        design: DesignValues,
        title: [u8; 40],
        text: &[u8],
    ) -> Result<usize, Oo7Error> {
        let data = self.change();
        let at = data.composites.len();
        data.composites.push(Some(CompositeRow {
            design,
            title,
            text: text.to_vec(),
            parts: Vec::new(),
            users: Default::default(),
        }));
        data.composite_by_id.insert(design.id, at);
        data.by_title.insert(title, at);
        Ok(at)
    }

    fn add_part(&mut self, composite: usize, values: PartValues) -> Result<usize, Oo7Error> {
        let data = self.change();
        let at = data.parts.len();
        data.composite_mut(composite)?.parts.push(at);
        data.parts.push(Some(PartRow {
            values,
            composite,
            outward: Vec::new(),
            inward: Vec::new(),
        }));
        data.part_by_id.insert(values.design.id, at);
        data.by_date.insert((values.design.date, values.design.id), at);
        Ok(at)
    }

    fn connect(&mut self, link: PartLink<usize>) -> Result<(), Oo7Error> {
        let data = self.change();
        data.part_mut(link.from)?.outward.push((link.to, link.connection));
        data.part_mut(link.to)?.inward.push((link.from, link.connection));
        Ok(())
    }

    fn add_use(&mut self, assembly: usize, how: CompositeUse, composite: usize) -> Result<(), Oo7Error> {
        let data = self.change();
        data.composite_mut(composite)?.users[kind_of(how)].push(assembly);
        let row = data.assemblies.get_mut(assembly);
        let row = row.ok_or(damaged("an assembly", assembly))?;
        row.components[kind_of(how)].push(composite);
        Ok(())
    }

    fn remove_composite(&mut self, composite: usize) -> Result<(), Oo7Error> {
        let data = self.change();
        let row = data.composites.get_mut(composite).and_then(Option::take);
        let row = row.ok_or(damaged("a composite", composite))?;
        for (kind, users) in row.users.iter().enumerate() {
            for user in users {
                data.assemblies[*user].components[kind].retain(|used| *used != composite);
            }
        }
        for at in row.parts {
            let part = data.parts.get_mut(at).and_then(Option::take);
            let design = part.ok_or(damaged("a part", at))?.values.design;
            data.part_by_id.remove(&design.id);
            data.by_date.remove(&(design.date, design.id));
        }
        data.composite_by_id.remove(&row.design.id);
        data.by_title.remove(&row.title);
        Ok(())
    }

    fn complete(&mut self) -> Result<(), Oo7Error> {
        // It is never opened again: it lives as long as its builder.
        Ok(())
    }

    fn commit(mut self) -> Result<(), Oo7Error> {
        self.changed = false;
        Ok(())
    }
}
