//! The mix of several users.
//!
//! Each client has a module of its own. An operation walks a random path from the module's top to a base assembly and
//! goes through the composites that this one uses privately, or those that it shares with the others; it reads them as
//! t1 does, or writes them as t2b does. Which, is drawn by percentages.
//!
//! A [`Step`] is chosen first, in a transaction that ends, and done afterwards in another: between the two the caller
//! takes the locks of the modules that the step names, in their order. Assemblies are only read, so that what was chosen
//! is still there.

use serde::{Deserialize, Serialize};

use super::traversal::{Change, Walk, Which};
use crate::error::StoreError;
use crate::random::Random;
use crate::size::Parameters;
use crate::store::{Use, Work};

/// How often a client does what, in percent, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mix {
    /// Reads of private composites.
    pub private_read: u32,
    /// Reads of shared ones.
    pub shared_read: u32,
    /// Writes of private ones.
    pub private_write: u32,
    /// Writes of shared ones.
    pub shared_write: u32,
    /// Operations of a transaction.
    pub operations: u32,
}

impl Mix {
    /// Whether the percentages are a whole.
    pub fn is_whole(&self) -> bool {
        self.private_read + self.shared_read + self.private_write + self.shared_write == 100
            && self.operations > 0
    }
}

/// What a client does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<C> {
    /// Whether it changes the parts.
    pub writes: bool,
    /// Which composites of the assembly it goes through.
    pub how: Use,
    /// They.
    pub composites: Vec<C>,
    /// The modules that they belong to, each once, in order: what is to be locked.
    pub modules: Vec<u32>,
}

/// One of several users.
#[derive(Clone, Debug)]
pub struct Client {
    mix: Mix,
    module: u32,
    parameters: Parameters,
    random: Random,
}

impl Client {
    /// The client of a module, counted from 1. The percentages must be a whole.
    pub fn new(mix: Mix, parameters: &Parameters, module: u32, seed: u64) -> Client {
        assert!(
            mix.is_whole(),
            "percentages make a hundred, and a transaction has operations"
        );
        Client {
            mix,
            module,
            parameters: *parameters,
            random: Random::new(seed.wrapping_mul(1_000_003).wrapping_add(module.into())),
        }
    }

    /// Chooses the operations of a transaction.
    pub fn choose<W: Work>(&mut self, open: &mut W) -> Result<Vec<Step<W::Composite>>, StoreError> {
        (0..self.mix.operations).map(|_| self.step(open)).collect()
    }

    fn step<W: Work>(&mut self, open: &mut W) -> Result<Step<W::Composite>, StoreError> {
        let drawn = self.random.below(100);
        let Mix {
            private_read,
            shared_read,
            private_write,
            ..
        } = self.mix;
        let (how, writes) = match drawn {
            drawn if drawn < private_read => (Use::Private, false),
            drawn if drawn < private_read + shared_read => (Use::Shared, false),
            drawn if drawn < private_read + shared_read + private_write => (Use::Private, true),
            _ => (Use::Shared, true),
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
        Ok(Step {
            writes,
            how,
            composites,
            modules,
        })
    }

    /// A random way down to a base assembly.
    fn path<W: Work>(&mut self, open: &mut W) -> Result<W::Assembly, StoreError> {
        let module = open.module(self.module)?.ok_or(StoreError::Missing {
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

/// Does a step; counts the parts that it read or changed.
pub fn perform<W: Work>(open: &mut W, step: &Step<W::Composite>) -> Result<u64, StoreError> {
    let change = step.writes.then_some((Which::Every, Change::Place, 1));
    let mut walk = Walk::new(open);
    let mut count = 0;
    for composite in &step.composites {
        count += walk.graph(*composite, change)?;
    }
    Ok(count)
}
