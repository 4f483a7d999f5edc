//! Axes: from the least to the greatest value, linear or logarithmic, with ticks.

/// Values that are further apart than this ratio are on a logarithmic axis.
const LOGARITHMIC_FROM: f64 = 20.0;
/// The same for bars, whose length is a value only on a linear axis.
const LOGARITHMIC_FROM_BARS: f64 = 50.0;
/// Decades beyond which only powers of ten have numbers, and few of the others lines.
const FEW_DECADES: f64 = 2.5;
const LINEAR_STEPS: f64 = 5.0;

/// An axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct PlotAxis {
    pub(super) logarithmic: bool,
    pub(super) least: f64,
    pub(super) most: f64,
}

/// A place on an axis that has a gridline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct AxisTick {
    pub(super) value: f64,
    /// Whether its number stands beside it.
    pub(super) numbered: bool,
}

impl PlotAxis {
    /// An axis of values that begins and ends with numbered ticks.
    pub(super) fn around(values: impl Iterator<Item = f64>) -> PlotAxis {
        PlotAxis::rounded(values, LOGARITHMIC_FROM)
    }

    /// The same for bars. A logarithmic one begins well below the least value, so that every bar is seen.
    pub(super) fn for_bars(values: impl Iterator<Item = f64>) -> PlotAxis {
        let axis = PlotAxis::rounded(values, LOGARITHMIC_FROM_BARS);
        match axis.logarithmic {
            true => PlotAxis {
                least: rounded_down(axis.least / 2.0),
                ..axis
            },
            false => axis,
        }
    }

    /// An axis that ends with the values themselves.
    pub(super) fn spanning(values: impl Iterator<Item = f64>) -> PlotAxis {
        let (least, most) = extent(values);
        PlotAxis {
            logarithmic: is_logarithmic(least, most, LOGARITHMIC_FROM),
            least,
            most,
        }
    }

    fn rounded(values: impl Iterator<Item = f64>, logarithmic_from: f64) -> PlotAxis {
        let (least, most) = extent(values);
        if is_logarithmic(least, most, logarithmic_from) {
            return PlotAxis {
                logarithmic: true,
                least: rounded_down(least),
                most: rounded_up(most),
            };
        }
        let step = step(most);
        PlotAxis {
            logarithmic: false,
            least: 0.0,
            most: (most / step - 1e-9).ceil().max(1.0) * step,
        }
    }

    /// Place of a value, from 0 to 1.
    pub(super) fn part(&self, value: f64) -> f64 {
        let place = |value: f64| {
            if self.logarithmic {
                value.max(f64::MIN_POSITIVE).ln()
            } else {
                value
            }
        };
        let [value, least, most] = [value, self.least, self.most].map(place);
        if most > least {
            ((value - least) / (most - least)).clamp(0.0, 1.0)
        } else {
            0.5
        }
    }

    /// Ticks at round values.
    pub(super) fn ticks(&self) -> Vec<AxisTick> {
        if !self.logarithmic {
            let step = step(self.most);
            let count = (self.most / step).round() as u32;
            return (0..=count)
                .map(|at| AxisTick {
                    value: f64::from(at) * step,
                    numbered: true,
                })
                .collect();
        }
        let few = (self.most / self.least).log10() <= FEW_DECADES;
        let powers = self.least.log10().floor() as i32..=self.most.log10().ceil() as i32;
        powers
            .flat_map(|power| (1..10).map(move |digit| (digit, power)))
            // Of many decades nine lines each would be a hatching.
            .filter(|(digit, _)| few || matches!(digit, 1 | 2 | 5))
            .map(|(digit, power)| AxisTick {
                value: f64::from(digit) * 10_f64.powi(power),
                numbered: digit == 1 || few && matches!(digit, 2 | 5),
            })
            .filter(|tick| tick.value >= self.least * (1.0 - 1e-9) && tick.value <= self.most * (1.0 + 1e-9))
            .collect()
    }
}

fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let finite = values.filter(|value| value.is_finite());
    let (least, most) = finite.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    if least <= most { (least, most) } else { (0.0, 1.0) }
}

fn is_logarithmic(least: f64, most: f64, from: f64) -> bool {
    least > 0.0 && most / least >= from
}

/// The next number below that is 1, 2 or 5 times a power of ten.
fn rounded_down(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let digits = [5.0, 2.0, 1.0]
        .into_iter()
        .find(|digit| digit * power <= value * (1.0 + 1e-9));
    digits.unwrap_or(1.0) * power
}

/// The next number above that is 1, 2 or 5 times a power of ten.
fn rounded_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let digits = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|digit| digit * power >= value * (1.0 - 1e-9));
    digits.unwrap_or(10.0) * power
}

/// Distance of a linear axis's ticks.
fn step(most: f64) -> f64 {
    if most > 0.0 {
        rounded_up(most / LINEAR_STEPS)
    } else {
        1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(axis: PlotAxis) -> Vec<f64> {
        let ticks = axis.ticks().into_iter().filter(|tick| tick.numbered);
        ticks.map(|tick| tick.value).collect()
    }

    #[test]
    fn values_decades_apart_are_on_a_logarithmic_axis() {
        let axis = PlotAxis::around([44.0, 180_000.0].into_iter());
        assert_eq!((axis.logarithmic, axis.least, axis.most), (true, 20.0, 200_000.0));
        assert_eq!(numbered(axis), [100.0, 1e3, 1e4, 1e5]);
        let short = PlotAxis::around([44.0, 1_800.0].into_iter());
        assert_eq!(numbered(short), [20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3]);
    }

    #[test]
    fn values_near_one_another_are_on_a_linear_axis_from_zero() {
        let axis = PlotAxis::around([3.0, 8.2].into_iter());
        assert_eq!((axis.logarithmic, axis.least, axis.most), (false, 0.0, 10.0));
        assert_eq!(numbered(axis), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
    }

    #[test]
    fn the_least_bar_of_a_logarithmic_axis_has_a_length() {
        let axis = PlotAxis::for_bars([65.65, 24_349.0].into_iter());
        assert!(axis.logarithmic && axis.part(65.65) > 0.05, "{axis:?}");
    }

    #[test]
    fn an_axis_of_one_value_or_none_has_its_middle() {
        assert_eq!(PlotAxis::spanning([7.0].into_iter()).part(7.0), 0.5);
        assert!(!PlotAxis::around(std::iter::empty()).ticks().is_empty());
        let sizes = PlotAxis::spanning([32.0, 1024.0].into_iter());
        assert_eq!((sizes.part(32.0), sizes.part(1024.0)), (0.0, 1.0));
    }
}
