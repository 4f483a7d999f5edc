//! Where the databases are: on the disk, on mounts, and beneath SQLite's VFS of netram.

use std::fs;
use std::path::{Path, PathBuf};

use netram_oo7::{Parameters, build};
use netram_sql_stores::{BerkeleyStore, Files, LoadError, Manager, Shim, SqliteStore};
use netram_transport::WaitPolicy;

use super::{Disk, Engine, HARD_DISK_MB_PER_S, Spec, Way};
use crate::error::{BenchError, Context};
use crate::mounted::{self, Mount};
use crate::paper::system::MODELLED_SYNC;
use crate::site::{Lender, LenderSpec, Site, Wire};
use crate::slow_disk::SlowDisk;
use crate::tool::tool;

const DATABASE: &str = "oo7.db";

/// Everything that is there while databases are measured.
pub(super) struct World<'s> {
    site: &'s Site,
    database: Parameters,
    /// Berkeley DB, compiled, and loaded here to build the database.
    shim: Option<(PathBuf, Shim)>,
    slow: Option<SlowDisk>,
    /// By their wires. Lenders end after what is mounted.
    mounts: Vec<(Wire, Mount)>,
    lenders: Vec<(Wire, Lender)>,
    /// What is not measured, and why.
    pub(super) skipped: Vec<String>,
}

/// A database in its place.
pub(super) struct Placed {
    pub(super) way: Way,
    pub(super) place: PathBuf,
    /// What its process finds in its environment.
    pub(super) environment: Vec<(&'static str, String)>,
}

impl<'s> World<'s> {
    pub(super) fn make(site: &'s Site, spec: &Spec) -> Result<World<'s>, BenchError> {
        let mut world = World {
            site,
            database: spec.database,
            shim: None,
            slow: None,
            mounts: Vec::new(),
            lenders: Vec::new(),
            skipped: Vec::new(),
        };
        if spec.engines.contains(&Engine::BerkeleyDb) {
            world.shim = world.berkeley()?;
        }
        match SlowDisk::make(site.folder()) {
            Ok(slow) => world.slow = Some(slow),
            Err(error) => world.skipped.push(format!("the MODELLED disk: {error}")),
        }
        for wire in [Wire::Unix, Wire::Tcp] {
            let lender = site.lender(LenderSpec {
                wire,
                secure: true,
                wait: WaitPolicy::default(),
                core: None,
            })?;
            world.lenders.push((wire, lender));
        }
        if let Err(missing) = mounted::possible() {
            world.skipped.push(format!("databases on a mount: {missing}"));
            return Ok(world);
        }
        for (wire, lender) in &world.lenders {
            let mount = Mount::begin(site, lender.address(), 0)?;
            world.mounts.push((*wire, mount));
        }
        Ok(world)
    }

    fn berkeley(&mut self) -> Result<Option<(PathBuf, Shim)>, BenchError> {
        match Shim::compile(self.site.folder()) {
            Ok(library) => {
                let shim = Shim::load(&library).context("load Berkeley DB")?;
                Ok(Some((library, shim)))
            }
            Err(LoadError::Absent(why)) => {
                self.skipped.push(why);
                Ok(None)
            }
            Err(error) => Err(error).context("compile what Berkeley DB is called through"),
        }
    }

    /// Berkeley DB, compiled.
    pub(super) fn shim(&self) -> Option<PathBuf> {
        self.shim.as_ref().map(|(library, _)| library.clone())
    }

    /// Whether this can be measured here.
    pub(super) fn has(&self, engine: Engine) -> bool {
        engine != Engine::BerkeleyDb || self.shim.is_some()
    }

    /// The database in each of its places: built once, and copied.
    pub(super) fn places(&self, engine: Engine) -> Result<Vec<Placed>, BenchError> {
        let built = self.folder(self.site.folder(), &format!("built-{engine}"))?;
        self.build(engine, &built)?;
        let mut places = Vec::new();
        for disk in Disk::ALL {
            let Some(environment) = self.environment(disk)? else {
                continue;
            };
            let folder = self.folder(self.site.folder(), &format!("{disk}-{engine}"))?;
            places.push(Placed {
                way: Way::Plain(disk),
                place: self.put(engine, &built, &folder)?,
                environment,
            });
        }
        for (wire, mount) in &self.mounts {
            let folder = self.folder(mount.dir(), &engine.to_string())?;
            places.push(Placed {
                way: Way::Mount(*wire),
                place: self.put(engine, &built, &folder)?,
                environment: Vec::new(),
            });
        }
        for (wire, lender) in self.lenders.iter().filter(|_| engine.journal().is_some()) {
            let folder = self.folder(self.site.folder(), &format!("vfs-{}-{engine}", word(*wire)))?;
            let place = self.put(engine, &built, &folder)?;
            self.take(&place, lender)?;
            places.push(Placed {
                way: Way::Vfs(*wire),
                place,
                environment: Vec::new(),
            });
        }
        Ok(places)
    }

    /// What the process finds in its environment whose database is on this disk. `None`: there is no such disk here.
    fn environment(&self, disk: Disk) -> Result<Option<Vec<(&'static str, String)>>, BenchError> {
        let (micros, place) = (MODELLED_SYNC.as_micros() as u32, self.site.folder());
        let told = match (disk, &self.slow) {
            (Disk::Local, _) => return Ok(Some(Vec::new())),
            (_, None) => return Ok(None),
            (Disk::Modelled, Some(slow)) => slow.environment(place, micros)?,
            (Disk::Hard, Some(slow)) => slow.environment_of_rate(place, micros, HARD_DISK_MB_PER_S)?,
        };
        Ok(Some(told.to_vec()))
    }

    fn folder(&self, parent: &Path, name: &str) -> Result<PathBuf, BenchError> {
        let folder = parent.join(name);
        fs::create_dir(&folder).context("make a folder")?;
        Ok(folder)
    }

    fn build(&self, engine: Engine, folder: &Path) -> Result<(), BenchError> {
        let built = match (engine.journal(), &self.shim) {
            (Some(journal), _) => {
                let path = folder.join(DATABASE);
                SqliteStore::create(&path, journal, Files::System).and_then(|store| {
                    store.synced(false)?;
                    build(&store, &self.database)?;
                    store.checkpoint()
                })
            }
            (None, Some((_, shim))) => BerkeleyStore::create(*shim, folder).and_then(|store| {
                store.synced(false)?;
                build(&store, &self.database)?;
                store.checkpoint()
            }),
            (None, None) => return Err(BenchError::Asked("there is no Berkeley DB here".to_owned())),
        };
        built.context("build the database")
    }

    /// Copies what was built. Where the database is then.
    fn put(&self, engine: Engine, built: &Path, folder: &Path) -> Result<PathBuf, BenchError> {
        let what = "copy the database";
        for entry in fs::read_dir(built).context(what)? {
            let from = entry.context(what)?.path();
            let to = folder.join(from.file_name().unwrap_or_default());
            fs::copy(&from, &to).context(what)?;
            fs::File::open(&to)
                .and_then(|file| file.sync_all())
                .context(what)?;
        }
        Ok(match engine {
            Engine::BerkeleyDb => folder.to_owned(),
            Engine::Sqlite | Engine::SqliteRollback => folder.join(DATABASE),
        })
    }

    /// Has netram hold a database of SQLite's.
    fn take(&self, place: &Path, lender: &Lender) -> Result<(), BenchError> {
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

    /// Unmounts.
    pub(super) fn end(self) -> Result<Vec<String>, BenchError> {
        for (_, mount) in self.mounts {
            mount.end()?;
        }
        Ok(self.skipped)
    }
}

fn word(wire: Wire) -> &'static str {
    match wire {
        Wire::Tcp => "tcp",
        Wire::Unix => "unix",
    }
}
