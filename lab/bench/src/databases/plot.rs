//! The comparison as a picture: a group of bars for each workload of each database. Bars are rates on the
//! local disk, hollow triangles rates on the modelled one.

use super::{DatabaseDisk, DatabaseKind, DatabaseReport, DatabaseStorage, DatabaseWork};
use crate::plot::{BarGroup, BarPlot, BarRow, PlotColour, PlotFigure, PointMark};

/// The comparison's picture.
pub(super) fn picture(report: &DatabaseReport) -> PlotFigure {
    let group = |(database, work): (DatabaseKind, DatabaseWork)| BarGroup {
        name: format!("{}, {}", database.label(), work.label()),
        rows: { DatabaseStorage::ALL.into_iter() }
            .filter_map(|storage| row(report, database, work, storage))
            .collect(),
    };
    PlotFigure::Bars(BarPlot {
        title: "Databases with their commits on a disk, on netram, and waiting for nothing".to_owned(),
        across: "transactions a second".to_owned(),
        key: Some((
            PointMark::Delta,
            PlotColour::Ink,
            "a MODELLED disk, 1 ms more a sync (in brackets); bars: the local disk".to_owned(),
        )),
        groups: groups(report).into_iter().map(group).collect(),
    })
}

fn row(
    report: &DatabaseReport,
    database: DatabaseKind,
    work: DatabaseWork,
    storage: DatabaseStorage,
) -> Option<BarRow> {
    let rate = |disk| report.rate(database, work, storage, disk);
    let (value, mark) = (rate(DatabaseDisk::Local), rate(DatabaseDisk::Modelled));
    (value.is_some() || mark.is_some()).then(|| BarRow {
        label: storage.label(database).to_owned(),
        colour: colour(storage),
        value,
        mark,
    })
}

/// Workloads that were measured, in the order of measurement.
fn groups(report: &DatabaseReport) -> Vec<(DatabaseKind, DatabaseWork)> {
    let mut groups = Vec::new();
    for cell in &report.cells {
        let group = (cell.database, cell.work);
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

fn colour(storage: DatabaseStorage) -> PlotColour {
    match storage {
        DatabaseStorage::Plain => PlotColour::Vermilion,
        DatabaseStorage::Mount => PlotColour::Blue,
        DatabaseStorage::Disk => PlotColour::Sky,
        DatabaseStorage::Vfs => PlotColour::Green,
        DatabaseStorage::RemoteWrite => PlotColour::Gold,
        DatabaseStorage::Off => PlotColour::Grey,
    }
}
