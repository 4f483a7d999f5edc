//! The files of a comparison: a CSV, a picture, and the table as Markdown.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use super::{
    DatabaseCell, DatabaseDisk, DatabaseKind, DatabaseReport, DatabaseStorage, DatabaseWork, PossibleLosses,
    PowerCuts, plot,
};
use crate::error::BenchError;
use crate::paper::output::{ResultsDirectory, RunInfo};
use crate::peers::output::microseconds;
use crate::plot::thousands;

/// The columns of the file with all figures.
pub const HEADER: &str = "database,work,storage,disk,per_second,times_plain,p50_us,p99_us";
/// The document with the table.
pub const TABLES: &str = "databases-results.md";

/// A row of the table: a database, its workload and its storage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ComparisonRow {
    /// The database.
    pub database: DatabaseKind,
    /// The workload.
    pub work: DatabaseWork,
    /// The storage.
    pub storage: DatabaseStorage,
    /// Transactions per second, and their ratio to plain storage, on each disk of [`DatabaseDisk::ALL`].
    pub rates: [Option<(f64, Option<f64>)>; 2],
    /// Median and 99th percentile of a commit's latency in microseconds, on the same disks.
    pub latencies_us: [Option<[f64; 2]>; 2],
    /// Possible losses.
    pub losses: PossibleLosses,
    /// Measured losses by power cuts.
    pub cuts: Option<PowerCuts>,
}

/// The rows in the table's order.
pub fn rows(report: &DatabaseReport) -> Vec<ComparisonRow> {
    let mut rows: Vec<ComparisonRow> = Vec::new();
    for database in DatabaseKind::ALL {
        for &work in database.works() {
            for storage in DatabaseStorage::ALL {
                let rates = DatabaseDisk::ALL.map(|disk| {
                    let rate = report.rate(database, work, storage, disk)?;
                    Some((rate, report.times_plain(database, work, storage, disk)))
                });
                if rates.iter().any(Option::is_some) {
                    rows.push(ComparisonRow {
                        database,
                        work,
                        storage,
                        rates,
                        latencies_us: DatabaseDisk::ALL
                            .map(|disk| latency(report, (database, work, storage, disk))),
                        // Records are records: once for all of a database's works.
                        cuts: report
                            .cuts(database, storage)
                            .copied()
                            .filter(|_| work == DatabaseWork::Insert),
                        losses: PossibleLosses::of(database, storage),
                    });
                }
            }
        }
    }
    rows
}

fn latency(
    report: &DatabaseReport,
    wanted: (DatabaseKind, DatabaseWork, DatabaseStorage, DatabaseDisk),
) -> Option<[f64; 2]> {
    let of = |cell: &&DatabaseCell| (cell.database, cell.work, cell.storage, cell.disk) == wanted;
    report.cells.iter().find(of)?.latency_us
}

/// Writes all files into `directory`, which is created if missing. Returns the files written.
///
/// # Errors
///
/// Fails if a file cannot be written.
pub fn write(report: &DatabaseReport, run: &RunInfo, directory: &Path) -> Result<Vec<PathBuf>, BenchError> {
    let mut results = ResultsDirectory::new(directory)?;
    results.save("databases.csv", csv(report).as_bytes())?;
    results.save("databases.svg", plot::picture(report).svg().as_bytes())?;
    let title = "Databases on volumes and mounts: all tables";
    results.save_document(TABLES, title, "databases.md", &tables(report, run))?;
    Ok(results.files_written)
}

// Writing to a string cannot fail, here and below.

fn csv(report: &DatabaseReport) -> String {
    let mut text = format!("{HEADER}\n");
    for cell in &report.cells {
        let times = report.times_plain(cell.database, cell.work, cell.storage, cell.disk);
        let times = times.map(|times| format!("{times:.3}")).unwrap_or_default();
        let latency = cell.latency_us.map(|[p50, p99]| format!("{p50:.1},{p99:.1}"));
        let _ = writeln!(
            text,
            "{},{},{},{},{:.1},{times},{}",
            cell.database.id(),
            cell.work.label().replace(',', ""),
            cell.storage.id(),
            cell.disk.id(),
            cell.per_second,
            latency.as_deref().unwrap_or(","),
        );
    }
    text
}

/// A rate in a row: transactions per second, and the ratio to plain storage.
pub fn rate_cells(rate: Option<(f64, Option<f64>)>) -> [String; 2] {
    let Some((rate, times)) = rate else {
        return [String::new(), String::new()];
    };
    let digits = times.map(|times| match times {
        ..10.0 => format!("{times:.2}"),
        _ => format!("{times:.1}"),
    });
    [thousands(rate), digits.unwrap_or_default()]
}

/// A median and a 99th percentile in a row.
pub fn latency_cell(latency_us: Option<[f64; 2]>) -> String {
    latency_us
        .map(|latency| latency.map(microseconds).join(", "))
        .unwrap_or_default()
}

fn tables(report: &DatabaseReport, run: &RunInfo) -> String {
    let versions: Vec<String> = { report.versions.iter() }
        .map(|(database, version)| format!("{} {version}", database.label()))
        .collect();
    let mut text = format!(
        "Run {}. {}. One lender on this machine, over encrypted TCP, `--wait {}`; \
         medians of {} rounds in turns. The slower disk is MODELLED: 1 ms more a sync.\n",
        run.on(&report.machine),
        versions.join("; "),
        report.wait,
        report.rounds,
    );
    for skipped in &report.skipped {
        let _ = writeln!(text, "\nNot run: {skipped}.");
    }
    let _ = writeln!(
        text,
        "\n| database | does | on | a second, local disk | × plain | p50, p99 µs | MODELLED disk | × plain | p50, p99 µs | may lose: in a crash | measured, power cuts | with its lender or standby | with its disk |\n\
         |---|---|---|---:|---:|---:|---:|---:|---:|---|---|---|---|"
    );
    for row in rows(report) {
        let [local, modelled] = row.rates.map(rate_cells);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            row.database.label(),
            row.work.label(),
            row.storage.label(row.database),
            local[0],
            local[1],
            latency_cell(row.latencies_us[0]),
            modelled[0],
            modelled[1],
            latency_cell(row.latencies_us[1]),
            row.losses.crash,
            row.cuts.as_ref().map(PowerCuts::told).unwrap_or_default(),
            row.losses.both,
            row.losses.disk,
        );
    }
    let _ = writeln!(text, "\n| expected | ratio | at least | |\n|---|---:|---:|---|");
    for claim in &report.claims {
        let met = if claim.met { "held" } else { "**not held**" };
        let _ = writeln!(
            text,
            "| {} | {:.2} | {} | {met} |",
            claim.what, claim.ratio, claim.least
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::claims;
    use super::*;
    use crate::machine::MachineInfo;

    fn report() -> DatabaseReport {
        let mut report = DatabaseReport {
            machine: MachineInfo::probe(),
            wait: "yield:50".to_owned(),
            rounds: 1,
            versions: vec![(DatabaseKind::Sqlite, "3".to_owned())],
            cells: Vec::new(),
            cuts: vec![PowerCuts {
                database: DatabaseKind::Sqlite,
                storage: DatabaseStorage::Off,
                cuts: 2,
                acknowledged: 90,
                lost: 50,
                unusable: 1,
            }],
            claims: Vec::new(),
            skipped: vec!["LMDB: there is no lmdb.h".to_owned()],
        };
        for disk in DatabaseDisk::ALL {
            for (storage, per_second) in [
                (DatabaseStorage::Plain, 10_000.0),
                (DatabaseStorage::Vfs, 25_000.0),
                (DatabaseStorage::Off, 90_000.0),
            ] {
                report.cells.push(DatabaseCell {
                    database: DatabaseKind::Sqlite,
                    work: DatabaseWork::Insert,
                    storage,
                    disk,
                    per_second,
                    latency_us: (storage == DatabaseStorage::Off).then_some([1.5, 1234.0]),
                });
            }
        }
        report.claims = claims::all(&report);
        report
    }

    #[test]
    fn a_row_has_both_disks_and_its_possible_losses() {
        let report = report();
        let rows = rows(&report);
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1].rates, [Some((25_000.0, Some(2.5))); 2]);
        assert_eq!(
            rate_cells(rows[1].rates[0]),
            ["25,000".to_owned(), "2.50".to_owned()]
        );
        assert!(rows[2].losses.crash.contains("silently"));
        let met: Vec<bool> = report.claims.iter().map(|claim| claim.met).collect();
        assert_eq!(
            met,
            [true, false],
            "twice on the local disk, not ten times on the slow one"
        );
    }

    #[test]
    fn its_files_are_written() {
        let directory = tempfile::tempdir().unwrap();
        let run = RunInfo {
            began: String::new(),
            command: "netram-lab bench databases".to_owned(),
            disk: String::new(),
        };
        let written = write(&report(), &run, directory.path()).unwrap();
        assert_eq!(written.len(), 3);
        let text = std::fs::read_to_string(directory.path().join(TABLES)).unwrap();
        assert!(
            text.contains("| SQLite | insert | netram VFS | 25,000 | 2.50 |  | 25,000 |"),
            "{text}"
        );
        let lost = "| 1.5, 1,234 | since the last checkpoint, silently | 50 of 90, in 2 cuts; 1 × it did not start |";
        assert!(text.contains(lost), "{text}");
        assert!(text.contains("**not held**") && text.contains("lmdb.h"), "{text}");
        let picture = std::fs::read_to_string(directory.path().join("databases.svg")).unwrap();
        for text in [">SQLite, insert<", ">netram VFS<", ">25,000 (25,000)<"] {
            assert!(picture.contains(text), "{text}");
        }
        assert_eq!(picture.matches("class=\"bar\"").count(), 3);
    }
}
