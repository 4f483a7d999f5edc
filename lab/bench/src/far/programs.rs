//! The programs: the paper's four, and three others. Each exists for ordinary memory and, where access by
//! words is possible, for words.

use netram_far::{FarAccessError, FarVec};
use serde::{Deserialize, Serialize};

/// Number of passes of SCAN.
const PASSES: usize = 4;
/// Number of rows that GAUSS subtracts from all below them, about as many as the paper's number of references
/// needs.
const PIVOTS: usize = 12;
/// Number of columns that TRANS exchanges with rows.
const COLUMNS: usize = 20;
/// Number of look-ups, and of steps of the walk.
const LOOKUPS: usize = 20_000;
/// Number of look-ups that are known before the first is done.
const BATCH: usize = 1000;
/// Number of 8-byte values in a record of SORT.
const RECORD: usize = 1024;
/// Number of values in a node of the walk's graph: neighbours first, then the payload.
const NODE: usize = 8;
const NEIGHBOURS: usize = 4;

/// The programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FarProgram {
    /// Reads all values in order, four times.
    Scan,
    /// Multiplies a square matrix by a vector.
    Mvec,
    /// Does the first twelve steps of an elimination.
    Gauss,
    /// Sorts records of 8 KiB in place.
    Sort,
    /// Exchanges the first twenty columns of a square matrix with its rows.
    Trans,
    /// Looks up values at random indexes, a thousand of which are known at once.
    Lookups,
    /// Walks from node to node of a random graph.
    Walk,
    /// Transposes, scales and sorts a matrix in Python.
    Numpy,
}

impl FarProgram {
    /// All programs, in the order of the tables.
    pub const ALL: [FarProgram; 8] = [
        FarProgram::Scan,
        FarProgram::Mvec,
        FarProgram::Gauss,
        FarProgram::Sort,
        FarProgram::Trans,
        FarProgram::Lookups,
        FarProgram::Walk,
        FarProgram::Numpy,
    ];

    /// Name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            FarProgram::Scan => "scan",
            FarProgram::Mvec => "mvec",
            FarProgram::Gauss => "gauss",
            FarProgram::Sort => "sort",
            FarProgram::Trans => "trans",
            FarProgram::Lookups => "lookups",
            FarProgram::Walk => "walk",
            FarProgram::Numpy => "numpy",
        }
    }

    /// Whether the program has a word-wise form.
    pub fn has_words(self) -> bool {
        matches!(self, FarProgram::Trans | FarProgram::Lookups | FarProgram::Walk)
    }

    /// Fills the memory with the initial values. They have 20 significant bits, as measured data has, so they
    /// compress, but only a little.
    pub(super) fn fill(self, memory: &mut [u64]) {
        let nodes = (memory.len() / NODE) as u64;
        for (index, value) in memory.iter_mut().enumerate() {
            *value = match self {
                FarProgram::Sort if index.is_multiple_of(RECORD) => hash(index),
                FarProgram::Walk if index % NODE < NEIGHBOURS => hash(index) % nodes,
                _ => ((hash(index) >> 44) as f64 + 1.0).to_bits(),
            };
        }
    }

    /// Runs it. The result shows whether all references read the written values.
    pub(super) fn run(self, memory: &mut [u64]) -> u64 {
        match self {
            FarProgram::Scan => (0..PASSES).fold(0, |sum, _| checksum(memory) ^ sum.rotate_left(1)),
            FarProgram::Mvec => mvec(memory),
            FarProgram::Gauss => gauss(memory),
            FarProgram::Sort => sort(memory),
            FarProgram::Trans => trans(memory),
            FarProgram::Lookups => lookup_indexes(memory.len()).fold(0, |sum, place| mix(sum, memory[place])),
            FarProgram::Walk => (0..LOOKUPS).fold(0, |node, step| memory[next(node, step)]),
            FarProgram::Numpy => unreachable!("it is Python's"),
        }
    }

    /// The same by words.
    ///
    /// # Errors
    ///
    /// Fails if a page is lost.
    pub(super) fn run_by_words(self, memory: &mut FarVec<u64>) -> Result<u64, FarAccessError> {
        match self {
            FarProgram::Trans => trans_by_words(memory),
            FarProgram::Lookups => {
                let places: Vec<usize> = lookup_indexes(memory.len()).collect();
                let mut values = vec![0; BATCH];
                let mut sum = 0;
                for places in places.chunks(BATCH) {
                    memory.gather(places, &mut values)?;
                    sum = values.iter().fold(sum, |sum, value| mix(sum, *value));
                }
                Ok(sum)
            }
            FarProgram::Walk => (0..LOOKUPS).try_fold(0, |node, step| memory.get(next(node, step))),
            _ => unreachable!("`has_words` says which programs have words"),
        }
    }
}

/// A checksum of the memory that depends on each value's index.
pub(super) fn checksum(memory: &[u64]) -> u64 {
    memory.iter().fold(0, |sum, value| mix(sum, *value))
}

fn mix(sum: u64, value: u64) -> u64 {
    (sum ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29)
}

fn hash(index: usize) -> u64 {
    let mixed = (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 31)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Indexes of the look-ups: random, but the same in every run.
fn lookup_indexes(length: usize) -> impl Iterator<Item = usize> {
    (0..LOOKUPS).map(move |which| (hash(which + length) >> 16) as usize % length)
}

/// Value index that holds the next node. The neighbour depends on the step too: a walk that depended on its
/// node alone would soon run in a circle.
fn next(node: u64, step: usize) -> usize {
    node as usize * NODE + (hash(step) >> 32) as usize % NEIGHBOURS
}

fn side(length: usize) -> usize {
    length.isqrt()
}

fn number(value: u64) -> f64 {
    f64::from_bits(value)
}

fn mvec(memory: &[u64]) -> u64 {
    let side = side(memory.len());
    let vector: Vec<f64> = (0..side).map(|index| index as f64).collect();
    let product = memory.chunks_exact(side).take(side).map(|row| {
        row.iter()
            .zip(&vector)
            .map(|(value, factor)| number(*value) * factor)
            .sum::<f64>()
    });
    product.fold(0, |sum, value| mix(sum, value.to_bits()))
}

fn gauss(memory: &mut [u64]) -> u64 {
    let side = side(memory.len());
    for pivot in 0..PIVOTS.min(side) {
        let (above, below) = memory[..side * side].split_at_mut((pivot + 1) * side);
        let from = &above[pivot * side..];
        for row in below.chunks_exact_mut(side) {
            let factor = number(row[pivot]) / number(from[pivot]);
            for (value, from) in row[pivot..].iter_mut().zip(&from[pivot..]) {
                *value = (number(*value) - factor * number(*from)).to_bits();
            }
        }
    }
    0
}

fn sort(memory: &mut [u64]) -> u64 {
    let (records, _) = memory.as_chunks_mut::<RECORD>();
    records.sort_unstable_by_key(|record| record[0]);
    0
}

fn trans(memory: &mut [u64]) -> u64 {
    let side = side(memory.len());
    for column in 0..COLUMNS.min(side) {
        for row in column + 1..side {
            memory.swap(row * side + column, column * side + row);
        }
    }
    0
}

fn trans_by_words(memory: &mut FarVec<u64>) -> Result<u64, FarAccessError> {
    let side = side(memory.len());
    for column in 0..COLUMNS.min(side) {
        let length = side - column - 1;
        let (down, across) = ((column + 1) * side + column, column * side + column + 1);
        let (mut from_column, mut from_row) = (vec![0; length], vec![0; length]);
        memory.gather_strided(down, side, &mut from_column)?;
        memory.gather_strided(across, 1, &mut from_row)?;
        memory.scatter_strided(down, side, &from_row)?;
        memory.scatter_strided(across, 1, &from_column)?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 64 * 64 * 4;

    fn filled(program: FarProgram) -> Vec<u64> {
        let mut memory = vec![0; LENGTH];
        program.fill(&mut memory);
        memory
    }

    #[test]
    fn a_sort_leaves_the_same_records_in_order() {
        let mut memory = filled(FarProgram::Sort);
        let sum = |memory: &[u64]| memory.iter().fold(0_u64, |sum, value| sum.wrapping_add(*value));
        let before = sum(&memory);
        FarProgram::Sort.run(&mut memory);
        assert!(memory.chunks(RECORD).is_sorted_by_key(|record| record[0]));
        assert_eq!(sum(&memory), before);
    }

    #[test]
    fn the_first_columns_become_rows_and_the_rest_stays() {
        let before = filled(FarProgram::Trans);
        let mut after = before.clone();
        FarProgram::Trans.run(&mut after);
        let side = side(LENGTH);
        for (row, column) in (0..side).flat_map(|row| (0..side).map(move |column| (row, column))) {
            let moved = row.min(column) < COLUMNS;
            let (from_row, from_column) = if moved { (column, row) } else { (row, column) };
            assert_eq!(after[row * side + column], before[from_row * side + from_column]);
        }
    }

    #[test]
    fn elements_below_each_pivot_become_zero() {
        let mut memory = filled(FarProgram::Gauss);
        FarProgram::Gauss.run(&mut memory);
        let side = side(LENGTH);
        for pivot in 0..PIVOTS {
            let below = (pivot + 1..side).map(|row| number(memory[row * side + pivot]));
            assert!(below.into_iter().all(|value| value.abs() < 1e-3));
        }
    }

    #[test]
    fn the_checksum_depends_on_every_value_and_its_index() {
        for program in [FarProgram::Scan, FarProgram::Mvec] {
            let mut memory = filled(program);
            let found = program.run(&mut memory);
            memory.swap(3, 4);
            assert_ne!(program.run(&mut memory), found, "{program:?}");
        }
    }

    #[test]
    fn a_walk_reaches_many_nodes() {
        let memory = filled(FarProgram::Walk);
        let mut node = 0;
        let mut seen = std::collections::BTreeSet::new();
        for step in 0..LOOKUPS {
            node = memory[next(node, step)];
            seen.insert(node);
        }
        assert!(seen.len() > LENGTH / NODE / 4, "{}", seen.len());
    }
}
