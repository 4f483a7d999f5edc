//! Queries, and traversals that touch little.

use std::collections::HashSet;

use super::traversal::letters;
use crate::error::Oo7Error;
use crate::random::Oo7Random;
use crate::size::{LOOKUPS, Oo7Parameters};
use crate::store::{CompositeUse, Oo7Transaction, PartValues};
use crate::text::document_title;

/// Build date of the youngest hundredth of the parts.
pub(super) const YOUNGEST_HUNDREDTH: u32 = 1990;
/// Build date of the youngest tenth of the parts.
pub(super) const YOUNGEST_TENTH: u32 = 1900;

const NO_MODULE: Oo7Error = Oo7Error::Missing {
    why: "a module is not in its index",
};

/// T7: the assemblies above a part, each once.
pub(super) fn upward<W: Oo7Transaction>(open: &mut W, part: u32) -> Result<u64, Oo7Error> {
    let part = open.part(part)?.ok_or(Oo7Error::Missing {
        why: "a part is not in its index",
    })?;
    let composite = open.composite_of(part)?;
    let mut ahead = Vec::new();
    open.users(composite, CompositeUse::Private, &mut ahead)?;
    let mut seen = HashSet::new();
    while let Some(assembly) = ahead.pop() {
        if seen.insert(assembly) {
            ahead.extend(open.parent(assembly)?);
        }
    }
    Ok(seen.len() as u64)
}

/// T8: occurrences of the letter I in the manual.
pub(super) fn letters_in_manual<W: Oo7Transaction>(open: &mut W) -> Result<u64, Oo7Error> {
    let module = open.module(1)?.ok_or(NO_MODULE)?;
    let mut count = 0;
    open.manual(module, &mut |text| count += letters(text))?;
    Ok(count)
}

/// T9: whether the manual begins and ends with the same byte.
pub(super) fn manual_ends_alike<W: Oo7Transaction>(open: &mut W) -> Result<u64, Oo7Error> {
    let module = open.module(1)?.ok_or(NO_MODULE)?;
    let (first, last) = open.manual_ends(module)?;
    Ok(u64::from(first == last))
}

/// Q1: random parts by id.
pub(super) fn by_id<W: Oo7Transaction>(
    open: &mut W,
    parameters: &Oo7Parameters,
    random: &mut Oo7Random,
) -> Result<u64, Oo7Error> {
    let mut count = 0;
    for _ in 0..LOOKUPS {
        if let Some(part) = open.part(1 + random.below(parameters.all_parts()))? {
            touch(open, part)?;
            count += 1;
        }
    }
    Ok(count)
}

/// Q2, Q3: the parts built since a date.
pub(super) fn since<W: Oo7Transaction>(open: &mut W, first: u32) -> Result<u64, Oo7Error> {
    let mut parts = Vec::new();
    open.parts_dated(first, u32::MAX, &mut parts)?;
    touch_all(open, &parts)
}

/// Q4: from random titles to the base assemblies.
pub(super) fn by_title<W: Oo7Transaction>(
    open: &mut W,
    parameters: &Oo7Parameters,
    random: &mut Oo7Random,
) -> Result<u64, Oo7Error> {
    let mut users = Vec::new();
    for _ in 0..LOOKUPS {
        let title = document_title(1 + random.below(parameters.all_composites()));
        if let Some(document) = open.document_titled(&title)? {
            let composite = open.described(document)?;
            open.users(composite, CompositeUse::Private, &mut users)?;
        }
    }
    for user in &users {
        std::hint::black_box(open.assembly(*user)?);
    }
    Ok(users.len() as u64)
}

/// Q5: uses of a composite that is younger than the assembly.
pub(super) fn younger_components<W: Oo7Transaction>(open: &mut W) -> Result<u64, Oo7Error> {
    let mut assemblies = Vec::new();
    open.all_base_assemblies(&mut assemblies)?;
    let mut composites = Vec::new();
    let mut count = 0;
    for assembly in assemblies {
        let built = open.assembly(assembly)?.design.date;
        composites.clear();
        open.components(assembly, CompositeUse::Private, &mut composites)?;
        for composite in &composites {
            count += u64::from(open.composite_design(*composite)?.date > built);
        }
    }
    Ok(count)
}

/// Q6: assemblies that are older than an object below them.
pub(super) fn younger_below<W: Oo7Transaction>(
    open: &mut W,
    parameters: &Oo7Parameters,
) -> Result<u64, Oo7Error> {
    let mut count = 0;
    for module in 1..=parameters.modules {
        let module = open.module(module)?.ok_or(NO_MODULE)?;
        let top = open.top(module)?;
        youngest(open, top, &mut count)?;
    }
    Ok(count)
}

/// The date of the youngest composite below an assembly; counts the assemblies that are older. The recursion
/// is as deep as the tree.
fn youngest<W: Oo7Transaction>(
    open: &mut W,
    assembly: W::Assembly,
    count: &mut u64,
) -> Result<u32, Oo7Error> {
    let mut date = 0;
    let mut composites = Vec::new();
    open.components(assembly, CompositeUse::Private, &mut composites)?;
    for composite in composites {
        date = date.max(open.composite_design(composite)?.date);
    }
    let mut children = Vec::new();
    open.children(assembly, &mut children)?;
    for child in children {
        date = date.max(youngest(open, child, count)?);
    }
    *count += u64::from(date > open.assembly(assembly)?.design.date);
    Ok(date)
}

/// Q7: every part.
pub(super) fn scan<W: Oo7Transaction>(open: &mut W) -> Result<u64, Oo7Error> {
    let mut parts = Vec::new();
    open.all_parts(&mut parts)?;
    touch_all(open, &parts)
}

/// Q8: every part with its document.
pub(super) fn join<W: Oo7Transaction>(open: &mut W) -> Result<u64, Oo7Error> {
    let mut parts = Vec::new();
    open.all_parts(&mut parts)?;
    let mut count = 0;
    for part in parts {
        let PartValues { document, .. } = open.part_values(part)?;
        count += u64::from(open.document(document)?.is_some());
    }
    Ok(count)
}

fn touch<W: Oo7Transaction>(open: &mut W, part: W::Part) -> Result<(), Oo7Error> {
    std::hint::black_box(open.part_values(part)?);
    Ok(())
}

fn touch_all<W: Oo7Transaction>(open: &mut W, parts: &[W::Part]) -> Result<u64, Oo7Error> {
    for part in parts {
        touch(open, *part)?;
    }
    Ok(parts.len() as u64)
}
