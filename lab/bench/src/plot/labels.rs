//! Labels moved apart: each as near as possible to where it belongs, and none over another.

/// A label's wish.
#[derive(Clone, Copy, Debug)]
pub(super) struct LabelWish {
    /// Where its middle belongs.
    pub(super) middle: f64,
    /// Height in pixels.
    pub(super) height: f64,
}

/// Middles of the labels within `top..bottom`, in the order of the wishes. The sum of the squared distances
/// from the wishes is the least possible. Labels that do not fit begin at `top` and pass `bottom`.
pub(super) fn spread(wishes: &[LabelWish], top: f64, bottom: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.sort_by(|&one, &other| wishes[one].middle.total_cmp(&wishes[other].middle));
    // Without the labels above it each label is a point, and points may meet but not cross. Neighbours that
    // would cross are merged at their mean: isotonic regression.
    let mut above = 0.0;
    let mut merged: Vec<(f64, usize)> = Vec::new();
    for &at in &order {
        let wish = wishes[at];
        merged.push((wish.middle - wish.height / 2.0 - above, 1));
        above += wish.height;
        while let [.., (upper, count), (lower, more)] = merged[..]
            && upper > lower
        {
            let all = count + more;
            let mean = (upper * count as f64 + lower * more as f64) / all as f64;
            merged.truncate(merged.len() - 2);
            merged.push((mean, all));
        }
    }
    let lowest = (bottom - above).max(top);
    let points = merged
        .iter()
        .flat_map(|&(point, count)| std::iter::repeat_n(point.clamp(top, lowest), count));
    let mut middles = vec![0.0; wishes.len()];
    let mut above = 0.0;
    for (&at, point) in order.iter().zip(points) {
        middles[at] = point + above + wishes[at].height / 2.0;
        above += wishes[at].height;
    }
    middles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes(middles: &[f64]) -> Vec<LabelWish> {
        let wish = |&middle| LabelWish { middle, height: 10.0 };
        middles.iter().map(wish).collect()
    }

    #[test]
    fn labels_with_room_stay_where_they_belong() {
        assert_eq!(
            spread(&wishes(&[50.0, 20.0, 35.0]), 0.0, 100.0),
            [50.0, 20.0, 35.0]
        );
    }

    #[test]
    fn labels_at_one_place_are_stacked_around_it() {
        assert_eq!(
            spread(&wishes(&[50.0, 50.0, 50.0]), 0.0, 100.0),
            [40.0, 50.0, 60.0]
        );
    }

    #[test]
    fn labels_stay_between_the_edges() {
        assert_eq!(spread(&wishes(&[0.0, 1.0, 99.0]), 0.0, 100.0), [5.0, 15.0, 95.0]);
        assert_eq!(spread(&wishes(&[5.0, 5.0]), 0.0, 10.0), [5.0, 15.0], "too many");
    }

    #[test]
    fn no_two_of_many_labels_overlap() {
        let many: Vec<LabelWish> = (0..40_u32)
            .map(|at| LabelWish {
                middle: f64::from(at * at * 37 % 300),
                height: f64::from(10 + at % 3 * 7),
            })
            .collect();
        let middles = spread(&many, 0.0, 1000.0);
        let mut spans: Vec<(f64, f64)> = many
            .iter()
            .zip(middles)
            .map(|(wish, middle)| (middle - wish.height / 2.0, middle + wish.height / 2.0))
            .collect();
        spans.sort_by(|one, other| one.0.total_cmp(&other.0));
        assert!(spans[0].0 >= 0.0 && spans[39].1 <= 1000.0 + 1e-9, "{spans:?}");
        assert!(
            spans.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-9),
            "{spans:?}"
        );
    }
}
