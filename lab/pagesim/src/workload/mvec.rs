//! MVEC: a matrix times a vector. Nearly all of its input is read once.

use super::ReferenceSink;
use super::matrix::Matrix;

/// Multiplies a square matrix with `rows` rows by a vector. Returns the product.
pub fn mvec(memory: &mut impl ReferenceSink, base: u64, rows: usize) -> Vec<f64> {
    let matrix = Matrix::made(rows, rows, base);
    let vector = Matrix::made(1, rows, matrix.end());
    let mut product = Matrix::made(1, rows, vector.end());
    for row in 0..rows {
        product.write(memory, 0, row, 0.0);
        for column in 0..rows {
            let term = matrix.read(memory, row, column) * vector.read(memory, 0, column);
            let sum = product.read(memory, 0, row) + term;
            product.write(memory, 0, row, sum);
        }
    }
    product.into_values()
}

#[cfg(test)]
mod tests {
    use super::super::NullSink;
    use super::super::matrix::Matrix;
    use super::*;

    #[test]
    fn each_row_is_multiplied_by_the_vector() {
        let (matrix, vector) = (
            Matrix::made(6, 6, 0).into_values(),
            Matrix::made(1, 6, 0).into_values(),
        );
        for (row, value) in mvec(&mut NullSink, 0, 6).into_iter().enumerate() {
            let expected: f64 = (0..6)
                .map(|column| matrix[row * 6 + column] * vector[column])
                .sum();
            assert!((value - expected).abs() < 1e-9);
        }
    }
}
