//! The files of a run: a CSV and a picture for each figure, the tables, and the page.

use std::fs;
use std::path::{Path, PathBuf};

use super::document::document;
use super::facts::Tr190Facts;
use super::{Tr190Report, csv, markdown, oo7, page, plot};
use crate::error::{BenchError, ErrorContext};
use crate::machine::MachineInfo;
use crate::plot::{PlotFigure, PlotTheme};

/// File name of the page.
pub const PAGE: &str = "index.html";

/// File name of the document with all tables.
const TABLES: &str = "tr190-results.md";

/// Circumstances of a run that the report lacks.
#[derive(Clone, Debug)]
pub struct RunInfo {
    /// Time at which it began.
    pub began: String,
    /// The command as typed.
    pub command: String,
    /// Directory or disk of the files.
    pub disk: String,
}

impl RunInfo {
    /// When, where and how the run was made.
    pub(crate) fn on(&self, machine: &MachineInfo) -> String {
        format!(
            "{} on {}, {} cores, Linux {}, load {:.2} at the start, files on {}: `{}`",
            self.began,
            machine.processor,
            machine.cores,
            machine.kernel,
            machine.load,
            self.disk,
            self.command
        )
    }
}

/// Writes all files into `directory`, which is created if missing. Returns the files written.
///
/// # Errors
///
/// Fails if a file cannot be written, or a PNG is wanted and the system has no font.
pub fn write(
    report: &Tr190Report,
    run: &RunInfo,
    directory: &Path,
    png: bool,
) -> Result<Vec<PathBuf>, BenchError> {
    let facts = Tr190Facts::tr190()?;
    let mut results = ResultsDirectory::new(directory)?;
    for figure in &report.figures {
        let name = format!("fig{:02}", figure.number);
        results.save_figure(&name, &csv::table(figure), &plot::picture(figure, &facts), png)?;
    }
    if let Some(measured) = &report.oo7 {
        let name = format!("fig{}", oo7::NUMBER);
        results.save_figure(&name, &oo7::csv(measured), &oo7::picture(measured, &facts), png)?;
    }
    let title = "The experiments of TR-190: all tables";
    results.save_document(TABLES, title, "tr190.md", &markdown::tables(report, run))?;
    results.save(PAGE, page::page(report, &facts, run).as_bytes())?;
    Ok(results.files_written)
}

/// A directory of results.
pub(crate) struct ResultsDirectory<'f> {
    directory: &'f Path,
    /// The files written so far.
    pub(crate) files_written: Vec<PathBuf>,
}

impl ResultsDirectory<'_> {
    /// Creates the directory if it is missing.
    pub(crate) fn new(directory: &Path) -> Result<ResultsDirectory<'_>, BenchError> {
        fs::create_dir_all(directory).context(format_args!("make the directory {}", directory.display()))?;
        Ok(ResultsDirectory {
            directory,
            files_written: Vec::new(),
        })
    }

    /// Writes a figure's files: its CSV and its picture.
    pub(crate) fn save_figure(
        &mut self,
        name: &str,
        csv: &str,
        picture: &PlotFigure,
        png: bool,
    ) -> Result<(), BenchError> {
        self.save(&format!("{name}.csv"), csv.as_bytes())?;
        self.save_picture(name, picture, png)
    }

    /// Writes a picture's SVG and, if wanted, a PNG on white and one on black.
    pub(crate) fn save_picture(
        &mut self,
        name: &str,
        picture: &PlotFigure,
        png: bool,
    ) -> Result<(), BenchError> {
        self.save(&format!("{name}.svg"), picture.svg().as_bytes())?;
        if png {
            self.save(&format!("{name}.png"), &picture.png(PlotTheme::Light)?)?;
            self.save(&format!("{name}-dark.png"), &picture.png(PlotTheme::Dark)?)?;
        }
        Ok(())
    }

    /// Writes the document with all tables. `prose` is the page of `docs/results` that it belongs to.
    pub(crate) fn save_document(
        &mut self,
        name: &str,
        title: &str,
        prose: &str,
        body: &str,
    ) -> Result<(), BenchError> {
        self.save(name, document(title, prose, body).as_bytes())
    }

    /// Writes a file, replacing an earlier one.
    pub(crate) fn save(&mut self, name: &str, bytes: &[u8]) -> Result<(), BenchError> {
        let path = self.directory.join(name);
        fs::write(&path, bytes).context(format_args!("write {}", path.display()))?;
        self.files_written.push(path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::commentary::tests::report;
    use super::*;

    #[test]
    fn every_figure_gets_its_files_and_a_run_may_replace_an_earlier_one() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("made/for/it");
        let run = RunInfo {
            began: String::new(),
            command: String::new(),
            disk: String::new(),
        };
        for _ in 0..2 {
            let written = write(&report(), &run, &out, true).unwrap();
            assert_eq!(written.len(), 12 * 4 + 2);
            assert!(written.iter().all(|path| fs::metadata(path).unwrap().len() > 100));
        }
        let taken = directory.path().join("file");
        fs::write(&taken, "").unwrap();
        let refused = write(&report(), &run, &taken, false).unwrap_err().to_string();
        assert!(refused.contains("file"), "{refused}");
    }
}
