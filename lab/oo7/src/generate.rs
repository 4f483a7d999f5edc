//! Builds a database: the order of the random draws is a part of the benchmark.
//!
//! Seeded once. Modules first, each with its tree of assemblies, depth first: type, date, then for a base assembly
//! the ids of its private composites (out of its module's) and of its shared ones (out of all), which are only
//! remembered. Then composites in the order of their ids: type, date, the parts (type, date, x, y, document), then for
//! each part its connections (the first to the next part, the others to any part of the composite; type, length);
//! last, the base assemblies that chose it.

use crate::error::StoreError;
use crate::random::Random;
use crate::size::{
    ASSEMBLIES_PER_ASSEMBLY, COMPOSITES_PER_ASSEMBLY, DATES, EXTENT, OLD_DATES, Parameters, TYPES,
    YOUNG_DATES, YOUNG_EVERY,
};
use crate::store::{Assembly, Connection, Design, Link, Part, Store, Use, Work};
use crate::text;

/// The seed of every database.
pub const SEED: u64 = 1;

/// Builds the database of the parameters in an empty store. One transaction a module, one a composite, so that none
/// is large.
pub fn build<S: Store>(store: &S, parameters: &Parameters) -> Result<(), StoreError> {
    let mut trees = Trees {
        parameters,
        random: Random::new(SEED),
        complex: 0,
        base: 0,
        uses: Vec::new(),
    };
    for id in 1..=parameters.modules {
        let mut open = store.begin()?;
        trees.module(&mut open, id)?;
        open.commit()?;
    }
    let Trees {
        mut random, mut uses, ..
    } = trees;
    // Stable: uses of one composite stay in the order of the assemblies.
    uses.sort_by_key(|chosen| chosen.composite);
    let mut uses = uses.as_slice();
    for id in 1..=parameters.all_composites() {
        let mut open = store.begin()?;
        let composite = add_composite(&mut open, parameters, &mut random, id)?;
        let (own, others) = uses.split_at(uses.partition_point(|chosen| chosen.composite <= id));
        for chosen in own {
            let assembly = open.base_assembly(chosen.base)?.ok_or(StoreError::Missing {
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

/// The trees of assemblies, while they are built.
struct Trees<'p> {
    parameters: &'p Parameters,
    random: Random,
    /// Assemblies so far, of each kind.
    complex: u32,
    base: u32,
    uses: Vec<Chosen>,
}

/// A base assembly chose a composite that is not there yet.
struct Chosen {
    base: u32,
    how: Use,
    composite: u32,
}

impl Trees<'_> {
    fn module<W: Work>(&mut self, open: &mut W, id: u32) -> Result<(), StoreError> {
        let design = drawn(&mut self.random, id, DATES);
        let manual = text::manual(id, self.parameters.manual_bytes);
        let module = open.add_module(design, &manual)?;
        self.assembly(open, (module, id), None, 1)
    }

    fn assembly<W: Work>(
        &mut self,
        open: &mut W,
        module: (W::Module, u32),
        parent: Option<W::Assembly>,
        level: u32,
    ) -> Result<(), StoreError> {
        let base = level == self.parameters.levels;
        let count = if base { &mut self.base } else { &mut self.complex };
        *count += 1;
        let design = drawn(&mut self.random, *count, DATES);
        let assembly = open.add_assembly(module.0, parent, Assembly { design, base })?;
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
        let Parameters { composites, .. } = *self.parameters;
        let first = (module - 1) * composites;
        for (how, before, among) in [
            (Use::Private, first, composites),
            (Use::Shared, 0, self.parameters.all_composites()),
        ] {
            for _ in 0..COMPOSITES_PER_ASSEMBLY {
                self.uses.push(Chosen {
                    base: self.base,
                    how,
                    composite: before + 1 + self.random.below(among),
                });
            }
        }
    }
}

/// Adds the composite with this id, with all that it owns. The ids of its parts follow from its own.
pub(crate) fn add_composite<W: Work>(
    open: &mut W,
    parameters: &Parameters,
    random: &mut Random,
    id: u32,
) -> Result<W::Composite, StoreError> {
    let young = id.is_multiple_of(YOUNG_EVERY);
    let design = drawn(random, id, if young { YOUNG_DATES } else { OLD_DATES });
    let text = text::document(id, parameters.document_bytes);
    let composite = open.add_composite(design, text::document_title(id), &text)?;
    let mut parts = Vec::with_capacity(parameters.parts as usize);
    for number in 1..=parameters.parts {
        let part = Part {
            design: drawn(random, (id - 1) * parameters.parts + number, DATES),
            x: random.below(EXTENT),
            y: random.below(EXTENT),
            document: 1 + random.below(parameters.all_composites()),
        };
        parts.push(open.add_part(composite, part)?);
    }
    for (number, from) in parts.iter().enumerate() {
        for connection in 0..parameters.connections {
            let to = match connection {
                // A ring, so that every part can be reached.
                0 => (number + 1) % parts.len(),
                _ => random.below(parameters.parts) as usize,
            };
            open.connect(Link {
                from: *from,
                to: parts[to],
                connection: Connection {
                    kind: random.below(TYPES),
                    length: random.below(EXTENT),
                },
            })?;
        }
    }
    Ok(composite)
}

fn drawn(random: &mut Random, id: u32, dates: (u32, u32)) -> Design {
    let kind = random.below(TYPES);
    let date = random.between(dates.0, dates.1);
    Design { id, kind, date }
}
