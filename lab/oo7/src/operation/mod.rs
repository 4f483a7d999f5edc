//! The operations. Each takes an open transaction and returns a count, which must be the same on every store.
//!
//! Random choices are drawn from the given seed, so that a repetition is the same.

pub mod mix;
mod query;
mod structure;
mod traversal;

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use crate::error::Oo7Error;
use crate::random::Oo7Random;
use crate::size::{Oo7Parameters, REPEATS};
use crate::store::Oo7Transaction;
use traversal::{GraphWalk, PartChange, PartSelection};

macro_rules! operations {
    ($($(#[$doc:meta])* $variant:ident $name:literal $what:literal,)*) => {
        /// An operation of the benchmark, by its name in the first driver.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Operation {
            $(#[doc = $what] $variant,)*
        }

        impl Operation {
            /// Every operation.
            pub const ALL: &[Operation] = &[$(Operation::$variant,)*];

            /// Short name.
            pub fn name(self) -> &'static str {
                match self { $(Operation::$variant => $name,)* }
            }

            /// Description in one line.
            pub fn what(self) -> &'static str {
                match self { $(Operation::$variant => $what,)* }
            }
        }
    };
}

operations! {
    T1 "t1" "Walks the assemblies, and in each private composite all parts.",
    T2a "t2a" "As t1, exchanging x and y of each composite's root part.",
    T2b "t2b" "As t1, exchanging x and y of every part.",
    T2c "t2c" "As t2b, four times each part.",
    T3a "t3a" "As t2a, but moves the build date by one, and the index with it.",
    T3b "t3b" "As t2b, but moves the build date by one, and the index with it.",
    T3c "t3c" "As t2c, but moves the build date by one, and the index with it.",
    T4 "t4" "Walks the composites and counts the letter I in each document.",
    T5Do "t5do" "Walks the composites and replaces \"I am\" at each document's beginning by \"This is\".",
    T5Undo "t5undo" "Takes t5do back.",
    T6 "t6" "Walks the composites and looks at the root part of each.",
    T7 "t7" "From a random part up to every assembly that its composite belongs to.",
    T8 "t8" "Counts the letter I in the manual.",
    T9 "t9" "Compares the manual's first letter and its last.",
    T10 "t10" "t1 on every module.",
    T12a "t12a" "As t6, exchanging x and y of the root part (OSDI'94).",
    T12c "t12c" "As t12a, four times (OSDI'94).",
    Cu "cu" "t1, then t2a: the changes while everything is warm.",
    Q1 "q1" "Looks up ten random parts by id.",
    Q2 "q2" "The youngest hundredth of the parts, by build date.",
    Q3 "q3" "The youngest tenth of the parts, by build date.",
    Q4 "q4" "Ten random titles: the base assemblies that use what the document describes.",
    Q5 "q5" "Uses of a composite by a base assembly that is older.",
    Q6 "q6" "Assemblies with a younger composite anywhere below them.",
    Q7 "q7" "Every part, by the index of ids.",
    Q8 "q8" "Every part with the document whose id it names.",
    I "i" "Inserts ten composites with all that belongs to them (S1).",
    D "d" "Deletes what i inserted (S2).",
}

impl Operation {
    /// Performs the operation once in an open transaction. Returns its count.
    ///
    /// # Errors
    ///
    /// Fails if the store does.
    pub fn run<W: Oo7Transaction>(
        self,
        open: &mut W,
        parameters: &Oo7Parameters,
        seed: u64,
    ) -> Result<u64, Oo7Error> {
        let mut random = Oo7Random::new(seed);
        let mut walk = GraphWalk::new(open);
        match self {
            Operation::T1 => walk.parts(1, None),
            Operation::T2a => walk.parts(1, Some((PartSelection::Root, PartChange::Position, 1))),
            Operation::T2b => walk.parts(1, Some((PartSelection::Every, PartChange::Position, 1))),
            Operation::T2c => walk.parts(1, Some((PartSelection::Every, PartChange::Position, REPEATS))),
            Operation::T3a => walk.parts(1, Some((PartSelection::Root, PartChange::Date, 1))),
            Operation::T3b => walk.parts(1, Some((PartSelection::Every, PartChange::Date, 1))),
            Operation::T3c => walk.parts(1, Some((PartSelection::Every, PartChange::Date, REPEATS))),
            Operation::T4 => walk.documents(),
            Operation::T5Do => walk.replace(b"I am", b"This is"),
            Operation::T5Undo => walk.replace(b"This is", b"I am"),
            Operation::T6 => walk.roots(0),
            Operation::T7 => query::upward(open, 1 + random.below(parameters.all_parts())),
            Operation::T8 => query::letters_in_manual(open),
            Operation::T9 => query::manual_ends_alike(open),
            Operation::T10 => {
                let mut count = 0;
                for module in 1..=parameters.modules {
                    count += walk.parts(module, None)?;
                }
                Ok(count)
            }
            Operation::T12a => walk.roots(1),
            Operation::T12c => walk.roots(REPEATS),
            Operation::Cu => {
                walk.parts(1, None)?;
                walk.parts(1, Some((PartSelection::Root, PartChange::Position, 1)))
            }
            Operation::Q1 => query::by_id(open, parameters, &mut random),
            Operation::Q2 => query::since(open, query::YOUNGEST_HUNDREDTH),
            Operation::Q3 => query::since(open, query::YOUNGEST_TENTH),
            Operation::Q4 => query::by_title(open, parameters, &mut random),
            Operation::Q5 => query::younger_components(open),
            Operation::Q6 => query::younger_below(open, parameters),
            Operation::Q7 => query::scan(open),
            Operation::Q8 => query::join(open),
            Operation::I => structure::insert(open, parameters, &mut random),
            Operation::D => structure::delete(open, parameters),
        }
    }

    /// Whether it changes the database.
    pub fn changes(self) -> bool {
        use Operation::{Cu, D, I, T2a, T2b, T2c, T3a, T3b, T3c, T5Do, T5Undo, T12a, T12c};
        matches!(
            self,
            T2a | T2b | T2c | T3a | T3b | T3c | T5Do | T5Undo | T12a | T12c | Cu | I | D
        )
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Serialized by name.
impl Serialize for Operation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl FromStr for Operation {
    type Err = String;

    fn from_str(text: &str) -> Result<Operation, String> {
        let found = Operation::ALL.iter().find(|operation| operation.name() == text);
        found.copied().ok_or_else(|| {
            let names: Vec<&str> = Operation::ALL.iter().map(|operation| operation.name()).collect();
            format!("`{text}` is no operation; there are {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_to_its_operation() {
        for operation in Operation::ALL {
            assert_eq!(operation.name().parse::<Operation>().unwrap(), *operation);
        }
        assert!("t11".parse::<Operation>().unwrap_err().contains("t10, t12a"));
    }
}
