//! `netram-lab bench oo7 --on`: in SQLite and Berkeley DB.

use std::process::ExitCode;

use anyhow::Result;
use netram_bench::sql_stores::{
    self, HARD_DISK_MB_PER_S, SqlStoreBacking, SqlStoreDisk, SqlStoreReport, SqlStoreResult,
};
use netram_bench::testbed::Testbed;
use netram_oo7::Operation;

use super::BenchOo7;
use netram_cli::output;

/// Operations with --quick: those that the paper names, and changes of many and few objects.
const QUICK: [Operation; 6] = [
    Operation::T1,
    Operation::T2a,
    Operation::T2b,
    Operation::T5Do,
    Operation::T6,
    Operation::T12a,
];

impl BenchOo7 {
    pub(super) fn in_databases(&self, site: &Testbed) -> Result<ExitCode> {
        let usual = if self.common.quick { 3 } else { 7 };
        let operations = match (self.operations.as_slice(), self.common.quick) {
            ([], true) => QUICK.to_vec(),
            ([], false) => Operation::ALL.to_vec(),
            (chosen, _) => chosen.to_vec(),
        };
        let spec = sql_stores::SqlStoreSpec {
            database: self.database,
            engines: self.on.clone(),
            operations,
            rounds: self.repetitions.unwrap_or(usual).into(),
        };
        let report = sql_stores::measure(site, &spec, &mut |engine, what| {
            output::remark(format_args!("{engine}: {what} ..."));
        })?;
        match self.common.json {
            true => self.common.json(&report)?,
            false => show(&report)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// A table for each store and disk.
pub(in crate::command::bench) fn show(report: &SqlStoreReport) -> Result<()> {
    for why in &report.skipped {
        output::line(format_args!("SKIPPED: {why}"))?;
    }
    for measured in &report.stores {
        for place in &measured.places {
            if let SqlStoreBacking::Plain(disk) = place {
                table(report, measured, *disk)?;
            }
        }
    }
    Ok(())
}

fn table(report: &SqlStoreReport, measured: &SqlStoreResult, disk: SqlStoreDisk) -> Result<()> {
    let disk_words = match disk {
        SqlStoreDisk::Local => "the local disk".to_owned(),
        SqlStoreDisk::Modelled => "a MODELLED disk, 8 ms added to each sync".to_owned(),
        SqlStoreDisk::Hard => {
            format!("a MODELLED hard disk, 8 ms added to each sync and {HARD_DISK_MB_PER_S} MB/s")
        }
    };
    output::line(format_args!(
        "\n{}, {}, on {disk_words}; µs of operation and commit, median of {}:",
        measured.store,
        report.database,
        output::counted(report.rounds as u64, "round", "rounds")
    ))?;
    let at = |way: &SqlStoreBacking| measured.places.iter().position(|place| place == way);
    let plain = at(&SqlStoreBacking::Plain(disk));
    let others = measured
        .places
        .iter()
        .filter(|place| !matches!(place, SqlStoreBacking::Plain(_)));
    let mut header = vec![
        "operation".to_owned(),
        "count".to_owned(),
        "unmodified".to_owned(),
    ];
    for way in others.clone() {
        header.extend([way.label(), "×".to_owned()]);
    }
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = output::table(&header, 1);
    for row in &measured.rows {
        let time = |place: Option<usize>| place.and_then(|place| row.times_us.get(place)).copied();
        let unmodified = time(plain).unwrap_or(f64::NAN);
        let mut words = vec![
            format!("{}{}", row.operation, if row.logged { " logged" } else { "" }),
            output::thousands(i64::try_from(row.count)?),
            output::number(unmodified),
        ];
        for way in others.clone() {
            let took = time(at(way)).unwrap_or(f64::NAN);
            words.extend([output::number(took), format!("{:.1}", unmodified / took)]);
        }
        table.add_row(words);
    }
    output::line(table)
}
