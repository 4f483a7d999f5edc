//! The results as Markdown tables for a document.

use std::fmt::Write;

use super::claims::Tr190Claim;
use super::facts::{StatedCurve, Tr190Facts};
use super::output::RunInfo;
use super::page::number;
use super::plot::x_label;
use super::system::{MemberLink, Tr190Series, Tr190System};
use super::{Tr190Figure, Tr190Report, oo7};

/// Every figure's throughputs, the paper's beside them, RRVM's over RVM's, and the claims.
pub fn tables(report: &Tr190Report, run: &RunInfo) -> String {
    let mut text = format!("Taken {}. Transactions a second.\n", run.on(&report.machine));
    for skipped in &report.skipped {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "\nNot measured: {skipped}");
    }
    // The paper's file is part of the program, and a test reads it.
    let facts = Tr190Facts::tr190().ok();
    for figure in &report.figures {
        table(&mut text, figure, facts.as_ref());
    }
    if let Some(measured) = &report.oo7 {
        oo7::markdown(&mut text, measured);
    }
    claims(&mut text, &report.claims);
    text
}

fn table(text: &mut String, figure: &Tr190Figure, facts: Option<&Tr190Facts>) {
    let places = figure.x_values();
    let _ = write!(text, "\n### Figure {}: {}\n\n| |", figure.number, figure.title);
    for &place in &places {
        let _ = write!(text, " {} |", x_label(figure.axis, place));
    }
    text.push_str("\n|---|");
    text.push_str(&"---:|".repeat(places.len()));
    text.push('\n');
    for series in figure.series() {
        row(text, &series.label(), &places, |x| {
            Some(number(figure.at(series, x)?.tps))
        });
    }
    for stated in facts.iter().flat_map(|facts| facts.series(figure.number)) {
        row(text, &format!("the paper: {}", stated.name), &places, |x| {
            stated_at(stated, x).map(as_stated)
        });
    }
    for series in figure.series() {
        let Tr190Series::System(system) = series else {
            continue;
        };
        let rvm = Tr190Series::System(Tr190System::RVM.on(system.disk));
        if system.link == MemberLink::Disk {
            continue;
        }
        let name = format!("{} / {}", series.label(), rvm.label());
        row(text, &name, &places, |x| {
            let ratio = figure.at(series, x)?.tps / figure.at(rvm, x)?.tps;
            Some(format!("{} ×", number(ratio)))
        });
    }
    if let Some(facts) = facts {
        remarks(text, figure.number, facts);
    }
}

fn stated_at(stated: &StatedCurve, x: u64) -> Option<f64> {
    stated.points().find(|(place, _)| *place == x).map(|(_, tps)| tps)
}

/// A throughput with the paper's own digits.
fn as_stated(tps: f64) -> String {
    if tps < 1000.0 {
        tps.to_string()
    } else {
        number(tps)
    }
}

/// Adds the paper's remarks on a whole figure, below its table.
fn remarks(text: &mut String, figure: u8, facts: &Tr190Facts) {
    let ranges = facts.ranges(figure).map(|range| {
        let [least, most] = range.tps;
        match least == most {
            true => format!("{}: {}", range.name, as_stated(most)),
            false => format!("{}: {} to {}", range.name, as_stated(least), as_stated(most)),
        }
    });
    let said: Vec<String> = facts.remarks(figure).map(str::to_owned).chain(ranges).collect();
    if !said.is_empty() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\nThe paper: {}.", said.join("; "));
    }
}

fn row(text: &mut String, name: &str, places: &[u64], value: impl Fn(u64) -> Option<String>) {
    let _ = write!(text, "| {name} |");
    for &place in places {
        let _ = write!(text, " {} |", value(place).unwrap_or_default());
    }
    text.push('\n');
}

fn claims(text: &mut String, claims: &[Tr190Claim]) {
    if claims.is_empty() {
        return;
    }
    text.push_str(
        "\n### What is claimed\n\n| what | theirs | measured | to hold | met |\n|---|---|---:|---|---|\n",
    );
    for claim in claims {
        let _ = writeln!(
            text,
            "| {} | {} | {} {} | {} | {} |",
            claim.what,
            claim.theirs,
            number(claim.value),
            claim.unit,
            claim.hold.map(|hold| hold.to_string()).unwrap_or_default(),
            match claim.met {
                Some(true) => "yes",
                Some(false) => "**no**",
                None => "",
            }
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::commentary::tests::report;
    use super::*;

    #[test]
    fn every_row_of_a_table_has_as_many_cells_as_its_header() {
        let mut report = report();
        let facts = super::super::facts::Tr190Facts::tr190().unwrap();
        report.claims = super::super::claims::judge(&facts, &report.figures, &[]);
        let run = RunInfo {
            began: "today".to_owned(),
            command: "netram-lab bench paper".to_owned(),
            disk: "/var/tmp".to_owned(),
        };
        let text = tables(&report, &run);
        let mut tables = 0;
        for table in text.split("\n\n").filter(|part| part.starts_with('|')) {
            let cells: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
            assert!(cells.iter().all(|count| *count == cells[0]), "{table}");
            tables += 1;
        }
        assert_eq!(tables, 13);
        assert!(text.contains("| RRVM, TCP / RVM | 8.00 × | 8.00 × |"), "{text}");
        assert!(text.contains("Not measured: one thing"));
        assert!(text.contains("| the paper: RVM | 44.24 | 31.08 |"), "{text}");
        assert!(text.contains("RRVM, FDDI, total: 712 to 1,076"), "{text}");
    }
}
