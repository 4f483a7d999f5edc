//! The comparison as a picture: one line for each workload of each database, transactions per second across,
//! one colour for each storage.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{DatabaseDisk, DatabaseKind, DatabaseReport, DatabaseStorage, DatabaseWork};
use crate::error::{BenchError, ErrorContext};
use crate::paper::plot::thousands;

const WIDTH: u32 = 1080;
/// Height in pixels of a line, of the header, and of the footer.
const LINE: u32 = 30;
const ABOVE: u32 = 64;
const BELOW: u32 = 50;
/// Width in pixels of the names on the left.
const NAMES: u32 = 230;
const RIGHT: u32 = 24;
const TEXT_PIXELS: u32 = 15;

/// Key of a line.
type PlotLine = (DatabaseKind, DatabaseWork);

/// The comparison as SVG, a whole `<svg>` element.
pub(super) fn svg(report: &DatabaseReport) -> Result<String, BenchError> {
    let lines = lines(report);
    let mut text = String::new();
    let height = ABOVE + LINE * lines.len() as u32 + BELOW;
    let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
    draw(&area, report, &lines).context("draw the comparison")?;
    drop(area);
    Ok(text)
}

fn lines(report: &DatabaseReport) -> Vec<PlotLine> {
    let mut lines: Vec<PlotLine> = Vec::new();
    for cell in &report.cells {
        let line = (cell.database, cell.work);
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

fn colour(storage: DatabaseStorage) -> RGBColor {
    match storage {
        DatabaseStorage::Plain => RGBColor(200, 40, 40),
        DatabaseStorage::Mount => RGBColor(30, 90, 200),
        DatabaseStorage::Disk => RGBColor(20, 150, 170),
        DatabaseStorage::Vfs => RGBColor(40, 140, 60),
        DatabaseStorage::RemoteWrite => RGBColor(210, 130, 20),
        DatabaseStorage::Off => RGBColor(120, 120, 120),
    }
}

type DrawError<'t> = DrawingAreaErrorKind<<SVGBackend<'t> as DrawingBackend>::ErrorType>;

fn draw<'t>(
    area: &DrawingArea<SVGBackend<'t>, Shift>,
    report: &DatabaseReport,
    lines: &[PlotLine],
) -> Result<(), DrawError<'t>> {
    area.fill(&WHITE)?;
    let rates = || report.cells.iter().map(|cell| cell.per_second.max(1e-3));
    let least = rates().fold(f64::INFINITY, f64::min).log10().floor();
    let most = rates().fold(0.0, f64::max).log10().ceil().max(least + 1.0);
    let across = |rate: f64| {
        let part = (rate.max(1e-3).log10() - least) / (most - least);
        (f64::from(NAMES) + part * f64::from(WIDTH - NAMES - RIGHT)) as i32
    };
    let bottom = (ABOVE + LINE * lines.len() as u32) as i32;
    let style = |across, upwards| {
        ("sans-serif", TEXT_PIXELS)
            .into_text_style(area)
            .pos(Pos::new(across, upwards))
    };
    let (left, middle) = (style(HPos::Left, VPos::Center), style(HPos::Center, VPos::Top));
    for power in least as i32..=most as i32 {
        let rate = 10_f64.powi(power);
        let x = across(rate);
        let grey = RGBColor(205, 205, 205);
        area.draw(&PathElement::new(vec![(x, ABOVE as i32), (x, bottom)], grey))?;
        area.draw_text(&thousands(rate), &middle, (x, bottom + 6))?;
    }
    let below = (((NAMES + WIDTH) / 2) as i32, bottom + 28);
    area.draw_text("transactions a second", &middle, below)?;
    for (index, (database, work)) in lines.iter().enumerate() {
        let y = (ABOVE + LINE * index as u32 + LINE / 2) as i32;
        let name = format!("{}, {}", database.label(), work.label());
        area.draw_text(&name, &left, (10, y))?;
        let pale = RGBColor(238, 238, 238);
        let line = vec![(NAMES as i32, y), ((WIDTH - RIGHT) as i32, y)];
        area.draw(&PathElement::new(line, pale))?;
        for cell in &report.cells {
            if (cell.database, cell.work) == (*database, *work) {
                mark(area, (across(cell.per_second), y), cell.storage, cell.disk)?;
            }
        }
    }
    legend(area, report, &left)
}

/// Dots stand for the local disk, triangles for the modelled one.
fn mark<'t>(
    area: &DrawingArea<SVGBackend<'t>, Shift>,
    at: (i32, i32),
    storage: DatabaseStorage,
    disk: DatabaseDisk,
) -> Result<(), DrawError<'t>> {
    let filled = colour(storage).filled();
    match disk {
        DatabaseDisk::Local => area.draw(&Circle::new(at, 5, filled)),
        DatabaseDisk::Modelled => area.draw(&TriangleMarker::new(at, 7, filled)),
    }
}

fn legend<'t>(
    area: &DrawingArea<SVGBackend<'t>, Shift>,
    report: &DatabaseReport,
    style: &TextStyle<'_>,
) -> Result<(), DrawError<'t>> {
    let has = |storage: &DatabaseStorage| report.cells.iter().any(|cell| cell.storage == *storage);
    let mut x = 10;
    for storage in DatabaseStorage::ALL.into_iter().filter(has) {
        let name = match storage {
            DatabaseStorage::Off => "the database's own setting that waits for nothing",
            other => other.label(DatabaseKind::Postgresql),
        };
        mark(area, (x + 5, 18), storage, DatabaseDisk::Local)?;
        area.draw_text(name, style, (x + 16, 18))?;
        x += 40 + 8 * name.len() as i32;
    }
    let kinds = "Dots: the local disk. Triangles: a MODELLED disk, 1 ms more a sync.";
    area.draw_text(kinds, style, (10, 42))
}
