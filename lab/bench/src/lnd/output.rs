//! The files of a run: a CSV and a picture for each figure, a CSV of the table, and everything as Markdown.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::facts::LndFacts;
use super::system::LndSystem;
use super::transactions::PgbenchRates;
use super::{LndFigure, LndReport, plot};
use crate::databases::mariadb::MariadbRates;
use crate::error::BenchError;
use crate::paper::output::{ResultsDirectory, RunInfo};
use crate::paper::page::number;
use crate::plot::thousands;

/// The columns of a figure's file.
pub const HEADER: &str = "figure,system,x,unit,kb_per_second,writes,p50_us,p99_us,max_us";
/// The columns of the table's file.
pub const TABLE_HEADER: &str = "system,insert,create,drop,create_and_drop";
/// The columns of PostgreSQL's file.
pub const POSTGRES_HEADER: &str = "system,one_per_second,one_ms,eight_per_second,eight_ms";
/// The document with all tables.
pub const TABLES: &str = "lnd-results.md";

/// Writes all files into `directory`, which is created if missing. Returns the files written.
///
/// # Errors
///
/// Fails if a file cannot be written, or a picture not drawn.
pub fn write(
    report: &LndReport,
    run: &RunInfo,
    directory: &Path,
    png: bool,
) -> Result<Vec<PathBuf>, BenchError> {
    let facts = LndFacts::lnd()?;
    let mut results = ResultsDirectory::new(directory)?;
    for figure in &report.figures {
        let name = format!("lnd-fig{:02}", figure.number);
        results.save_figure(&name, &csv(figure), &plot::picture(figure), png)?;
    }
    if !report.table.is_empty() {
        let rows = report.table.iter().map(|(system, done)| (*system, done.all()));
        let csv = table_csv(TABLE_HEADER, rows);
        results.save_figure("lnd-table2", &csv, &plot::table(report, &facts), png)?;
    }
    if !report.transactions.is_empty() {
        let rows = report
            .transactions
            .iter()
            .map(|(system, done)| (*system, done.all()));
        let csv = table_csv(POSTGRES_HEADER, rows);
        results.save_figure("lnd-postgres", &csv, &plot::postgres(report), png)?;
    }
    let title = "The experiments of LND: all tables";
    results.save_document(TABLES, title, "lnd.md", &tables(report, &facts, run))?;
    Ok(results.files_written)
}

// Writing to a string cannot fail, here and below.

fn csv(figure: &LndFigure) -> String {
    let mut text = format!("{HEADER}\n");
    for point in &figure.points {
        let written = point.written;
        let _ = writeln!(
            text,
            "{},{},{},{},{:.3},{},{:.3},{:.3},{:.3}",
            figure.number,
            point.system.id(),
            point.x,
            figure.axis.replace(", ", " in "),
            written.kb_per_second,
            written.writes,
            written.p50_us,
            written.p99_us,
            written.max_us,
        );
    }
    text
}

fn table_csv(header: &str, rows: impl Iterator<Item = (LndSystem, [f64; 4])>) -> String {
    let mut text = format!("{header}\n");
    for (system, values) in rows {
        let values = values.map(|value| format!("{value:.3}"));
        let _ = writeln!(text, "{},{}", system.id(), values.join(","));
    }
    text
}

impl MariadbRates {
    /// In the paper's order.
    pub fn all(&self) -> [f64; 4] {
        [self.insert, self.create, self.drop, self.create_and_drop]
    }
}

impl PgbenchRates {
    /// In the order of the columns.
    pub fn all(&self) -> [f64; 4] {
        [self.one, self.one_ms, self.eight, self.eight_ms]
    }
}

/// Every figure's throughputs and latencies, volumes over disks, the table, and the paper's statements.
fn tables(report: &LndReport, facts: &LndFacts, run: &RunInfo) -> String {
    let mut text = format!(
        "Taken {}; {} of {} ms a cell.\n\
         The paper's machines: {}.\n",
        run.on(&report.machine),
        match report.plan.rounds {
            1 => "one round".to_owned(),
            several => format!("medians of {several} rounds"),
        },
        report.plan.cap.as_millis(),
        facts.hardware,
    );
    for skipped in &report.skipped {
        let _ = writeln!(text, "\nNot measured: {skipped}.");
    }
    for figure in &report.figures {
        let _ = writeln!(text, "\n### Figure {}: {}\n", figure.number, figure.title);
        for said in facts.said.iter().filter(|said| said.figure == figure.number) {
            let _ = writeln!(text, "The paper: {}.\n", said.text);
        }
        throughputs(&mut text, figure);
        latencies(&mut text, figure);
    }
    database(&mut text, report, facts);
    text
}

fn head(text: &mut String, first: &str, places: &[u64]) {
    let _ = write!(text, "| {first} |");
    for &place in places {
        let _ = write!(text, " {} |", thousands(place as f64));
    }
    text.push_str("\n|---|");
    text.push_str(&"---:|".repeat(places.len()));
    text.push('\n');
}

fn row(text: &mut String, name: &str, places: &[u64], value: impl Fn(u64) -> Option<String>) {
    let _ = write!(text, "| {name} |");
    for &place in places {
        let _ = write!(text, " {} |", value(place).unwrap_or_default());
    }
    text.push('\n');
}

fn throughputs(text: &mut String, figure: &LndFigure) {
    let (places, systems) = (figure.x_values(), figure.systems());
    head(text, &format!("KB a second; {}", figure.axis), &places);
    for &system in &systems {
        row(text, system.label(), &places, |x| {
            Some(number(figure.at(system, x)?.written.kb_per_second))
        });
    }
    for below in [LndSystem::Disk, LndSystem::Modelled] {
        for &system in systems.iter().filter(|system| system.stands_beside(below)) {
            let over = |x| {
                let [above, below] = [system, below].map(|one| figure.at(one, x));
                Some(above?.written.kb_per_second / below?.written.kb_per_second)
            };
            if systems.contains(&below) {
                let name = format!("{} / {}", system.label(), below.label());
                row(text, &name, &places, |x| Some(format!("{} ×", number(over(x)?))));
            }
        }
    }
}

fn latencies(text: &mut String, figure: &LndFigure) {
    let places = figure.x_values();
    text.push('\n');
    head(text, "p50 / p99, µs", &places);
    for system in figure.systems() {
        row(text, system.label(), &places, |x| {
            let written = figure.at(system, x)?.written;
            Some(format!("{} / {}", number(written.p50_us), number(written.p99_us)))
        });
    }
}

fn database(text: &mut String, report: &LndReport, facts: &LndFacts) {
    if !report.table.is_empty() {
        let version = report.database.as_deref().unwrap_or_default();
        let _ = writeln!(
            text,
            "\n### Table 2: a database ({version}), all its data on ext4 on the device; operations a second\n\n\
             | device | insert | create table | drop table | create and drop |\n|---|---:|---:|---:|---:|"
        );
        for (system, done) in &report.table {
            database_row(text, system.label(), done.all());
        }
        for stated in &facts.table {
            database_row(text, &format!("the paper: {}", stated.name), stated.per_second);
        }
    }
    if !report.transactions.is_empty() {
        let version = report.postgres.as_deref().unwrap_or_default();
        let _ = writeln!(
            text,
            "\n### Not in the paper: PostgreSQL\n\npgbench on {version}, all its data on ext4 on the device.\n\n\
             | device | a second, one client | ms each | a second, eight clients | ms each |\n|---|---:|---:|---:|---:|"
        );
        for (system, done) in &report.transactions {
            database_row(text, system.label(), done.all());
        }
    }
}

fn database_row(text: &mut String, name: &str, values: [f64; 4]) {
    let _ = writeln!(text, "| {name} | {} |", values.map(number).join(" | "));
}

#[cfg(test)]
mod tests {
    use super::super::fio::FioWrites;
    use super::super::{FIGURES, LndPlan, LndPoint};
    use super::*;
    use crate::machine::MachineInfo;
    use std::fs;

    fn report() -> LndReport {
        let figure = |number| LndFigure {
            number,
            title: "Something".to_owned(),
            axis: "block, bytes",
            points: [1024, 4096]
                .into_iter()
                .flat_map(|x| {
                    LndSystem::DEVICES.map(|system| LndPoint {
                        system,
                        x,
                        written: FioWrites {
                            kb_per_second: if system.network().is_some() {
                                8_000.0
                            } else {
                                1_000.0
                            },
                            writes: 100,
                            p50_us: 20.0,
                            p99_us: 30.0,
                            max_us: 40.0,
                        },
                    })
                })
                .collect(),
        };
        LndReport {
            machine: MachineInfo::probe(),
            plan: LndPlan {
                figures: Vec::new(),
                rounds: 1,
                cap: std::time::Duration::from_secs(1),
                quick: false,
            },
            skipped: vec!["one thing".to_owned()],
            figures: FIGURES.map(figure).to_vec(),
            table: vec![(LndSystem::Disk, MariadbRates::default())],
            database: None,
            transactions: vec![(LndSystem::Disk, PgbenchRates::default())],
            postgres: Some("PostgreSQL".to_owned()),
        }
    }

    #[test]
    fn every_figure_gets_its_files_and_tables_are_whole() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunInfo {
            began: String::new(),
            command: String::new(),
            disk: String::new(),
        };
        let written = write(&report(), &run, directory.path(), true).unwrap();
        assert_eq!(written.len(), (FIGURES.len() + 2) * 4 + 1);
        let text = fs::read_to_string(directory.path().join(TABLES)).unwrap();
        let parts: Vec<&str> = text.split("\n\n").filter(|part| part.starts_with('|')).collect();
        assert_eq!(parts.len(), FIGURES.len() * 2 + 2);
        for part in parts {
            let cells: Vec<usize> = part.lines().map(|line| line.matches('|').count()).collect();
            assert!(cells.iter().all(|count| *count == cells[0]), "{part}");
        }
        assert!(
            text.contains("| volume, any (LCP), TCP / local disk | 8.00 × | 8.00 × |"),
            "{text}"
        );
        assert!(!text.contains("on a MODELLED disk / local disk"), "{text}");
        assert!(text.contains("Not measured: one thing."));
        assert!(text.contains("| the paper: SCSI disk | 67.5 | 3.28 | 37.0 | 2.81 |"));
        let csv = fs::read_to_string(directory.path().join("lnd-fig04.csv")).unwrap();
        assert_eq!(csv.lines().count(), 1 + 2 * LndSystem::DEVICES.len());
        assert!(csv.contains("4,volume-lcp-tcp,4096,block in bytes,8000.000,100,20.000,30.000,40.000"));
    }
}
