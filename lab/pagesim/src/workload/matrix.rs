//! Numbers in rows, at an address.

use super::ReferenceSink;

const WORD: u32 = 8;

/// A matrix of `f64`, row after row without gaps. A vector is a matrix of one row.
#[derive(Clone, Debug)]
pub(super) struct Matrix {
    columns: usize,
    values: Vec<f64>,
    base: u64,
}

impl Matrix {
    /// A matrix of pseudo-random numbers from 1 to 2.
    pub(super) fn made(rows: usize, columns: usize, base: u64) -> Matrix {
        let value = |place: usize| {
            1.0 + f64::from((place as u32).wrapping_mul(2_654_435_761) >> 8) / f64::from(1 << 24)
        };
        Matrix {
            columns,
            values: (0..rows * columns).map(value).collect(),
            base,
        }
    }

    /// Adds `by` to the diagonal, so that elimination need not exchange rows.
    pub(super) fn strengthen(&mut self, by: f64) {
        for value in self.values.iter_mut().step_by(self.columns + 1) {
            *value += by;
        }
    }

    /// Address of the byte after the matrix.
    pub(super) fn end(&self) -> u64 {
        self.base + self.values.len() as u64 * u64::from(WORD)
    }

    #[inline]
    fn place(&self, row: usize, column: usize) -> (usize, u64) {
        let place = row * self.columns + column;
        (place, self.base + place as u64 * u64::from(WORD))
    }

    #[inline]
    pub(super) fn read(&self, memory: &mut impl ReferenceSink, row: usize, column: usize) -> f64 {
        let (place, address) = self.place(row, column);
        memory.read(address, WORD);
        self.values[place]
    }

    #[inline]
    pub(super) fn write(&mut self, memory: &mut impl ReferenceSink, row: usize, column: usize, value: f64) {
        let (place, address) = self.place(row, column);
        memory.write(address, WORD);
        self.values[place] = value;
    }

    pub(super) fn into_values(self) -> Vec<f64> {
        self.values
    }
}
