//! GAUSS: elimination without exchange of rows. Each pivot visits the rest of the matrix.

use super::ReferenceSink;
use super::matrix::Matrix;

/// Eliminates below the first `pivots` diagonal elements of a square matrix with `rows` rows. Returns it.
pub fn gauss(memory: &mut impl ReferenceSink, base: u64, rows: usize, pivots: usize) -> Vec<f64> {
    let mut matrix = Matrix::made(rows, rows, base);
    matrix.strengthen(2.0 * rows as f64);
    for pivot in 0..pivots.min(rows) {
        let diagonal = matrix.read(memory, pivot, pivot);
        for row in pivot + 1..rows {
            let factor = matrix.read(memory, row, pivot) / diagonal;
            for column in pivot..rows {
                let above = matrix.read(memory, pivot, column);
                let value = matrix.read(memory, row, column) - factor * above;
                matrix.write(memory, row, column, value);
            }
        }
    }
    matrix.into_values()
}

#[cfg(test)]
mod tests {
    use super::super::NullSink;
    use super::*;

    #[test]
    fn elements_below_the_diagonal_become_zero() {
        let after = gauss(&mut NullSink, 0, 7, 7);
        for row in 0..7 {
            for column in 0..row {
                assert!(after[row * 7 + column].abs() < 1e-9, "row {row}, column {column}");
            }
            assert!(after[row * 7 + row].abs() > 1e-9);
        }
    }
}
