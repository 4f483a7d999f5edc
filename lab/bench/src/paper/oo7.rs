//! Figure 12: OO7 in unmodified databases, with their files on a disk and on remote memory. The paper had
//! EXODUS, and called it REX with remote memory beneath; here are SQLite and Berkeley DB, by
//! [`crate::sql_stores`]. Its axis has operations, so this figure is apart from the others.

use std::fmt::Write;

use netram_oo7::{DatabaseSize, Oo7Parameters, Operation};

use super::Tr190Progress;
use super::claims::{ClaimSource, Tr190Claim, claim};
use super::experiment::Tr190Effort;
use super::facts::Tr190Facts;
use super::page::number;
use crate::error::BenchError;
use crate::figures::RatioBound;
use crate::plot::{BarGroup, BarPlot, BarRow, PlotColour, PlotFigure, PointMark, escaped};
use crate::sql_stores::{
    self, SqlStoreBacking, SqlStoreDisk, SqlStoreEngine, SqlStoreReport, SqlStoreResult, SqlStoreRow,
    SqlStoreSpec,
};
use crate::testbed::{SocketKind, Testbed};

/// The paper's number.
pub const NUMBER: u8 = 12;
/// Title of the figure.
pub const TITLE: &str = "OO7 in unmodified databases, their files on remote memory";
/// The columns of the figure's file.
pub const HEADER: &str = "figure,store,operation,logged,place,us,times_modelled";
/// Operations of a quick run: the two that the paper names, and one with few changes.
const OPERATIONS_QUICK: [Operation; 3] = [Operation::T5Do, Operation::T6, Operation::T12a];
/// Baseline of the ratios: the disk that stands for the paper's.
const BASELINE: SqlStoreBacking = SqlStoreBacking::Plain(SqlStoreDisk::Modelled);

/// The measurement that an effort stands for.
fn spec(effort: Tr190Effort) -> SqlStoreSpec {
    let size = if effort.small {
        DatabaseSize::Tiny
    } else {
        DatabaseSize::Small
    };
    let (engines, operations) = match effort.quick {
        true => (&[SqlStoreEngine::Sqlite][..], &OPERATIONS_QUICK[..]),
        false => (&SqlStoreEngine::ALL[..], Operation::ALL),
    };
    SqlStoreSpec {
        database: Oo7Parameters::of(size, 3),
        engines: engines.to_vec(),
        operations: operations.to_vec(),
        rounds: effort.rounds,
    }
}

/// Number of steps that [`measure`] announces, if every store is here.
pub(super) fn cells(effort: Tr190Effort) -> usize {
    let spec = spec(effort);
    // Built, measured in rounds, audited.
    spec.engines.len() * (spec.rounds + 2)
}

/// Measures the figure.
///
/// # Errors
///
/// Fails if a process fails, or places differ in the end.
pub(super) fn measure(
    site: &Testbed,
    effort: Tr190Effort,
    tell: &mut dyn FnMut(Tr190Progress<'_>),
) -> Result<SqlStoreReport, BenchError> {
    let report = sql_stores::measure(site, &spec(effort), &mut |engine, what| {
        let what = format!("{engine}, {what}");
        tell(Tr190Progress::Cell {
            figure: NUMBER,
            what: &what,
        });
    })?;
    for reason in &report.skipped {
        tell(Tr190Progress::Skipped(reason));
    }
    Ok(report)
}

fn name(row: &SqlStoreRow) -> String {
    format!("{}{}", row.operation, if row.logged { " logged" } else { "" })
}

impl SqlStoreResult {
    fn time(&self, row: &SqlStoreRow, place: SqlStoreBacking) -> Option<f64> {
        let at = self.places.iter().position(|known| *known == place)?;
        row.times_us.get(at).copied()
    }

    /// How many times faster a place is than unmodified on the modelled disk.
    fn times(&self, row: &SqlStoreRow, place: SqlStoreBacking) -> Option<f64> {
        Some(self.time(row, BASELINE)? / self.time(row, place)?)
    }
}

// Writing to a string cannot fail, here and below.

/// The figure as CSV.
pub(super) fn csv(report: &SqlStoreReport) -> String {
    let mut text = format!("{HEADER}\n");
    for store in &report.stores {
        for row in &store.rows {
            for (place, us) in store.places.iter().zip(&row.times_us) {
                let times = store.times(row, *place);
                let times = times.map(|times| format!("{times:.3}")).unwrap_or_default();
                let (operation, logged) = (row.operation, row.logged);
                let _ = writeln!(
                    text,
                    "{NUMBER},{},{operation},{logged},{},{us:.3},{times}",
                    store.store,
                    place.id()
                );
            }
        }
    }
    text
}

/// The figure as a picture: the operations that commit something, over TCP. The others wait for nothing, so
/// they are in the tables only.
pub(super) fn picture(report: &SqlStoreReport, facts: &Tr190Facts) -> PlotFigure {
    let mut names: Vec<(Operation, bool)> = Vec::new();
    for row in report.stores.iter().flat_map(|store| &store.rows) {
        let operation = (row.operation, row.logged);
        if (row.logged || row.operation.changes()) && !names.contains(&operation) {
            names.push(operation);
        }
    }
    PlotFigure::Bars(BarPlot {
        title: format!("TR-190, figure {NUMBER}: {TITLE}"),
        across: "times faster over TCP than unmodified on the MODELLED disk of 8 ms a sync".to_owned(),
        key: Some((
            PointMark::Diamond,
            PlotColour::Stated,
            "TR-190 on REX, which was EXODUS on remote memory: more than three times faster".to_owned(),
        )),
        groups: { names.into_iter() }
            .map(|(operation, logged)| group(report, facts, operation, logged))
            .filter(|group| !group.rows.is_empty())
            .collect(),
    })
}

fn group(report: &SqlStoreReport, facts: &Tr190Facts, operation: Operation, logged: bool) -> BarGroup {
    let mut rows = Vec::new();
    for store in &report.stores {
        let found = { store.rows.iter() }.find(|row| (row.operation, row.logged) == (operation, logged));
        let Some(row) = found else { continue };
        for (place, word) in [
            (SqlStoreBacking::Mount(SocketKind::Tcp), "mount"),
            (SqlStoreBacking::Vfs(SocketKind::Tcp), "VFS"),
        ] {
            let times = store.times(row, place);
            rows.extend(times.map(|times| BarRow {
                label: format!("{}, {word}", store.store),
                colour: colour(store.store),
                value: Some(times),
                mark: None,
            }));
        }
    }
    let stated = facts.times(NUMBER, operation.name());
    rows.extend(stated.map(|times| BarRow {
        label: "TR-190: REX, more than".to_owned(),
        colour: PlotColour::Stated,
        value: None,
        mark: Some(times),
    }));
    BarGroup {
        name: format!("{operation}{}", if logged { " logged" } else { "" }),
        rows,
    }
}

fn colour(store: SqlStoreEngine) -> PlotColour {
    match store {
        SqlStoreEngine::Sqlite => PlotColour::Blue,
        SqlStoreEngine::SqliteRollback => PlotColour::Green,
        SqlStoreEngine::BerkeleyDb => PlotColour::Gold,
    }
}

/// The paper's claims about single operations, by each store's best place over TCP.
pub(super) fn claims(report: &SqlStoreReport, facts: &Tr190Facts) -> Vec<Tr190Claim> {
    let mut claims = Vec::new();
    for store in &report.stores {
        // t6 changes nothing, and only EXODUS logged it nevertheless.
        for row in store
            .rows
            .iter()
            .filter(|row| row.logged || row.operation.changes())
        {
            let Some(stated) = facts.times(NUMBER, row.operation.name()) else {
                continue;
            };
            let places = [
                SqlStoreBacking::Mount(SocketKind::Tcp),
                SqlStoreBacking::Vfs(SocketKind::Tcp),
            ];
            let best = places.into_iter().filter_map(|place| store.times(row, place));
            claims.extend(claim(
                format!("oo7-{}-{}", row.operation, store.store),
                ClaimSource::Paper,
                format!(
                    "OO7's {} in {} over TCP, times faster than unmodified on a MODELLED disk of 8 ms a sync",
                    name(row),
                    store.store
                ),
                format!("more than {stated} (EXODUS)"),
                best.max_by(f64::total_cmp),
                Some(RatioBound::AtLeast(stated)),
            ));
        }
    }
    claims
}

/// The figure's section of the page.
pub(super) fn section(html: &mut String, report: &SqlStoreReport, facts: &Tr190Facts) {
    let _ = writeln!(
        html,
        "<h2 id=\"fig{NUMBER}\">Figure {NUMBER}: {}</h2>",
        escaped(TITLE)
    );
    *html += &picture(report, facts).svg();
    for said in facts.remarks(NUMBER) {
        let _ = writeln!(html, "<p><b>The paper:</b> {}.</p>", escaped(said));
    }
    let _ = writeln!(html, "<p><b>What differs, and why:</b> {}</p>", escaped(DIFFERS));
    for reason in &report.skipped {
        let _ = writeln!(html, "<p class=\"no\">Not measured: {}</p>", escaped(reason));
    }
    for store in &report.stores {
        let _ = write!(html, "<table>\n<tr><th>{}, us</th>", store.store);
        for place in &store.places {
            let _ = write!(html, "<th>{}</th>", place.label());
        }
        *html += "</tr>\n";
        for row in &store.rows {
            let cells = cells_of(store, row).map(|cell| format!("<td>{cell}</td>"));
            let cells: String = cells.collect();
            let _ = writeln!(html, "<tr><td>{}</td>{cells}</tr>", name(row));
        }
        *html += "</table>\n";
    }
}

const DIFFERS: &str = "EXODUS was a server that logged every transaction; SQLite and Berkeley DB are part of the \
                       program, and a transaction that changes nothing waits for nothing. t6 is therefore also \
                       measured with a row that it writes (t6 logged). The time of an operation is that of its \
                       statements and its commit, with everything in memory; the ratio in brackets is to \
                       unmodified on the MODELLED disk.";

/// The figure's tables as Markdown.
pub(super) fn markdown(text: &mut String, report: &SqlStoreReport) {
    let _ = writeln!(text, "\n### Figure {NUMBER}: {TITLE}");
    for store in &report.stores {
        let places: Vec<String> = store.places.iter().map(|place| place.label()).collect();
        let _ = writeln!(text, "\n| {}, us | {} |", store.store, places.join(" | "));
        let _ = writeln!(text, "|---|{}", "---:|".repeat(places.len()));
        for row in &store.rows {
            let cells: Vec<String> = cells_of(store, row).collect();
            let _ = writeln!(text, "| {} | {} |", name(row), cells.join(" | "));
        }
    }
}

/// Times of all places; on remote memory with their ratio.
fn cells_of(store: &SqlStoreResult, row: &SqlStoreRow) -> impl Iterator<Item = String> {
    store.places.iter().zip(&row.times_us).map(|(place, us)| {
        let ratio = store.times(row, *place);
        match ratio.filter(|_| !matches!(place, SqlStoreBacking::Plain(_))) {
            Some(times) => format!("{} ({times:.1})", number(*us)),
            None => number(*us),
        }
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A result of SQLite: t5do, t6 and t6 logged, in four places.
    pub(crate) fn report() -> SqlStoreReport {
        let row = |operation, logged, times_us: [f64; 4]| SqlStoreRow {
            operation,
            logged,
            count: 1,
            times_us: times_us.to_vec(),
        };
        SqlStoreReport {
            skipped: Vec::new(),
            database: "small-3".to_owned(),
            rounds: 1,
            stores: vec![SqlStoreResult {
                store: SqlStoreEngine::SqliteRollback,
                places: vec![
                    SqlStoreBacking::Plain(SqlStoreDisk::Local),
                    BASELINE,
                    SqlStoreBacking::Mount(SocketKind::Tcp),
                    SqlStoreBacking::Vfs(SocketKind::Tcp),
                ],
                rows: vec![
                    row(Operation::T5Do, false, [16_500.0, 50_900.0, 52_100.0, 18_600.0]),
                    row(Operation::T6, false, [8_000.0, 8_100.0, 8_000.0, 8_000.0]),
                    row(Operation::T6, true, [8_100.0, 41_100.0, 8_700.0, 7_600.0]),
                ],
            }],
        }
    }

    #[test]
    fn the_picture_has_what_commits_and_the_papers_three_times() {
        let svg = picture(&report(), &Tr190Facts::tr190().unwrap()).svg();
        for text in [
            ">t5do<",
            ">t6 logged<",
            ">sqlite-rollback, VFS<",
            ">2.74<",
            ">5.41<",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains(">t6<"), "commits nothing");
        assert_eq!(svg.matches(">TR-190: REX, more than<").count(), 2);
    }

    #[test]
    fn the_papers_operations_are_judged_by_the_best_place() {
        let claims = claims(&report(), &Tr190Facts::tr190().unwrap());
        let told: Vec<(&str, Option<bool>)> = { claims.iter() }
            .map(|claim| (claim.id.as_str(), claim.met))
            .collect();
        let expected = [
            ("oo7-t5do-sqlite-rollback", Some(false)),
            ("oo7-t6-sqlite-rollback", Some(true)),
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn the_csv_has_every_operation_in_every_place() {
        let text = csv(&report());
        assert_eq!(text.lines().count(), 1 + 3 * 4);
        assert!(
            text.contains("12,sqlite-rollback,t6,true,vfs-tcp,7600.000,5.408"),
            "{text}"
        );
        let mut markdown = String::new();
        super::markdown(&mut markdown, &report());
        assert!(
            markdown.contains("| t6 logged | 8,100 | 41,100 | 8,700 (4.7) | 7,600 (5.4) |"),
            "{markdown}"
        );
    }

    #[test]
    fn a_quick_run_has_what_the_paper_names_and_a_full_one_everything() {
        let quick = spec(Tr190Effort::QUICK);
        assert!(quick.operations.contains(&Operation::T5Do) && quick.operations.contains(&Operation::T6));
        assert_eq!(spec(Tr190Effort::FULL).operations, Operation::ALL);
        assert_eq!(cells(Tr190Effort::FULL), 3 * 5);
    }
}
