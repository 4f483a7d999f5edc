//! Places of the databases: on the disk, on mounts, and under netram's VFS for SQLite.

use std::fs;
use std::path::{Path, PathBuf};

use netram_oo7::{Oo7Parameters, build};
use netram_sql_stores::{BerkeleyShim, BerkeleyStore, ShimLoadError, SqliteStore, SqliteVfs, StorageManager};
use netram_transport::WaitPolicy;

use super::{HARD_DISK_MB_PER_S, SqlStoreBacking, SqlStoreDisk, SqlStoreEngine, SqlStoreSpec};
use crate::bench_mount::{self, BenchMount};
use crate::error::{BenchError, ErrorContext};
use crate::paper::system::MODELLED_SYNC;
use crate::slow_disk::SlowDisk;
use crate::testbed::{LenderProcess, LenderSpec, SocketKind, Testbed};
use crate::tool::tool;

const DATABASE: &str = "oo7.db";

/// Resources of a measurement.
pub(super) struct SqlStoreTestbed<'s> {
    site: &'s Testbed,
    database: Oo7Parameters,
    /// Path of the compiled Berkeley DB shim, which is also loaded here to build the database.
    shim: Option<(PathBuf, BerkeleyShim)>,
    slow: Option<SlowDisk>,
    /// Mounts by the socket kind of their lender. Lenders end after the mounts.
    mounts: Vec<(SocketKind, BenchMount)>,
    lenders: Vec<(SocketKind, LenderProcess)>,
    /// Skipped measurements, each with its reason.
    pub(super) skipped: Vec<String>,
}

/// A database in its place.
pub(super) struct PlacedStore {
    pub(super) backing: SqlStoreBacking,
    pub(super) path: PathBuf,
    /// Environment variables of its process.
    pub(super) environment: Vec<(&'static str, String)>,
}

impl<'s> SqlStoreTestbed<'s> {
    pub(super) fn make(site: &'s Testbed, spec: &SqlStoreSpec) -> Result<SqlStoreTestbed<'s>, BenchError> {
        let mut world = SqlStoreTestbed {
            site,
            database: spec.database,
            shim: None,
            slow: None,
            mounts: Vec::new(),
            lenders: Vec::new(),
            skipped: Vec::new(),
        };
        if spec.engines.contains(&SqlStoreEngine::BerkeleyDb) {
            world.shim = world.berkeley()?;
        }
        match SlowDisk::make(site.directory()) {
            Ok(slow) => world.slow = Some(slow),
            Err(error) => world.skipped.push(format!("the MODELLED disk: {error}")),
        }
        for wire in [SocketKind::Unix, SocketKind::Tcp] {
            let lender = site.lender(LenderSpec {
                wire,
                secure: true,
                wait: WaitPolicy::default(),
                core: None,
            })?;
            world.lenders.push((wire, lender));
        }
        if let Err(missing) = bench_mount::possible() {
            world.skipped.push(format!("databases on a mount: {missing}"));
            return Ok(world);
        }
        for (wire, lender) in &world.lenders {
            let mount = BenchMount::begin(site, lender.address(), 0)?;
            world.mounts.push((*wire, mount));
        }
        Ok(world)
    }

    fn berkeley(&mut self) -> Result<Option<(PathBuf, BerkeleyShim)>, BenchError> {
        match BerkeleyShim::compile(self.site.directory()) {
            Ok(library) => {
                let shim = BerkeleyShim::load(&library).context("load Berkeley DB")?;
                Ok(Some((library, shim)))
            }
            Err(ShimLoadError::NotInstalled(why)) => {
                self.skipped.push(why);
                Ok(None)
            }
            Err(error) => Err(error).context("compile what Berkeley DB is called through"),
        }
    }

    /// Path of the compiled Berkeley DB shim.
    pub(super) fn shim(&self) -> Option<PathBuf> {
        self.shim.as_ref().map(|(library, _)| library.clone())
    }

    /// Whether this engine can be measured here.
    pub(super) fn supports(&self, engine: SqlStoreEngine) -> bool {
        engine != SqlStoreEngine::BerkeleyDb || self.shim.is_some()
    }

    /// The database in each of its places: built once, and copied.
    pub(super) fn placements(&self, engine: SqlStoreEngine) -> Result<Vec<PlacedStore>, BenchError> {
        let built = self.directory(self.site.directory(), &format!("built-{engine}"))?;
        self.build(engine, &built)?;
        let mut places = Vec::new();
        for disk in SqlStoreDisk::ALL {
            let Some(environment) = self.environment(disk)? else {
                continue;
            };
            let directory = self.directory(self.site.directory(), &format!("{disk}-{engine}"))?;
            places.push(PlacedStore {
                backing: SqlStoreBacking::Plain(disk),
                path: self.copy_in(engine, &built, &directory)?,
                environment,
            });
        }
        for (wire, mount) in &self.mounts {
            let directory = self.directory(mount.dir(), &engine.to_string())?;
            places.push(PlacedStore {
                backing: SqlStoreBacking::Mount(*wire),
                path: self.copy_in(engine, &built, &directory)?,
                environment: Vec::new(),
            });
        }
        for (wire, lender) in self.lenders.iter().filter(|_| engine.journal().is_some()) {
            let directory =
                self.directory(self.site.directory(), &format!("vfs-{}-{engine}", word(*wire)))?;
            let place = self.copy_in(engine, &built, &directory)?;
            self.adopt(&place, lender)?;
            places.push(PlacedStore {
                backing: SqlStoreBacking::Vfs(*wire),
                path: place,
                environment: Vec::new(),
            });
        }
        Ok(places)
    }

    /// Environment variables of a process whose database is on this disk. `None` if the disk cannot be
    /// modelled here.
    fn environment(&self, disk: SqlStoreDisk) -> Result<Option<Vec<(&'static str, String)>>, BenchError> {
        let (micros, place) = (MODELLED_SYNC.as_micros() as u32, self.site.directory());
        let told = match (disk, &self.slow) {
            (SqlStoreDisk::Local, _) => return Ok(Some(Vec::new())),
            (_, None) => return Ok(None),
            (SqlStoreDisk::Modelled, Some(slow)) => slow.environment(place, micros)?,
            (SqlStoreDisk::Hard, Some(slow)) => {
                slow.environment_of_rate(place, micros, HARD_DISK_MB_PER_S)?
            }
        };
        Ok(Some(told.to_vec()))
    }

    fn directory(&self, parent: &Path, name: &str) -> Result<PathBuf, BenchError> {
        let directory = parent.join(name);
        fs::create_dir(&directory).context("make a directory")?;
        Ok(directory)
    }

    fn build(&self, engine: SqlStoreEngine, directory: &Path) -> Result<(), BenchError> {
        let built = match (engine.journal(), &self.shim) {
            (Some(journal), _) => {
                let path = directory.join(DATABASE);
                SqliteStore::create(&path, journal, SqliteVfs::System).and_then(|store| {
                    store.set_synced(false)?;
                    build(&store, &self.database)?;
                    store.checkpoint()
                })
            }
            (None, Some((_, shim))) => BerkeleyStore::create(*shim, directory).and_then(|store| {
                store.set_synced(false)?;
                build(&store, &self.database)?;
                store.checkpoint()
            }),
            (None, None) => {
                return Err(BenchError::InvalidRequest(
                    "Berkeley DB is not installed".to_owned(),
                ));
            }
        };
        built.context("build the database")
    }

    /// Copies the built database; returns the path of the copy.
    fn copy_in(&self, engine: SqlStoreEngine, built: &Path, directory: &Path) -> Result<PathBuf, BenchError> {
        let what = "copy the database";
        for entry in fs::read_dir(built).context(what)? {
            let from = entry.context(what)?.path();
            let to = directory.join(from.file_name().unwrap_or_default());
            fs::copy(&from, &to).context(what)?;
            fs::File::open(&to)
                .and_then(|file| file.sync_all())
                .context(what)?;
        }
        Ok(match engine {
            SqlStoreEngine::BerkeleyDb => directory.to_owned(),
            SqlStoreEngine::Sqlite | SqlStoreEngine::SqliteRollback => directory.join(DATABASE),
        })
    }

    /// Creates a SQLite database under netram's VFS.
    fn adopt(&self, place: &Path, lender: &LenderProcess) -> Result<(), BenchError> {
        let text = |path: &Path| path.display().to_string();
        let words = [
            "sqlite",
            "create",
            &text(place),
            "--lender",
            &lender.address().to_string(),
            "--key-file",
            &text(self.site.key_file()),
            "--one-domain",
            "--seats",
            "1",
            "--journal-size",
            "64MiB",
        ];
        tool(&text(self.site.program()), &words).map(drop)
    }

    /// Unmounts everything; returns the skipped measurements.
    pub(super) fn end(self) -> Result<Vec<String>, BenchError> {
        for (_, mount) in self.mounts {
            mount.end()?;
        }
        Ok(self.skipped)
    }
}

fn word(wire: SocketKind) -> &'static str {
    match wire {
        SocketKind::Tcp => "tcp",
        SocketKind::Unix => "unix",
    }
}
