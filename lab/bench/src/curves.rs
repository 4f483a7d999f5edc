//! Curves of a figure, and the order in which their points are measured.

use crate::error::BenchError;

/// A point of a curve.
pub trait CurvePoint {
    /// Identity of a curve.
    type Curve: Copy + PartialEq;

    /// The curve of this point.
    fn curve(&self) -> Self::Curve;

    /// The point's x value.
    fn x(&self) -> u64;
}

/// The curves, in the order of measurement.
pub fn curves<P: CurvePoint>(points: &[P]) -> Vec<P::Curve> {
    let mut found = Vec::new();
    for curve in points.iter().map(CurvePoint::curve) {
        if !found.contains(&curve) {
            found.push(curve);
        }
    }
    found
}

/// The x values in order.
pub fn x_values<P: CurvePoint>(points: &[P]) -> Vec<u64> {
    let mut values: Vec<u64> = points.iter().map(CurvePoint::x).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// The point of a curve at `x`.
pub fn at<P: CurvePoint>(points: &[P], curve: P::Curve, place: u64) -> Option<&P> {
    points
        .iter()
        .find(|point| point.curve() == curve && point.x() == place)
}

/// One measurement among those of a figure.
#[derive(Clone, Copy, Debug)]
pub struct ScheduledPoint {
    /// Number of the round, from zero.
    pub round: usize,
    /// The point's x value.
    pub x: u64,
    /// Index of the curve, from zero.
    pub curve: usize,
}

/// All rounds of one point.
#[derive(Debug)]
pub struct PointRounds<C> {
    /// The point's x value.
    pub x: u64,
    /// Index of the curve, from zero.
    pub curve: usize,
    /// Results, one for each round.
    pub cells: Vec<C>,
}

/// Measures each x value on each curve, once a round. Within a round and an x value the curves take turns, so
/// that a disturbance hits all of them.
///
/// # Errors
///
/// Returns the first error of `measure`.
pub fn interleaved<C>(
    rounds: usize,
    values: &[u64],
    curves: usize,
    mut measure: impl FnMut(ScheduledPoint) -> Result<C, BenchError>,
) -> Result<Vec<PointRounds<C>>, BenchError> {
    let mut points: Vec<PointRounds<C>> = values
        .iter()
        .flat_map(|&place| (0..curves).map(move |curve| (place, curve)))
        .map(|(place, curve)| PointRounds {
            x: place,
            curve,
            cells: Vec::new(),
        })
        .collect();
    for round in 0..rounds {
        for point in &mut points {
            let (place, curve) = (point.x, point.curve);
            point.cells.push(measure(ScheduledPoint {
                round,
                x: place,
                curve,
            })?);
        }
    }
    Ok(points)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_take_turns_at_each_x_value_of_each_round() {
        let mut order = Vec::new();
        let points = interleaved(2, &[4, 8], 2, |turn| {
            order.push((turn.round, turn.x, turn.curve));
            Ok(order.len())
        });
        let first = [(0, 4, 0), (0, 4, 1), (0, 8, 0), (0, 8, 1)];
        let second = first.map(|(_, place, curve)| (1, place, curve));
        let points = points.unwrap();
        let cells: Vec<Vec<usize>> = points.into_iter().map(|point| point.cells).collect();
        assert_eq!(cells, [[1, 5], [2, 6], [3, 7], [4, 8]]);
        assert_eq!(order, [first, second].concat());
    }
}
