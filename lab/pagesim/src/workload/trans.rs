//! TRANS: a square matrix is transposed in place. Rows and columns at once: almost no locality.

use super::ReferenceSink;
use super::matrix::Matrix;

/// Transposes a matrix of so many rows; the first `columns` of them (all: `columns` is `rows`). Returns it,
/// row after row.
pub fn trans(memory: &mut impl ReferenceSink, base: u64, rows: usize, columns: usize) -> Vec<f64> {
    let mut matrix = Matrix::made(rows, rows, base);
    for column in 0..columns.min(rows) {
        for row in column + 1..rows {
            let above = matrix.read(memory, column, row);
            let below = matrix.read(memory, row, column);
            matrix.write(memory, column, row, below);
            matrix.write(memory, row, column, above);
        }
    }
    matrix.into_values()
}

#[cfg(test)]
mod tests {
    use super::super::NullSink;
    use super::super::matrix::Matrix;
    use super::*;

    #[test]
    fn rows_become_columns() {
        let before = Matrix::made(5, 5, 0).into_values();
        let after = trans(&mut NullSink, 0, 5, 5);
        for (place, value) in after.iter().enumerate() {
            assert_eq!(*value, before[place % 5 * 5 + place / 5]);
        }
    }
}
