//! Builds a database: the order of the random draws is a part of the benchmark.
//!
//! The seed is set once. Modules come first, each with its tree of assemblies, depth first: type, date, then
//! for a base assembly the ids of its private composites (from its module's) and of its shared ones (from
//! all), which are only remembered. Then come composites in the order of their ids: type, date, the parts
//! (type, date, x, y, document), then for each part its connections (the first to the next part, the others
//! to any part of the composite; type, length); last, the base assemblies that chose it.

use crate::error::Oo7Error;
use crate::random::Oo7Random;
use crate::size::{
    ASSEMBLIES_PER_ASSEMBLY, COMPOSITES_PER_ASSEMBLY, COORDINATE_MAX, DATES, OLD_DATES, Oo7Parameters, TYPES,
    YOUNG_DATES, YOUNG_EVERY,
};
use crate::store::{
    AssemblyValues, CompositeUse, ConnectionValues, DesignValues, Oo7Store, Oo7Transaction, PartLink,
    PartValues,
};
use crate::text;

/// The seed of every database.
pub const SEED: u64 = 1;

/// Builds the parameters' database in an empty store, with one transaction for each module and each
/// composite, so that none is large.
///
/// # Errors
///
/// Fails if the store does.
pub fn build<S: Oo7Store>(store: &S, parameters: &Oo7Parameters) -> Result<(), Oo7Error> {
    let mut trees = AssemblyTrees {
        parameters,
        random: Oo7Random::new(SEED),
        complex: 0,
        base: 0,
        uses: Vec::new(),
    };
    for id in 1..=parameters.modules {
        let mut open = store.begin()?;
        trees.module(&mut open, id)?;
        open.commit()?;
    }
    let AssemblyTrees {
        mut random, mut uses, ..
    } = trees;
    // A stable sort: uses of one composite stay in the order of the assemblies.
    uses.sort_by_key(|chosen| chosen.composite);
    let mut uses = uses.as_slice();
    for id in 1..=parameters.all_composites() {
        let mut open = store.begin()?;
        let composite = add_composite(&mut open, parameters, &mut random, id)?;
        let (own, others) = uses.split_at(uses.partition_point(|chosen| chosen.composite <= id));
        for chosen in own {
            let assembly = open.base_assembly(chosen.base)?.ok_or(Oo7Error::Missing {
                why: "a base assembly is not in its index",
            })?;
            open.add_use(assembly, chosen.how, composite)?;
        }
        uses = others;
        open.commit()?;
    }
    let mut open = store.begin()?;
    open.complete()?;
    open.commit()
}

/// The trees of assemblies under construction.
struct AssemblyTrees<'p> {
    parameters: &'p Oo7Parameters,
    random: Oo7Random,
    /// Number of assemblies so far, of each kind.
    complex: u32,
    base: u32,
    uses: Vec<PendingUse>,
}

/// A base assembly's choice of a composite that does not exist yet.
struct PendingUse {
    base: u32,
    how: CompositeUse,
    composite: u32,
}

impl AssemblyTrees<'_> {
    fn module<W: Oo7Transaction>(&mut self, open: &mut W, id: u32) -> Result<(), Oo7Error> {
        let design = random_design(&mut self.random, id, DATES);
        let manual = text::manual(id, self.parameters.manual_bytes);
        let module = open.add_module(design, &manual)?;
        self.assembly(open, (module, id), None, 1)
    }

    fn assembly<W: Oo7Transaction>(
        &mut self,
        open: &mut W,
        module: (W::Module, u32),
        parent: Option<W::Assembly>,
        level: u32,
    ) -> Result<(), Oo7Error> {
        let base = level == self.parameters.levels;
        let count = if base { &mut self.base } else { &mut self.complex };
        *count += 1;
        let design = random_design(&mut self.random, *count, DATES);
        let assembly = open.add_assembly(module.0, parent, AssemblyValues { design, base })?;
        if base {
            self.choose(module.1);
            return Ok(());
        }
        for _ in 0..ASSEMBLIES_PER_ASSEMBLY {
            self.assembly(open, module, Some(assembly), level + 1)?;
        }
        Ok(())
    }

    fn choose(&mut self, module: u32) {
        let Oo7Parameters { composites, .. } = *self.parameters;
        let first = (module - 1) * composites;
        for (how, before, among) in [
            (CompositeUse::Private, first, composites),
            (CompositeUse::Shared, 0, self.parameters.all_composites()),
        ] {
            for _ in 0..COMPOSITES_PER_ASSEMBLY {
                self.uses.push(PendingUse {
                    base: self.base,
                    how,
                    composite: before + 1 + self.random.below(among),
                });
            }
        }
    }
}

/// Adds the composite with this id and everything that it owns. Its id determines those of its parts.
pub(crate) fn add_composite<W: Oo7Transaction>(
    open: &mut W,
    parameters: &Oo7Parameters,
    random: &mut Oo7Random,
    id: u32,
) -> Result<W::Composite, Oo7Error> {
    let young = id.is_multiple_of(YOUNG_EVERY);
    let design = random_design(random, id, if young { YOUNG_DATES } else { OLD_DATES });
    let text = text::document(id, parameters.document_bytes);
    let composite = open.add_composite(design, text::document_title(id), &text)?;
    let mut parts = Vec::with_capacity(parameters.parts as usize);
    for number in 1..=parameters.parts {
        let part = PartValues {
            design: random_design(random, (id - 1) * parameters.parts + number, DATES),
            x: random.below(COORDINATE_MAX),
            y: random.below(COORDINATE_MAX),
            document: 1 + random.below(parameters.all_composites()),
        };
        parts.push(open.add_part(composite, part)?);
    }
    for (number, from) in parts.iter().enumerate() {
        for connection in 0..parameters.connections {
            let to = match connection {
                // The first connections form a ring, so that every part can be reached.
                0 => (number + 1) % parts.len(),
                _ => random.below(parameters.parts) as usize,
            };
            open.connect(PartLink {
                from: *from,
                to: parts[to],
                connection: ConnectionValues {
                    kind: random.below(TYPES),
                    length: random.below(COORDINATE_MAX),
                },
            })?;
        }
    }
    Ok(composite)
}

fn random_design(random: &mut Oo7Random, id: u32, dates: (u32, u32)) -> DesignValues {
    let kind = random.below(TYPES);
    let date = random.between(dates.0, dates.1);
    DesignValues { id, kind, date }
}
