//! Structural changes: insertion and deletion of composites with everything they own.

use crate::error::Oo7Error;
use crate::generate::add_composite;
use crate::random::Oo7Random;
use crate::size::{NEW_COMPOSITES, NEW_USES, Oo7Parameters};
use crate::store::{CompositeUse, Oo7Transaction};

/// S1: adds composites after the last one, each used by random base assemblies.
pub(super) fn insert<W: Oo7Transaction>(
    open: &mut W,
    parameters: &Oo7Parameters,
    random: &mut Oo7Random,
) -> Result<u64, Oo7Error> {
    let mut id = parameters.all_composites() + 1;
    while open.composite(id)?.is_some() {
        id += 1;
    }
    for id in id..id + NEW_COMPOSITES {
        let composite = add_composite(open, parameters, random, id)?;
        for _ in 0..NEW_USES {
            let chosen = 1 + random.below(parameters.all_base_assemblies());
            let assembly = open.base_assembly(chosen)?.ok_or(Oo7Error::Missing {
                why: "a base assembly is not in its index",
            })?;
            open.add_use(assembly, CompositeUse::Private, composite)?;
        }
    }
    Ok(NEW_COMPOSITES.into())
}

/// S2: removes every composite that was inserted after the build.
pub(super) fn delete<W: Oo7Transaction>(open: &mut W, parameters: &Oo7Parameters) -> Result<u64, Oo7Error> {
    let mut count = 0;
    for id in parameters.all_composites() + 1.. {
        let Some(composite) = open.composite(id)? else {
            break;
        };
        open.remove_composite(composite)?;
        count += 1;
    }
    Ok(count)
}
