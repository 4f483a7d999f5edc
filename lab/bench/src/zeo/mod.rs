//! ZODB with ZEO, the object database that a Python program would use: OO7's traversals at one client of a
//! server, until another client has loaded the changes. netram's shared memory is measured beside it.
//!
//! The program is the project's own (`oo7.py`). pip installs ZODB and ZEO from the package index into a
//! virtual environment in the user's cache. The database is the one that [`netram_oo7`] builds, which a
//! digest verifies.

use std::path::{Path, PathBuf};
use std::process::Command;

use netram_oo7::store::{CompositeUse, Oo7Store, Oo7Transaction};
use netram_oo7::{DatabaseSize, Oo7Error, Oo7Parameters, PlainStore, build};
use serde::{Deserialize, Serialize};

use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;
use crate::tool::finish;

/// Packages of the environment. Another version would be another peer.
const PACKAGES: [&str; 2] = ["ZODB==6.4", "ZEO==6.2"];
/// Name of the environment; changes with [`PACKAGES`].
const NAME: &str = "zeo-6.2";
const PYTHON: &str = "python3";
const PROGRAM: &str = include_str!("oo7.py");

/// A virtual environment with ZODB and ZEO.
#[derive(Debug)]
pub struct ZeoEnvironment {
    python: PathBuf,
}

/// Results of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeoReport {
    /// Version of Python.
    pub python: String,
    /// Versions of ZODB, ZEO and the package that stores objects' states.
    pub versions: ZeoVersions,
    /// [`digest`] of the database.
    pub digest: u64,
    /// Results by the server's storage.
    pub stores: ZeoStores,
}

/// Versions of the packages.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeoVersions {
    #[serde(rename = "ZODB")]
    /// Version of the object database.
    pub zodb: String,
    /// Version of its server.
    #[serde(rename = "ZEO")]
    pub zeo: String,
    /// Version of the object package.
    pub persistent: String,
}

/// Results by the server's storage of objects.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeoStores {
    /// Storage in memory, where no commit waits for a disk.
    pub memory: ZeoRows,
    /// Storage in a file that is synced at each commit.
    pub file: ZeoRows,
}

/// Results of the operations.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeoRows {
    /// T12-A: root parts, 2,187 updates.
    pub t12a: ZeoRow,
    /// T2-B: all parts, 43,740 updates.
    pub t2b: ZeoRow,
}

/// Medians of an operation, microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeoRow {
    /// Number of updates in a transaction.
    pub updates: u64,
    /// Number of changed objects.
    pub parts: u64,
    /// The walk without changes.
    pub walk_us: f64,
    /// The walk with changes, before the commit.
    pub change_us: f64,
    /// The commit, until it returns at the writer.
    pub commit_us: f64,
    /// The reader's loading of the changes.
    pub load_us: f64,
    /// From the walk's beginning until the reader has loaded everything.
    pub total_us: f64,
}

impl ZeoRow {
    /// Additional time of the changes over a walk without any, until the reader has them.
    pub fn overhead_us(&self) -> f64 {
        self.total_us - self.walk_us
    }
}

impl ZeoStores {
    /// The faster of an operation's two rows.
    pub fn best(&self, of: impl Fn(&ZeoRows) -> ZeoRow) -> ZeoRow {
        let (memory, file) = (of(&self.memory), of(&self.file));
        match memory.overhead_us() <= file.overhead_us() {
            true => memory,
            false => file,
        }
    }
}

impl ZeoEnvironment {
    /// The environment, if it exists.
    ///
    /// # Errors
    ///
    /// Fails with the reason if there is none.
    pub fn find() -> Result<ZeoEnvironment, String> {
        let directory =
            directory().ok_or("neither XDG_CACHE_HOME nor HOME says where its environment would be")?;
        let found = ZeoEnvironment::at(&directory);
        found.ok_or_else(|| {
            "there is no environment with it; `netram-lab bench oo7 --zeo` makes one".to_owned()
        })
    }

    /// The environment, created if missing, for which pip contacts the package index.
    ///
    /// # Errors
    ///
    /// Fails with the reason if it cannot be created.
    pub fn make() -> Result<ZeoEnvironment, String> {
        let directory =
            directory().ok_or("neither XDG_CACHE_HOME nor HOME says where to make its environment")?;
        if let Some(found) = ZeoEnvironment::at(&directory) {
            return Ok(found);
        }
        let run = |command: &mut Command| finish(command).map(drop).map_err(|error| error.to_string());
        run(Command::new(PYTHON)
            .args(["-m", "venv", "--clear"])
            .arg(&directory))?;
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        run(Command::new(python(&directory)).args(pip).args(PACKAGES))?;
        ZeoEnvironment::at(&directory)
            .ok_or_else(|| format!("the environment in {} does not work", directory.display()))
    }

    /// The environment in `directory`. `None` if it is incomplete, or its Python no longer exists.
    fn at(directory: &Path) -> Option<ZeoEnvironment> {
        let python = python(directory);
        let mut works = Command::new(&python);
        finish(works.args(["-c", "import ZEO, ZODB"])).ok()?;
        Some(ZeoEnvironment { python })
    }

    /// Measures, and checks that the database and the operations were the same.
    ///
    /// # Errors
    ///
    /// Fails if the program fails, or worked on another database.
    pub fn measure(&self, site: &Testbed, rounds: usize) -> Result<ZeoReport, BenchError> {
        let directory = site.directory().join(format!("zeo-{}", site.number()));
        std::fs::create_dir(&directory).context("make a directory for ZEO")?;
        let program = directory.join("oo7.py");
        std::fs::write(&program, PROGRAM).context("write ZEO's program")?;
        let mut command = Command::new(&self.python);
        command
            .arg(&program)
            .arg("measure")
            .arg(&directory)
            .arg(rounds.to_string());
        let said = finish(&mut command)?;
        let report: ZeoReport = serde_json::from_str(&said).context("read what ZEO's program said")?;
        check(&report).map_err(|why| BenchError::WrongData { place: program, why })?;
        Ok(report)
    }
}

fn check(report: &ZeoReport) -> Result<(), String> {
    let digest = digest().map_err(|error| error.to_string())?;
    if report.digest != digest {
        return Err(format!(
            "its database differs: digest {} instead of {digest}",
            report.digest
        ));
    }
    for rows in [&report.stores.memory, &report.stores.file] {
        for (row, updates, parts) in [(rows.t12a, 2_187, 495), (rows.t2b, 43_740, 9_900)] {
            if (row.updates, row.parts) != (updates, parts) {
                let ZeoRow {
                    updates: found,
                    parts: changed,
                    ..
                } = row;
                return Err(format!(
                    "{found} updates of {changed} parts instead of {updates} of {parts}"
                ));
            }
        }
    }
    Ok(())
}

fn python(directory: &Path) -> PathBuf {
    directory.join("bin/python")
}

/// A directory of this user alone, because a program is run from there.
fn directory() -> Option<PathBuf> {
    let named = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let cache = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
    Some(cache.join("netram").join(NAME))
}

/// Digest of everything that the traversals of small-3 depend on: private uses, dates, positions, documents
/// and connections of parts. `oo7.py` computes the same.
///
/// # Errors
///
/// Fails if the database cannot be generated.
pub fn digest() -> Result<u64, Oo7Error> {
    let parameters = Oo7Parameters::of(DatabaseSize::Small, 3);
    let store = PlainStore::default();
    build(&store, &parameters)?;
    let mut open = store.begin()?;
    let (mut bases, mut parts) = (Vec::new(), Vec::new());
    open.all_base_assemblies(&mut bases)?;
    open.all_parts(&mut parts)?;
    let mut numbers = Vec::new();
    for base in bases {
        let mut used = Vec::new();
        open.components(base, CompositeUse::Private, &mut used)?;
        for composite in used {
            numbers.push(open.composite_design(composite)?.id);
        }
    }
    for composite in parts.chunks(parameters.parts as usize) {
        for part in composite {
            let values = open.part_values(*part)?;
            numbers.extend([values.design.date, values.x, values.y, values.document]);
        }
        for part in composite {
            let mut targets = Vec::new();
            open.targets(*part, &mut targets)?;
            numbers.extend(targets.iter().map(|(_, id)| (id - 1) % parameters.parts));
        }
    }
    Ok(numbers.iter().fold(0xcbf2_9ce4_8422_2325, |digest, number| {
        (digest ^ u64::from(*number)).wrapping_mul(0x0100_0000_01b3)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_python_program_builds_the_same_database() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("oo7.py");
        std::fs::write(&program, PROGRAM).unwrap();
        let said = finish(Command::new(PYTHON).arg(&program).arg("digest")).unwrap();
        assert_eq!(said, digest().unwrap().to_string());
    }

    #[test]
    fn results_are_checked_and_the_faster_store_counts() {
        let row = |updates, parts, total_us| ZeoRow {
            updates,
            parts,
            walk_us: 1.0,
            change_us: 2.0,
            commit_us: 3.0,
            load_us: 4.0,
            total_us,
        };
        let rows = |total_us| ZeoRows {
            t12a: row(2_187, 495, total_us),
            t2b: row(43_740, 9_900, total_us),
        };
        let (zodb, zeo, persistent) = ("6.4".to_owned(), "6.2".to_owned(), "6.9".to_owned());
        let mut report = ZeoReport {
            python: "3".to_owned(),
            versions: ZeoVersions {
                zodb,
                zeo,
                persistent,
            },
            digest: digest().unwrap(),
            stores: ZeoStores {
                memory: rows(9.0),
                file: rows(8.0),
            },
        };
        assert_eq!(check(&report), Ok(()));
        assert_eq!(report.stores.best(|rows| rows.t12a).overhead_us(), 7.0);
        report.stores.file.t2b.parts -= 1;
        assert!(check(&report).unwrap_err().contains("9899 parts"));
        report.digest ^= 1;
        assert!(check(&report).unwrap_err().contains("differs"));
    }
}
