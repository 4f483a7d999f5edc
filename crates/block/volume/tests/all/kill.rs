//! A process that writes to a volume is killed at random points; every write that it completed must be there.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netram_lender::{Lender, LenderConfig};
use netram_transport::Security;
use netram_volume::{BlockDevice, Volume, VolumeSettings};

const PLACE: &str = "NETRAM_TEST_VOLUME";
const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;
const ROUNDS: u64 = 8;
/// Maximum time of a round on a slow disk; well before the writer gives up.
const ROUND: Duration = Duration::from_secs(10);
/// A stage ends at an age of 5 s; before this time since the process's start none has.
const YOUNG: Duration = Duration::from_secs(4);

/// A small generator, so that a test's seed determines the whole run.
struct TestRng(u64);

impl TestRng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

fn settings(path: &Path) -> VolumeSettings {
    VolumeSettings::load(&path.join("netram.toml")).unwrap()
}

/// Writes ever higher versions, and prints each one that is complete.
#[test]
#[ignore = "the process that another test kills"]
fn writer() {
    let Some(path) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    // Ends the process, and with it the other test, if it waits too long.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(120));
        std::process::exit(3);
    });
    let (volume, _) = Volume::open_with(&path, &settings(&path)).unwrap();
    let mut version = newest(&volume).into_iter().max().unwrap_or(0);
    let mut random = TestRng(version + 1);
    let mut out = std::io::stdout().lock();
    loop {
        version += 1;
        let (block, sectors) = (random.below(BLOCKS), random.below(8) + 1);
        let first = random.below(9 - sectors);
        let bytes: Vec<u8> = (0..sectors * 64).flat_map(|_| version.to_le_bytes()).collect();
        let offset = block * BLOCK as u64 + first * 512;
        let pending = volume.write(offset, &bytes).unwrap();
        volume.wait(pending).unwrap();
        writeln!(out, "done {version} {} {sectors}", block * 8 + first).unwrap();
        out.flush().unwrap();
    }
}

/// Version of every sector; none may be torn.
fn newest(volume: &Volume) -> Vec<u64> {
    let mut bytes = vec![0; BLOCKS as usize * BLOCK];
    volume.read(0, &mut bytes).unwrap();
    let sector = |sector: &[u8]| {
        let first: [u8; 8] = sector[..8].try_into().unwrap();
        assert!(sector.chunks_exact(8).all(|word| word == first), "a torn sector");
        u64::from_le_bytes(first)
    };
    bytes.chunks_exact(512).map(sector).collect()
}

/// Lets the writer complete `completions` writes, or as many as fit in the time, and kills it. Notes the
/// minimum version of each sector; returns how long the writer lived.
fn run_and_kill(path: &Path, completions: u64, held: &mut [u64]) -> Duration {
    let began = Instant::now();
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::writer", "--ignored", "--nocapture"])
        .env(PLACE, path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let mut seen = 0;
    for line in &mut lines {
        let line = line.unwrap();
        // The test harness prints lines of its own.
        if let Some(at) = line.find("done ") {
            note(&line[at..], held);
            seen += 1;
        }
        if seen == completions || seen > 0 && began.elapsed() > ROUND {
            break;
        }
    }
    assert!(
        writer.try_wait().unwrap().is_none() && seen > 0,
        "the writer ended by itself"
    );
    writer.kill().unwrap();
    // Writes that it printed before it died are complete too.
    for line in lines
        .map_while(Result::ok)
        .filter(|line| line.starts_with("done "))
    {
        note(&line, held);
    }
    writer.wait().unwrap();
    began.elapsed()
}

fn note(line: &str, held: &mut [u64]) {
    let numbers: Vec<u64> = line
        .split(' ')
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    // A line cut off by the kill is ignored.
    if let [version, first, sectors] = numbers[..]
        && let Some(held) = held.get_mut(first as usize..(first + sectors) as usize)
    {
        held.iter_mut()
            .for_each(|sector| *sector = (*sector).max(version));
    }
}

fn every_completed_write_is_there(with_lender: bool) {
    let directory = tempfile::tempdir().unwrap();
    let memory = with_lender.then(|| tempfile::tempdir_in("/dev/shm").unwrap());
    let path = directory.path().join("volume");
    Volume::create(&path, BLOCKS * BLOCK as u64, 1 << 20).unwrap();
    let socket = format!("unix:{}", directory.path().join("lend.sock").display());
    let lender = memory.as_ref().map(|memory| {
        Lender::start(LenderConfig {
            listen: vec![socket.parse().unwrap()],
            security: Security::Insecure,
            memory: 64 << 20,
            store: Some(memory.path().join("lent")),
            ..LenderConfig::default()
        })
        .unwrap()
    });
    let lenders = match &lender {
        Some(_) => format!("[journal]\nlenders = [\"{socket}\"]\ninsecure = true\none-domain = true\n"),
        None => "[journal]\n".to_owned(),
    };
    std::fs::write(
        path.join("netram.toml"),
        format!("{lenders}window = \"256KiB\"\n[volume]\nstage = \"64KiB\"\n"),
    )
    .unwrap();

    let mut held = vec![0; (BLOCKS * 8) as usize];
    let mut random = TestRng(7);
    for round in 0..ROUNDS {
        let lived = run_and_kill(&path, 20 + random.below(300), &mut held);
        let (volume, recovered) = Volume::open_with(&path, &settings(&path)).unwrap();
        // A stage that ended by age is replayed with other boundaries, so its bases may be accepted as found.
        if lived < YOUNG {
            assert_eq!(recovered.disk.unverified, 0, "only the process died");
        }
        for (sector, (found, held)) in newest(&volume).into_iter().zip(&held).enumerate() {
            assert!(
                found >= *held,
                "round {round}, sector {sector}: {found}, and {held} was complete"
            );
        }
        if with_lender {
            volume
                .journal()
                .wait_for_members(Duration::from_secs(20))
                .unwrap();
        }
        volume.close().unwrap();
    }
}

#[test]
fn every_completed_write_survives_a_kill_on_the_local_disk() {
    every_completed_write_is_there(false);
}

#[test]
fn every_completed_write_survives_a_kill_with_a_lender() {
    every_completed_write_is_there(true);
}
