//! An audit: every object, every reference both ways, every index entry; and a digest by which two stores, or
//! two moments, are compared.
//!
//! The digest covers values, and references as ids, in the order of ids. It does not depend on the objects'
//! addresses, nor on the order in a bag.

use std::collections::HashMap;

use crate::error::Oo7Error;
use crate::size::Oo7Parameters;
use crate::store::{
    CompositeUse, ConnectionValues, DesignValues, INDEXES, LinkDirection, ObjectRef, Oo7Index,
    Oo7Transaction, PartLink, PartValues,
};

/// Contents of a database that an audit found consistent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatabaseAudit {
    /// Number of modules.
    pub modules: u64,
    /// Number of complex assemblies.
    pub complex: u64,
    /// Number of base assemblies.
    pub base: u64,
    /// Number of composites, each with its document.
    pub composites: u64,
    /// Number of atomic parts.
    pub parts: u64,
    /// Number of connections.
    pub connections: u64,
    /// Number of uses of composites by base assemblies: private ones, shared ones.
    pub uses: [u64; 2],
    /// Number of composites with a private use.
    pub used: u64,
    /// Digest of the whole contents.
    pub digest: u64,
}

/// Errors of an audit.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The store failed.
    #[error("{0}")]
    Store(#[from] Oo7Error),
    /// The database contradicts itself.
    #[error("the database is inconsistent: {what} (object {id})")]
    Fault {
        /// The rule that does not hold.
        what: &'static str,
        /// Id of an object that breaks it.
        id: u32,
    },
}

/// Audits the whole database.
///
/// In a database with [`crate::DateIndex::One`] most parts are missing in the date index; pass `false` for it
/// there.
///
/// # Errors
///
/// Fails if the store does, or with the first contradiction.
pub fn audit<W: Oo7Transaction>(
    open: &mut W,
    parameters: &Oo7Parameters,
    all_dates: bool,
) -> Result<DatabaseAudit, AuditError> {
    let mut auditor = Auditor {
        open,
        audit: DatabaseAudit::default(),
        digest: AuditDigest(0xcbf2_9ce4_8422_2325),
        uses: [HashMap::new(), HashMap::new()],
        all_dates,
    };
    for id in 1..=parameters.modules {
        auditor.module(id)?;
    }
    auditor.composites()?;
    auditor.indexes()?;
    auditor.audit.digest = auditor.digest.0;
    Ok(auditor.audit)
}

/// Uses that assemblies have named and composites have not confirmed yet.
type Uses<W> = HashMap<(<W as Oo7Transaction>::Assembly, <W as Oo7Transaction>::Composite), u64>;

struct Auditor<'w, W: Oo7Transaction> {
    open: &'w mut W,
    audit: DatabaseAudit,
    digest: AuditDigest,
    uses: [Uses<W>; 2],
    all_dates: bool,
}

impl<W: Oo7Transaction> Auditor<'_, W> {
    fn module(&mut self, id: u32) -> Result<(), AuditError> {
        let found = self.open.module(id)?;
        let module = found.ok_or(fault("a module is not in its index", id))?;
        let design = self.open.module_design(module)?;
        holds(design.id == id, "a module's index entry leads to another", id)?;
        self.design(design);
        let digest = &mut self.digest;
        self.open.manual(module, &mut |text| digest.bytes(text))?;
        self.audit.modules += 1;
        let top = self.open.top(module)?;
        let above = self.open.parent(top)?;
        holds(above.is_none(), "a top assembly has a parent", id)?;
        self.assembly(module, top)
    }

    /// The recursion is as deep as the tree.
    fn assembly(&mut self, module: W::Module, assembly: W::Assembly) -> Result<(), AuditError> {
        let values = self.open.assembly(assembly)?;
        let id = values.design.id;
        self.design(values.design);
        let owner = self.open.module_of(assembly)?;
        holds(owner == module, "an assembly belongs to another module", id)?;
        if values.base {
            self.audit.base += 1;
            let entry = self.open.base_assembly(id)?;
            holds(entry == Some(assembly), "a base assembly is not in its index", id)?;
            return self.components(assembly);
        }
        self.audit.complex += 1;
        let mut children = Vec::new();
        self.open.children(assembly, &mut children)?;
        holds(
            !children.is_empty(),
            "a complex assembly has nothing below it",
            id,
        )?;
        for child in children {
            let parent = self.open.parent(child)?;
            holds(parent == Some(assembly), "an assembly names another parent", id)?;
            self.assembly(module, child)?;
        }
        Ok(())
    }

    fn components(&mut self, assembly: W::Assembly) -> Result<(), AuditError> {
        for (place, how) in [CompositeUse::Private, CompositeUse::Shared]
            .into_iter()
            .enumerate()
        {
            let mut composites = Vec::new();
            self.open.components(assembly, how, &mut composites)?;
            let mut ids = Vec::new();
            for composite in composites {
                ids.push(self.open.composite_design(composite)?.id);
                *self.uses[place].entry((assembly, composite)).or_default() += 1;
                self.audit.uses[place] += 1;
            }
            ids.sort_unstable();
            self.digest.numbers(&ids);
        }
        Ok(())
    }

    fn composites(&mut self) -> Result<(), AuditError> {
        let mut composites = Vec::new();
        self.open.all_composites(&mut composites)?;
        for composite in composites {
            self.composite(composite)?;
        }
        let left = self.uses.iter().map(HashMap::len).sum::<usize>();
        holds(
            left == 0,
            "a base assembly uses a composite that does not know",
            0,
        )
    }

    fn composite(&mut self, composite: W::Composite) -> Result<(), AuditError> {
        let design = self.open.composite_design(composite)?;
        let id = design.id;
        self.design(design);
        let entry = self.open.composite(id)?;
        holds(
            entry == Some(composite),
            "a composite's index entry leads to another",
            id,
        )?;
        self.audit.composites += 1;
        for (place, how) in [CompositeUse::Private, CompositeUse::Shared]
            .into_iter()
            .enumerate()
        {
            let mut users = Vec::new();
            self.open.users(composite, how, &mut users)?;
            self.audit.used += u64::from(how == CompositeUse::Private && !users.is_empty());
            for user in users {
                let known = self.uses[place].get_mut(&(user, composite));
                let known = known.ok_or(fault("a composite names a user that does not use it", id))?;
                *known -= 1;
                if *known == 0 {
                    self.uses[place].remove(&(user, composite));
                }
            }
        }
        self.document(composite, id)?;
        self.parts(composite, id)
    }

    fn document(&mut self, composite: W::Composite, id: u32) -> Result<(), AuditError> {
        let document = self.open.documentation(composite)?;
        let described = self.open.described(document)?;
        holds(
            described == composite,
            "a document describes another composite",
            id,
        )?;
        let by_id = self.open.document(id)?;
        let known = self.open.document_id(document)?;
        holds(
            by_id == Some(document) && known == id,
            "a document is not in its index",
            id,
        )?;
        let title = self.open.title(document)?;
        let titled = self.open.document_titled(&title)?;
        holds(
            titled == Some(document),
            "a document is not found by its title",
            id,
        )?;
        self.digest.bytes(&title);
        let digest = &mut self.digest;
        self.open.text(document, &mut |text| digest.bytes(text))?;
        Ok(())
    }

    fn parts(&mut self, composite: W::Composite, id: u32) -> Result<(), AuditError> {
        let mut parts = Vec::new();
        self.open.parts(composite, &mut parts)?;
        let mut by_id = Vec::new();
        for part in parts {
            by_id.push((self.open.part_values(part)?.design.id, part));
        }
        by_id.sort_by_key(|(id, _)| *id);
        let root = self.open.root_part(composite)?;
        let first = by_id.first().map(|(_, part)| *part);
        holds(
            first == Some(root),
            "a composite's root is not its first part",
            id,
        )?;
        let mut links = CompositeLinks::<W>::default();
        for (_, part) in &by_id {
            self.part(composite, *part, &mut links)?;
        }
        let ids: HashMap<W::Part, u32> = by_id.iter().map(|(id, part)| (*part, *id)).collect();
        let ends = links_by_id(&links.outward, &ids);
        let ends = ends.ok_or(fault("a connection leaves its composite", id))?;
        let known = links_by_id(&links.inward, &ids);
        holds(
            known.as_ref() == Some(&ends),
            "a connection is known at one end only",
            id,
        )?;
        ends.iter().for_each(|end| self.digest.numbers(end));
        self.audit.connections += ends.len() as u64;
        Ok(())
    }

    fn part(
        &mut self,
        composite: W::Composite,
        part: W::Part,
        links: &mut CompositeLinks<W>,
    ) -> Result<(), AuditError> {
        let PartValues {
            design,
            x,
            y,
            document,
        } = self.open.part_values(part)?;
        let id = design.id;
        self.design(design);
        self.digest.numbers(&[x, y, document]);
        let owner = self.open.composite_of(part)?;
        holds(owner == composite, "a part belongs to another composite", id)?;
        let entry = self.open.part(id)?;
        holds(entry == Some(part), "a part is not in its index", id)?;
        let (out, inward) = (links.outward.len(), links.inward.len());
        self.open.links(part, LinkDirection::Out, &mut links.outward)?;
        self.open.links(part, LinkDirection::In, &mut links.inward)?;
        let begins = links.outward[out..].iter().all(|link| link.from == part);
        let ends = links.inward[inward..].iter().all(|link| link.to == part);
        holds(begins && ends, "a part has a connection of another", id)?;
        self.audit.parts += 1;
        Ok(())
    }

    /// Checks the date index, and that no index has more entries than the walk found objects.
    fn indexes(&mut self) -> Result<(), AuditError> {
        if self.all_dates {
            let mut dated = Vec::new();
            self.open.parts_dated(0, u32::MAX, &mut dated)?;
            let mut last = (0, 0);
            for part in dated {
                let DesignValues { id, date, .. } = self.open.part_values(part)?.design;
                holds(last < (date, id), "the index of dates is out of order", id)?;
                let entry = self.open.part(id)?;
                holds(
                    entry == Some(part),
                    "the index of dates has a part that is gone",
                    id,
                )?;
                last = (date, id);
            }
        }
        for index in INDEXES {
            let entries = self.open.entries(index)?;
            let expected = match index {
                Oo7Index::Module => self.audit.modules,
                Oo7Index::Base => self.audit.base,
                Oo7Index::Composite | Oo7Index::Document | Oo7Index::Title => self.audit.composites,
                Oo7Index::Part => self.audit.parts,
                Oo7Index::Date if self.all_dates => self.audit.parts,
                Oo7Index::Date => entries,
            };
            holds(
                entries == expected,
                "an index has entries for what is not there",
                0,
            )?;
        }
        Ok(())
    }

    fn design(&mut self, design: DesignValues) {
        self.digest.numbers(&[design.id, design.kind, design.date]);
    }
}

/// The connections of a composite, as known where they begin and where they end.
struct CompositeLinks<W: Oo7Transaction> {
    outward: Vec<PartLink<W::Part>>,
    inward: Vec<PartLink<W::Part>>,
}

impl<W: Oo7Transaction> Default for CompositeLinks<W> {
    fn default() -> CompositeLinks<W> {
        CompositeLinks {
            outward: Vec::new(),
            inward: Vec::new(),
        }
    }
}

/// Connections as sorted ids; `None` if one ends in another composite.
fn links_by_id<P: ObjectRef>(links: &[PartLink<P>], ids: &HashMap<P, u32>) -> Option<Vec<[u32; 4]>> {
    let numbers = links.iter().map(|link| {
        let ConnectionValues { kind, length } = link.connection;
        Some([*ids.get(&link.from)?, *ids.get(&link.to)?, kind, length])
    });
    let mut numbers: Vec<[u32; 4]> = numbers.collect::<Option<_>>()?;
    numbers.sort_unstable();
    Some(numbers)
}

fn fault(what: &'static str, id: u32) -> AuditError {
    AuditError::Fault { what, id }
}

fn holds(condition: bool, what: &'static str, id: u32) -> Result<(), AuditError> {
    match condition {
        true => Ok(()),
        false => Err(fault(what, id)),
    }
}

/// FNV-1a, which is no protection against malice; none is expected here.
struct AuditDigest(u64);

impl AuditDigest {
    fn bytes(&mut self, bytes: &[u8]) {
        self.0 = bytes.iter().fold(self.0, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
    }

    fn numbers(&mut self, numbers: &[u32]) {
        for number in numbers {
            self.bytes(&number.to_le_bytes());
        }
    }
}
