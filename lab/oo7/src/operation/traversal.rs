//! Traversals: from a module's top assembly down to composites, and through their graphs of parts.

use crate::error::Oo7Error;
use crate::store::{CompositeUse, Oo7Transaction, PartValues};

/// Selection of a composite's parts to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartSelection {
    Root,
    Every,
}

/// Change of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartChange {
    /// x and y are exchanged.
    Position,
    /// The build date, which is indexed, moves by a year.
    Date,
}

/// A walk through the database, whose buffers its steps reuse.
pub(super) struct GraphWalk<'w, W: Oo7Transaction> {
    open: &'w mut W,
    visited: VisitedParts,
    /// Parts to be visited, with their ids.
    unvisited: Vec<(W::Part, u32)>,
}

impl<'w, W: Oo7Transaction> GraphWalk<'w, W> {
    pub(super) fn new(open: &'w mut W) -> GraphWalk<'w, W> {
        GraphWalk {
            open,
            visited: VisitedParts::default(),
            unvisited: Vec::new(),
        }
    }

    /// Visits every part of every private composite as often as it is used. Returns the number of changes, or
    /// of visits if nothing is to be changed.
    pub(super) fn parts(
        &mut self,
        module: u32,
        change: Option<(PartSelection, PartChange, u32)>,
    ) -> Result<u64, Oo7Error> {
        let mut count = 0;
        for composite in self.composites(module)? {
            count += self.graph(composite, change)?;
        }
        Ok(count)
    }

    /// Visits a composite's graph, depth first from its root part.
    pub(super) fn graph(
        &mut self,
        composite: W::Composite,
        change: Option<(PartSelection, PartChange, u32)>,
    ) -> Result<u64, Oo7Error> {
        let root = self.open.root_part(composite)?;
        let PartValues { design, .. } = self.open.part_values(root)?;
        self.visited.forget();
        self.unvisited.clear();
        self.unvisited.push((root, design.id));
        let mut count = 0;
        while let Some((part, id)) = self.unvisited.pop() {
            if !self.visited.mark(id) {
                continue;
            }
            let chosen = change.filter(|(which, ..)| *which == PartSelection::Every || part == root);
            match (change, chosen) {
                (None, _) => count += 1,
                (Some(_), None) => (),
                (Some(_), Some((_, change, times))) => {
                    for _ in 0..times {
                        self.change(part, change)?;
                    }
                    count += u64::from(times);
                }
            }
            // The first connection is followed first.
            let first = self.unvisited.len();
            self.open.targets(part, &mut self.unvisited)?;
            self.unvisited[first..].reverse();
        }
        Ok(count)
    }

    /// Visits the root part of each composite and changes its position `changes` times. Returns the number of
    /// changes, or of visits if there are none.
    pub(super) fn roots(&mut self, changes: u32) -> Result<u64, Oo7Error> {
        let mut count = 0;
        for composite in self.composites(1)? {
            let root = self.open.root_part(composite)?;
            std::hint::black_box(self.open.part_values(root)?);
            for _ in 0..changes {
                self.open.swap(root)?;
            }
            count += u64::from(changes.max(1));
        }
        Ok(count)
    }

    /// Counts occurrences of the letter I in the documents of all composites.
    pub(super) fn documents(&mut self) -> Result<u64, Oo7Error> {
        let mut count = 0;
        for composite in self.composites(1)? {
            let document = self.open.documentation(composite)?;
            self.open.text(document, &mut |text| count += letters(text))?;
        }
        Ok(count)
    }

    /// Replaces the beginning of documents; returns the number of those that began with `old`.
    pub(super) fn replace(&mut self, old: &[u8], new: &[u8]) -> Result<u64, Oo7Error> {
        let mut count = 0;
        let mut replaced = Vec::new();
        for composite in self.composites(1)? {
            let document = self.open.documentation(composite)?;
            replaced.clear();
            self.open.text(document, &mut |text| {
                if let Some(rest) = text.strip_prefix(old) {
                    replaced.extend_from_slice(new);
                    replaced.extend_from_slice(rest);
                }
            })?;
            if !replaced.is_empty() {
                self.open.set_text(document, &replaced)?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// The private composites of a module, depth first, each as often as it is used.
    fn composites(&mut self, module: u32) -> Result<Vec<W::Composite>, Oo7Error> {
        let module = self.open.module(module)?.ok_or(Oo7Error::Missing {
            why: "a module is not in its index",
        })?;
        let mut composites = Vec::new();
        let mut ahead = vec![self.open.top(module)?];
        while let Some(assembly) = ahead.pop() {
            if self.open.assembly(assembly)?.base {
                self.open
                    .components(assembly, CompositeUse::Private, &mut composites)?;
            } else {
                let first = ahead.len();
                self.open.children(assembly, &mut ahead)?;
                ahead[first..].reverse();
            }
        }
        Ok(composites)
    }

    fn change(&mut self, part: W::Part, change: PartChange) -> Result<(), Oo7Error> {
        match change {
            PartChange::Position => self.open.swap(part),
            PartChange::Date => {
                let date = self.open.part_values(part)?.design.date;
                let moved = if date % 2 == 1 { date + 1 } else { date - 1 };
                self.open.set_date(part, moved)
            }
        }
    }
}

/// Number of occurrences of the letter I in a text.
pub(super) fn letters(text: &[u8]) -> u64 {
    text.iter().filter(|byte| **byte == b'I').count() as u64
}

/// Parts that a walk through one composite has visited: for each id the number of the last walk that visited
/// it. Clearing costs nothing.
#[derive(Debug, Default)]
struct VisitedParts {
    walk: u32,
    last: Vec<u32>,
}

impl VisitedParts {
    fn forget(&mut self) {
        self.walk += 1;
    }

    /// `false` if it was marked before.
    fn mark(&mut self, id: u32) -> bool {
        let place = id as usize;
        if place >= self.last.len() {
            self.last.resize(place + 1, 0);
        }
        std::mem::replace(&mut self.last[place], self.walk) != self.walk
    }
}
