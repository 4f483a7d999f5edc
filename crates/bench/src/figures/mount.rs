//! Files on a mount beside files on the same disk: a small write and its sync.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use super::{Figure, volume};
use crate::child::Child;
use crate::error::{BenchError, Context};
use crate::histogram::median;
use crate::site::{Site, forget_mount, remember_mount};

/// Bytes of a write: a record of a database's log.
const BYTES: usize = 512;
/// What is written over, again and again. It is there before: a log file that is recycled.
const FILE_BYTES: u64 = 16 << 20;
const ROUNDS: usize = 5;
const WARM_UP: Duration = Duration::from_millis(300);
/// What a slower disk adds to each sync, in µs.
const SLOW_SYNC_US: f64 = 1000.0;

/// A mount, served by a process of its own.
struct Mounted {
    dir: PathBuf,
    program: PathBuf,
    server: Child,
}

impl Mounted {
    fn begin(site: &Site, lender: &str) -> Result<Mounted, BenchError> {
        let (dir, journal) = (
            site.folder().join("mounted"),
            site.folder().join("mounted.journal"),
        );
        std::fs::create_dir(&dir).context("make a folder")?;
        remember_mount(&dir);
        let text = |path: &Path| path.display().to_string();
        let words = [
            "mount",
            &text(&dir),
            "--on",
            &text(&journal),
            "--lender",
            lender,
            "--key-file",
            &text(site.key_file()),
            "--one-domain",
            "--with-parent",
        ];
        let mut server = Child::start(site.program(), words, "mount", site.folder())?;
        server.ready("mounted ")?;
        Ok(Mounted {
            dir,
            program: site.program().to_owned(),
            server,
        })
    }

    fn end(mut self) -> Result<(), BenchError> {
        let unmounted = Command::new(&self.program)
            .arg("unmount")
            .arg(&self.dir)
            .stdin(Stdio::null())
            .status()
            .context("unmount a folder")?;
        forget_mount(&self.dir);
        match (unmounted.success(), self.server.ended()?) {
            (true, Some(_)) => Ok(()),
            ended => Err(BenchError::Asked(format!("a mount did not end: {ended:?}"))),
        }
    }
}

/// How a write is synced.
#[derive(Clone, Copy)]
enum Way {
    Call,
    Open,
}

fn open(dir: &Path, way: Way) -> Result<File, BenchError> {
    let path = dir.join("log");
    let made = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .context("make a file")?;
    let there = made.metadata().context("look at a file")?.len();
    // As far as it is not there yet.
    for at in (there..FILE_BYTES).step_by(1 << 20) {
        made.write_all_at(&vec![0; 1 << 20], at).context("fill a file")?;
    }
    made.sync_all().context("sync a file")?;
    let flags = match way {
        Way::Call => OFlags::empty(),
        Way::Open => OFlags::DSYNC,
    };
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(flags.bits().cast_signed());
    options.open(&path).context("open a file")
}

/// The median of writes that are synced, in µs.
fn round(dir: &Path, way: Way, time: Duration) -> Result<f64, BenchError> {
    let file = open(dir, way)?;
    let (mut took, until) = (Vec::new(), Instant::now() + time);
    let mut at = 0;
    while Instant::now() < until {
        let began = Instant::now();
        file.write_all_at(&[7; BYTES], at).context("write")?;
        if let Way::Call = way {
            file.sync_data().context("sync")?;
        }
        took.push(began.elapsed().as_nanos() as f64 / 1e3);
        at = (at + BYTES as u64) % FILE_BYTES;
    }
    Ok(median(took))
}

/// `skipped` says why nothing is measured where this process may not mount.
pub(super) fn files(site: &Site, quick: bool, skipped: &mut Vec<String>) -> Result<Vec<Figure>, BenchError> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        skipped.push("files on a mount: it needs root and /dev/fuse".to_owned());
        return Ok(Vec::new());
    }
    let time = Duration::from_millis(if quick { 200 } else { 600 });
    let lender = volume::lender(site, None)?;
    let plain = site.folder().join("plain");
    std::fs::create_dir(&plain).context("make a folder")?;
    let mounted = Mounted::begin(site, &lender.address().to_string())?;
    let mut figures = Vec::new();
    for (id, slow, way, what) in [
        (
            "mount-sync",
            Some("mount-sync-1ms"),
            Way::Call,
            "write and fdatasync",
        ),
        ("mount-dsync", None, Way::Open, "write to a file opened O_DSYNC"),
    ] {
        round(&mounted.dir, way, WARM_UP)?;
        let (mut on_mount, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            on_mount.push(round(&mounted.dir, way, time)?);
            beside.push(round(&plain, way, time)?);
        }
        let (on_mount, beside) = (median(on_mount), median(beside));
        let whole = format!("{what}, {BYTES} B, on a mount; floor: beside it, on the same disk");
        figures.push(Figure::faster(id, whole, "us p50", on_mount, beside, 2.0));
        if let Some(id) = slow {
            let whole = "the same on a MODELLED disk, 1 ms added to each sync beside it".to_owned();
            figures.push(Figure::faster(
                id,
                whole,
                "us p50",
                on_mount,
                beside + SLOW_SYNC_US,
                10.0,
            ));
        }
    }
    mounted.end()?;
    Ok(figures)
}
