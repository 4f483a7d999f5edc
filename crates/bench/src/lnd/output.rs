//! The files of a run: a CSV and a picture a figure, a CSV of the table, and everything as Markdown.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use plotters::style::RGBColor;

use super::database::Operations;
use super::facts::Facts;
use super::system::{Network, System};
use super::{Figure, Report};
use crate::error::{BenchError, Context};
use crate::paper::output::Run;
use crate::paper::page::number;
use crate::paper::plot::{Curve, Look, Mark, Picture, thousands};

/// The columns of a figure's file.
pub const HEADER: &str = "figure,system,x,unit,kb_per_second,writes,p50_us,p99_us,max_us";
/// The columns of the table's.
pub const TABLE_HEADER: &str = "system,insert,create,drop,create_and_drop";
/// The document with all tables.
pub const TABLES: &str = "lnd.md";

/// Writes everything into `folder`, made if it is not there. Returns the files written.
pub fn write(report: &Report, run: &Run, folder: &Path, png: bool) -> Result<Vec<PathBuf>, BenchError> {
    fs::create_dir_all(folder).context(format_args!("make the folder {}", folder.display()))?;
    let mut written = Vec::new();
    let mut save = |name: String, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).context(format_args!("write {}", path.display()))?;
        written.push(path);
        Ok::<(), BenchError>(())
    };
    for figure in &report.figures {
        let name = format!("lnd-fig{:02}", figure.number);
        save(format!("{name}.csv"), csv(figure).as_bytes())?;
        let picture = picture(figure);
        save(format!("{name}.svg"), picture.svg()?.as_bytes())?;
        if png {
            save(format!("{name}.png"), &picture.png()?)?;
        }
    }
    if !report.table.is_empty() {
        save("lnd-table2.csv".to_owned(), table_csv(&report.table).as_bytes())?;
    }
    save(TABLES.to_owned(), tables(report, &Facts::lnd()?, run).as_bytes())?;
    Ok(written)
}

// Writing to a string cannot fail, here and below.

fn csv(figure: &Figure) -> String {
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

fn table_csv(rows: &[(System, Operations)]) -> String {
    let mut text = format!("{TABLE_HEADER}\n");
    for (system, done) in rows {
        let [insert, create, drop, both] = done.all();
        let _ = writeln!(
            text,
            "{},{insert:.3},{create:.3},{drop:.3},{both:.3}",
            system.id()
        );
    }
    text
}

impl Operations {
    /// In the paper's order.
    pub fn all(&self) -> [f64; 4] {
        [self.insert, self.create, self.drop, self.create_and_drop]
    }
}

fn picture(figure: &Figure) -> Picture {
    let curve = |system: System| Curve {
        label: system.label().to_owned(),
        look: look(system),
        points: figure
            .points
            .iter()
            .filter(|point| point.system == system)
            .map(|point| (point.x, point.written.kb_per_second))
            .collect(),
    };
    Picture {
        title: format!("LND, figure {}: {}", figure.number, figure.title),
        across: figure.axis.to_owned(),
        upwards: "KB a second".to_owned(),
        curves: figure.systems().into_iter().map(curve).collect(),
    }
}

fn look(system: System) -> Look {
    let (colour, dashed, mark) = match system {
        System::Disk => (RGBColor(200, 40, 40), false, Mark::Dot),
        System::Modelled => (RGBColor(200, 40, 40), true, Mark::Triangle),
        System::Volume { all, network } => {
            let colour = match network {
                Network::Tcp => RGBColor(30, 90, 200),
                Network::Multicast => RGBColor(40, 140, 60),
            };
            (colour, !all, if all { Mark::Dot } else { Mark::Triangle })
        }
    };
    Look { colour, dashed, mark }
}

/// Every figure's throughputs and latencies, volumes over disks, the table, and what the paper says.
fn tables(report: &Report, facts: &Facts, run: &Run) -> String {
    let machine = &report.machine;
    let mut text = format!(
        "Taken {} on {}, {} cores, Linux {}, load {:.2} at the start, files on {}: `{}`; {} of {} ms a cell.\n\
         The paper's machines: {}.\n",
        run.began,
        machine.processor,
        machine.cores,
        machine.kernel,
        machine.load,
        run.disk,
        run.command,
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

fn throughputs(text: &mut String, figure: &Figure) {
    let (places, systems) = (figure.places(), figure.systems());
    head(text, &format!("KB a second; {}", figure.axis), &places);
    for &system in &systems {
        row(text, system.label(), &places, |x| {
            Some(number(figure.at(system, x)?.written.kb_per_second))
        });
    }
    for below in [System::Disk, System::Modelled] {
        for &system in systems.iter().filter(|system| system.network().is_some()) {
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

fn latencies(text: &mut String, figure: &Figure) {
    let places = figure.places();
    text.push('\n');
    head(text, "p50 / p99, µs", &places);
    for system in figure.systems() {
        row(text, system.label(), &places, |x| {
            let written = figure.at(system, x)?.written;
            Some(format!("{} / {}", number(written.p50_us), number(written.p99_us)))
        });
    }
}

fn database(text: &mut String, report: &Report, facts: &Facts) {
    if report.table.is_empty() {
        return;
    }
    let version = report.database.as_deref().unwrap_or_default();
    let _ = writeln!(
        text,
        "\n### Table 2: a database ({version}), all its data on ext4 on the device; operations a second\n\n\
         | device | insert | create table | drop table | create and drop |\n|---|---:|---:|---:|---:|"
    );
    let mut row = |name: &str, values: [f64; 4]| {
        let values = values.map(number);
        let _ = writeln!(text, "| {name} | {} |", values.join(" | "));
    };
    for (system, done) in &report.table {
        row(system.label(), done.all());
    }
    for stated in &facts.table {
        row(&format!("the paper: {}", stated.name), stated.per_second);
    }
}

#[cfg(test)]
mod tests {
    use super::super::fio::Written;
    use super::super::{FIGURES, Plan, Point};
    use super::*;
    use crate::machine::Machine;

    fn report() -> Report {
        let figure = |number| Figure {
            number,
            title: "Something".to_owned(),
            axis: "block, bytes",
            points: [1024, 4096]
                .into_iter()
                .flat_map(|x| {
                    System::ALL.map(|system| Point {
                        system,
                        x,
                        written: Written {
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
        Report {
            machine: Machine::look(),
            plan: Plan {
                figures: Vec::new(),
                rounds: 1,
                cap: std::time::Duration::from_secs(1),
                quick: false,
            },
            skipped: vec!["one thing".to_owned()],
            figures: FIGURES.map(figure).to_vec(),
            table: vec![(System::Disk, Operations::default())],
            database: None,
        }
    }

    #[test]
    fn every_figure_gets_its_files_and_tables_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let run = Run {
            began: String::new(),
            command: String::new(),
            disk: String::new(),
        };
        let written = write(&report(), &run, folder.path(), true).unwrap();
        assert_eq!(written.len(), FIGURES.len() * 3 + 2);
        let text = fs::read_to_string(folder.path().join(TABLES)).unwrap();
        let parts: Vec<&str> = text.split("\n\n").filter(|part| part.starts_with('|')).collect();
        assert_eq!(parts.len(), FIGURES.len() * 2 + 1);
        for part in parts {
            let cells: Vec<usize> = part.lines().map(|line| line.matches('|').count()).collect();
            assert!(cells.iter().all(|count| *count == cells[0]), "{part}");
        }
        assert!(
            text.contains("| volume, any (LCP), TCP / local disk | 8.00 × | 8.00 × |"),
            "{text}"
        );
        assert!(text.contains("Not measured: one thing."));
        assert!(text.contains("| the paper: SCSI disk | 67.5 | 3.28 | 37.0 | 2.81 |"));
        let csv = fs::read_to_string(folder.path().join("lnd-fig04.csv")).unwrap();
        assert_eq!(csv.lines().count(), 1 + 2 * System::ALL.len());
        assert!(csv.contains("4,volume-lcp-tcp,4096,block in bytes,8000.000,100,20.000,30.000,40.000"));
    }
}
