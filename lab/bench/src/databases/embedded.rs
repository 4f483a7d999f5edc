//! Engines inside of a program: a small program of C around each, started for every round.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Subject;
use super::ground::Ground;
use super::kinds::{Database, Storage, Work};
use crate::error::{BenchError, Context};
use crate::site::Site;
use crate::tool::{finish, tool};

const LOOP: &str = include_str!("engines/loop.h");

/// What is needed of an engine.
struct Needed {
    source: &'static str,
    header: &'static str,
    package: &'static str,
    library: &'static str,
}

fn needed(database: Database) -> Option<Needed> {
    let (source, header, package, library) = match database {
        Database::Rocksdb => (
            include_str!("engines/rocksdb.c"),
            "rocksdb/c.h",
            "librocksdb-dev",
            "rocksdb",
        ),
        Database::BerkeleyDb => (
            include_str!("engines/berkeley-db.c"),
            "db.h",
            "libdb5.3-dev",
            "db",
        ),
        Database::Lmdb => (include_str!("engines/lmdb.c"), "lmdb.h", "liblmdb-dev", "lmdb"),
        Database::Postgresql | Database::Mariadb | Database::Sqlite => return None,
    };
    Some(Needed {
        source,
        header,
        package,
        library,
    })
}

/// A program around an engine.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    program: PathBuf,
}

impl Engine {
    /// Compiles it; `Err`: what is missing here.
    pub(super) fn found(site: &Site, database: Database) -> Result<Engine, BenchError> {
        let name = database.id();
        let needed = needed(database)
            .ok_or_else(|| BenchError::Asked(format!("{} is no engine in a program", database.label())))?;
        let folder = site.folder().join("engines");
        fs::create_dir_all(&folder).context("make a folder for programs")?;
        let source = folder.join(format!("{name}.c"));
        fs::write(folder.join("loop.h"), LOOP).context("write a program")?;
        fs::write(&source, needed.source).context("write a program")?;
        let program = folder.join(name);
        let (from, to) = (source.to_string_lossy(), program.to_string_lossy());
        let library = format!("-l{}", needed.library);
        let compiled = tool("cc", &["-O2", "-Wall", "-o", &to, &from, &library]);
        compiled.map_err(
            |error| match Path::new("/usr/include").join(needed.header).exists() {
                true => error,
                false => BenchError::Asked(format!(
                    "there is no {} (package {})",
                    needed.header, needed.package
                )),
            },
        )?;
        Ok(Engine { program })
    }

    /// An engine somewhere.
    pub(super) fn start(&self, ground: Ground, storage: Storage) -> OnEngine {
        OnEngine {
            engine: self.clone(),
            ground,
            mode: match storage {
                Storage::Off => "nosync",
                Storage::Mount => "dsync",
                _ => "sync",
            },
            committed: 0,
        }
    }
}

/// An engine somewhere.
pub(super) struct OnEngine {
    engine: Engine,
    ground: Ground,
    mode: &'static str,
    committed: u64,
}

impl OnEngine {
    fn run(&self, words: &[&str]) -> Result<String, BenchError> {
        let environment = self.ground.environment();
        let mut command = Command::new(&self.engine.program);
        command.args(words).envs(environment.iter().cloned());
        finish(&mut command)
    }
}

impl Subject for OnEngine {
    fn round(&mut self, time: Duration) -> Result<Vec<(Work, f64)>, BenchError> {
        let dir = self.ground.all().to_string_lossy();
        let (seconds, first) = (time.as_secs_f64().to_string(), self.committed.to_string());
        let said = self.run(&["put", &dir, self.mode, &seconds, &first])?;
        let (count, seconds) = counted(&said)?;
        self.committed += count;
        Ok(vec![(Work::Insert, count as f64 / seconds)])
    }

    fn end(self: Box<Self>) -> Result<(), BenchError> {
        let dir = self.ground.all().to_string_lossy().into_owned();
        let found = self.run(&["count", &dir])?;
        must_have(Path::new(&dir), &found, self.committed)?;
        self.ground.end()
    }
}

/// The first two words of what a program says: how many it committed, in how many seconds.
pub(super) fn counted(said: &str) -> Result<(u64, f64), BenchError> {
    let mut words = said.split_whitespace();
    let count = words.next().and_then(|word| word.parse().ok());
    let seconds = words.next().and_then(|word| word.parse().ok());
    match (count, seconds) {
        (Some(count), Some(seconds)) if seconds > 0.0 => Ok((count, seconds)),
        _ => Err(BenchError::Asked(format!("an engine told no figures: {said}"))),
    }
}

/// Fails unless so many records were found.
pub(super) fn must_have(place: &Path, found: &str, acknowledged: u64) -> Result<(), BenchError> {
    if found == acknowledged.to_string() {
        return Ok(());
    }
    Err(BenchError::Wrong {
        place: place.to_owned(),
        why: format!("{found} records are there, {acknowledged} were acknowledged"),
    })
}
