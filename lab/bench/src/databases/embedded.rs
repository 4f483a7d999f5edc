//! Database engines in a small C program each, started for every round.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::kinds::{DatabaseKind, DatabaseStorage, DatabaseWork};
use super::placement::DatabasePlacement;
use super::{DatabaseSubject, WorkRate};
use crate::error::{BenchError, ErrorContext};
use crate::testbed::Testbed;
use crate::tool::{finish, tool};

const LOOP: &str = include_str!("engines/loop.h");

/// Build requirements of an engine.
pub(crate) struct EngineNeeds {
    /// Source of the program, which includes `loop.h`.
    pub(crate) source: &'static str,
    /// The engine's header, below the system's directory of headers.
    pub(crate) header: &'static str,
    /// Debian's package of the header.
    pub(crate) package: &'static str,
    /// The library that the program is linked with.
    pub(crate) library: &'static str,
}

impl EngineNeeds {
    /// Build requirements of LMDB.
    pub(crate) const LMDB: EngineNeeds = EngineNeeds {
        source: include_str!("engines/lmdb.c"),
        header: "lmdb.h",
        package: "liblmdb-dev",
        library: "lmdb",
    };
}

fn needed(database: DatabaseKind) -> Option<EngineNeeds> {
    match database {
        DatabaseKind::Rocksdb => Some(EngineNeeds {
            source: include_str!("engines/rocksdb.c"),
            header: "rocksdb/c.h",
            package: "librocksdb-dev",
            library: "rocksdb",
        }),
        DatabaseKind::BerkeleyDb => Some(EngineNeeds {
            source: include_str!("engines/berkeley-db.c"),
            header: "db.h",
            package: "libdb5.3-dev",
            library: "db",
        }),
        DatabaseKind::Lmdb => Some(EngineNeeds::LMDB),
        _ => None,
    }
}

/// A program around an engine.
#[derive(Clone, Debug)]
pub(crate) struct EngineProgram {
    program: PathBuf,
}

impl EngineProgram {
    /// Compiles the program; the error names what is missing here.
    pub(super) fn compile(site: &Testbed, database: DatabaseKind) -> Result<EngineProgram, BenchError> {
        let needed = needed(database).ok_or_else(|| {
            BenchError::InvalidRequest(format!("{} is not an embedded engine", database.label()))
        })?;
        EngineProgram::build(site, database.id(), &needed, &[])
    }

    /// Compiles the program `name` with additional flags of the compiler.
    pub(crate) fn build(
        site: &Testbed,
        name: &str,
        needed: &EngineNeeds,
        flags: &[&str],
    ) -> Result<EngineProgram, BenchError> {
        let directory = site.directory().join("engines");
        fs::create_dir_all(&directory).context("make a directory for programs")?;
        let source = directory.join(format!("{name}.c"));
        fs::write(directory.join("loop.h"), LOOP).context("write a program")?;
        fs::write(&source, needed.source).context("write a program")?;
        let program = directory.join(name);
        let (from, to) = (source.to_string_lossy(), program.to_string_lossy());
        let library = format!("-l{}", needed.library);
        let words = [&["-O2", "-Wall"], flags, &["-o", &to, &from, &library]].concat();
        tool("cc", &words).map_err(
            |error| match Path::new("/usr/include").join(needed.header).exists() {
                true => error,
                false => BenchError::InvalidRequest(format!(
                    "there is no {} (package {})",
                    needed.header, needed.package
                )),
            },
        )?;
        Ok(EngineProgram { program })
    }

    /// Path of the program.
    pub(crate) fn path(&self) -> &Path {
        &self.program
    }

    /// Starts an engine in a placement.
    pub(super) fn start(&self, ground: DatabasePlacement, storage: DatabaseStorage) -> EngineSubject {
        EngineSubject {
            engine: self.clone(),
            placement: ground,
            mode: match storage {
                DatabaseStorage::Off => "nosync",
                DatabaseStorage::Mount => "dsync",
                _ => "sync",
            },
            committed: 0,
        }
    }
}

/// An engine in one placement.
pub(super) struct EngineSubject {
    engine: EngineProgram,
    placement: DatabasePlacement,
    mode: &'static str,
    committed: u64,
}

impl EngineSubject {
    fn run(&self, words: &[&str]) -> Result<String, BenchError> {
        let environment = self.placement.environment();
        let mut command = Command::new(&self.engine.program);
        command.args(words).envs(environment.iter().cloned());
        finish(&mut command)
    }
}

impl DatabaseSubject for EngineSubject {
    fn round(&mut self, time: Duration) -> Result<Vec<(DatabaseWork, WorkRate)>, BenchError> {
        let dir = self.placement.all().to_string_lossy();
        let (seconds, first) = (time.as_secs_f64().to_string(), self.committed.to_string());
        let said = self.run(&["put", &dir, self.mode, &seconds, &first])?;
        let (count, seconds) = parse_counts(&said)?;
        self.committed += count;
        Ok(vec![(DatabaseWork::Insert, (count as f64 / seconds).into())])
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        let dir = self.placement.all().to_string_lossy().into_owned();
        let found = self.run(&["count", &dir])?;
        must_have(Path::new(&dir), &found, self.committed)?;
        self.placement.end()
    }
}

/// The first two words of a program's output: the number of commits, and their seconds.
pub(super) fn parse_counts(said: &str) -> Result<(u64, f64), BenchError> {
    let mut words = said.split_whitespace();
    let count = words.next().and_then(|word| word.parse().ok());
    let seconds = words.next().and_then(|word| word.parse().ok());
    match (count, seconds) {
        (Some(count), Some(seconds)) if seconds > 0.0 => Ok((count, seconds)),
        _ => Err(BenchError::InvalidRequest(format!(
            "an engine printed no figures: {said}"
        ))),
    }
}

/// Fails unless `acknowledged` records were found.
pub(super) fn must_have(place: &Path, found: &str, acknowledged: u64) -> Result<(), BenchError> {
    if found == acknowledged.to_string() {
        return Ok(());
    }
    Err(BenchError::WrongData {
        place: place.to_owned(),
        why: format!("{found} records are there, {acknowledged} were acknowledged"),
    })
}
