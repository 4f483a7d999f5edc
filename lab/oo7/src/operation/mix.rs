//! The mix of several users.
//!
//! Each client has its own module. An operation walks a random path from the module's top to a base assembly,
//! and visits the composites that the assembly uses privately, or those that it shares with others. It reads
//! them as t1 does, or writes them as t2b does. Percentages decide which.
//!
//! A [`MixStep`] is chosen first, in a transaction that ends, and performed afterwards in another. Between
//! the two the caller takes the locks of the modules that the step names, in order. Assemblies are only read,
//! so that the choice stays valid.

use serde::{Deserialize, Serialize};

use super::traversal::{GraphWalk, PartChange, PartSelection};
use crate::error::Oo7Error;
use crate::random::Oo7Random;
use crate::size::Oo7Parameters;
use crate::store::{CompositeUse, Oo7Transaction};

/// Percentages of a client's operations, and their number in a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperationMix {
    /// Percentage of reads of private composites.
    pub private_read: u32,
    /// Percentage of reads of shared ones.
    pub shared_read: u32,
    /// Percentage of writes of private ones.
    pub private_write: u32,
    /// Percentage of writes of shared ones.
    pub shared_write: u32,
    /// Number of operations in a transaction.
    pub operations: u32,
}

impl OperationMix {
    /// Whether the percentages add up to 100.
    pub fn is_whole(&self) -> bool {
        self.private_read + self.shared_read + self.private_write + self.shared_write == 100
            && self.operations > 0
    }
}

/// The next operation of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MixStep<C> {
    /// Whether it changes the parts.
    pub writes: bool,
    /// Kind of use of the visited composites.
    pub how: CompositeUse,
    /// The composites to visit.
    pub composites: Vec<C>,
    /// Modules that they belong to, sorted and without duplicates, for locking.
    pub modules: Vec<u32>,
}

/// One of several users.
#[derive(Clone, Debug)]
pub struct MixClient {
    mix: OperationMix,
    module: u32,
    parameters: Oo7Parameters,
    random: Oo7Random,
}

impl MixClient {
    /// The client of a module, numbered from 1. The percentages must add up to 100.
    pub fn new(mix: OperationMix, parameters: &Oo7Parameters, module: u32, seed: u64) -> MixClient {
        assert!(
            mix.is_whole(),
            "percentages make a hundred, and a transaction has operations"
        );
        MixClient {
            mix,
            module,
            parameters: *parameters,
            random: Oo7Random::new(seed.wrapping_mul(1_000_003).wrapping_add(module.into())),
        }
    }

    /// Chooses the operations of a transaction.
    ///
    /// # Errors
    ///
    /// Fails if the store does.
    pub fn choose<W: Oo7Transaction>(
        &mut self,
        open: &mut W,
    ) -> Result<Vec<MixStep<W::Composite>>, Oo7Error> {
        (0..self.mix.operations).map(|_| self.step(open)).collect()
    }

    fn step<W: Oo7Transaction>(&mut self, open: &mut W) -> Result<MixStep<W::Composite>, Oo7Error> {
        let drawn = self.random.below(100);
        let OperationMix {
            private_read,
            shared_read,
            private_write,
            ..
        } = self.mix;
        let (how, writes) = match drawn {
            drawn if drawn < private_read => (CompositeUse::Private, false),
            drawn if drawn < private_read + shared_read => (CompositeUse::Shared, false),
            drawn if drawn < private_read + shared_read + private_write => (CompositeUse::Private, true),
            _ => (CompositeUse::Shared, true),
        };
        let assembly = self.path(open)?;
        let mut composites = Vec::new();
        open.components(assembly, how, &mut composites)?;
        let mut modules = Vec::new();
        for composite in &composites {
            modules.push(self.parameters.module_of(open.composite_design(*composite)?.id));
        }
        modules.sort_unstable();
        modules.dedup();
        Ok(MixStep {
            writes,
            how,
            composites,
            modules,
        })
    }

    /// A random path down to a base assembly.
    fn path<W: Oo7Transaction>(&mut self, open: &mut W) -> Result<W::Assembly, Oo7Error> {
        let module = open.module(self.module)?.ok_or(Oo7Error::Missing {
            why: "a client's module is not in its index",
        })?;
        let mut assembly = open.top(module)?;
        let mut below = Vec::new();
        loop {
            below.clear();
            open.children(assembly, &mut below)?;
            match below.len() as u32 {
                0 => return Ok(assembly),
                count => assembly = below[self.random.below(count) as usize],
            }
        }
    }
}

/// Performs a step; returns the number of parts that it read or changed.
///
/// # Errors
///
/// Fails if the store does.
pub fn perform<W: Oo7Transaction>(open: &mut W, step: &MixStep<W::Composite>) -> Result<u64, Oo7Error> {
    let change = step
        .writes
        .then_some((PartSelection::Every, PartChange::Position, 1));
    let mut walk = GraphWalk::new(open);
    let mut count = 0;
    for composite in &step.composites {
        count += walk.graph(*composite, change)?;
    }
    Ok(count)
}
