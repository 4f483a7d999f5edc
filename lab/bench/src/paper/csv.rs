//! A figure as CSV for plotting: one line for each point, numbers in plain decimals.

use std::fmt::Write;

use super::Tr190Figure;

/// The columns.
pub const HEADER: &str = "figure,system,x,unit,tps,transactions,p50_us,p99_us,max_us,full_stalls,floor_us";

/// The figure's points. No name in it has a comma or a quote, so nothing is quoted.
pub fn table(figure: &Tr190Figure) -> String {
    let mut text = format!("{HEADER}\n");
    for point in &figure.points {
        let floor = point
            .floor_us
            .map(|floor| format!("{floor:.3}"))
            .unwrap_or_default();
        let name = point.series.id();
        assert!(!name.contains([',', '"', '\n']));
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{},{name},{},{},{:.3},{},{:.3},{:.3},{:.3},{},{floor}",
            figure.number,
            point.x,
            figure.axis.unit(),
            point.tps,
            point.transactions,
            point.p50_us,
            point.p99_us,
            point.max_us,
            point.full_stalls,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::system::{FloorKind, Tr190Series, Tr190System};
    use super::super::tests::synthetic_figure;
    use super::*;

    #[test]
    fn a_line_has_as_many_fields_as_the_header_and_a_missing_floor_is_empty() {
        let rvm = Tr190Series::System(Tr190System::RVM);
        let mut figure = synthetic_figure(
            1,
            &[
                (rvm, &[(32, 5000.0), (10_240, 2500.5)]),
                (Tr190Series::Floor(FloorKind::Sync), &[(32, 9000.0)]),
            ],
        );
        figure.points[0].floor_us = Some(111.5);
        let text = table(&figure);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        let fields = |line: &str| line.split(',').count();
        assert!(lines.iter().all(|line| fields(line) == fields(HEADER)));
        assert_eq!(
            lines[1],
            "1,rvm,32,block_bytes,5000.000,100,200.000,400.000,600.000,0,111.500"
        );
        assert!(lines[2].starts_with("1,rvm,10240,block_bytes,2500.500,") && lines[2].ends_with(",0,"));
    }
}
