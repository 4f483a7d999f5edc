//! The files of a run: a CSV and a picture a figure, the tables, and the page.

use std::fs;
use std::path::{Path, PathBuf};

use super::facts::Facts;
use super::{Report, csv, markdown, page, plot};
use crate::error::{BenchError, Context};

/// The page's name.
pub const PAGE: &str = "index.html";

const TABLES: &str = "tables.md";

/// What a report does not know of itself.
#[derive(Clone, Debug)]
pub struct Run {
    /// When it began.
    pub began: String,
    /// What was typed.
    pub command: String,
    /// Where the files were.
    pub disk: String,
}

/// Writes everything into `folder`, made if it is not there. Returns the files written.
pub fn write(report: &Report, run: &Run, folder: &Path, png: bool) -> Result<Vec<PathBuf>, BenchError> {
    let facts = Facts::tr190()?;
    fs::create_dir_all(folder).context(format_args!("make the folder {}", folder.display()))?;
    let mut written = Vec::new();
    let mut save = |name: String, bytes: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, bytes).context(format_args!("write {}", path.display()))?;
        written.push(path);
        Ok::<(), BenchError>(())
    };
    for figure in &report.figures {
        let name = format!("fig{:02}", figure.number);
        save(format!("{name}.csv"), csv::table(figure).as_bytes())?;
        save(format!("{name}.svg"), plot::svg(figure, &facts)?.as_bytes())?;
        if png {
            save(format!("{name}.png"), &plot::png(figure, &facts)?)?;
        }
    }
    save(TABLES.to_owned(), markdown::tables(report, run).as_bytes())?;
    save(PAGE.to_owned(), page::page(report, &facts, run)?.as_bytes())?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::super::words::tests::report;
    use super::*;

    #[test]
    fn every_figure_gets_its_files_and_a_run_may_replace_an_earlier_one() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("made/for/it");
        let run = Run {
            began: String::new(),
            command: String::new(),
            disk: String::new(),
        };
        for _ in 0..2 {
            let written = write(&report(), &run, &out, true).unwrap();
            assert_eq!(written.len(), 11 * 3 + 2);
            assert!(written.iter().all(|path| fs::metadata(path).unwrap().len() > 100));
        }
        let taken = folder.path().join("file");
        fs::write(&taken, "").unwrap();
        let refused = write(&report(), &run, &taken, false).unwrap_err().to_string();
        assert!(refused.contains("file"), "{refused}");
    }
}
