//! TRANS: transposes a square matrix in place. It visits rows and columns at once, with almost no locality.

use super::ReferenceSink;
use super::matrix::Matrix;

/// Transposes the first `columns` columns of a matrix with `rows` rows; all if the two are equal. Returns it
/// row by row.
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
