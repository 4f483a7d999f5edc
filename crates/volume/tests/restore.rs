//! A client that is killed and loses its disk, restored from its data lender: twice in a row, with a data lender that goes in
//! the middle of it, and by taking over its copy.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_client::OpenError as JournalError;
use netram_disk::VolumeId;
use netram_lender::{Config, Lender};
use netram_proto::journal::RecoveryRefusal;
use netram_transport::Address;
use netram_volume::replica::Keeper;
use netram_volume::replica::restore::{DataLender, RestoreError, Restored, restore};
use netram_volume::{Device, Volume, VolumeSettings};

const PLACE: &str = "NETRAM_TEST_RESTORE";
const BLOCK: usize = 4096;
const BLOCKS: u64 = 100;
const BYTES: u64 = 4 << 20;
const JOURNAL_BYTES: u64 = 4 << 20;
/// How long anything may take that is not itself under test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Writes a volume, waits until its data lender has all of it, and says so.
#[test]
#[ignore = "the process that the other tests kill"]
fn writer() {
    let Some(folder) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    // Should it wait in vain, or never be killed, it ends.
    std::thread::spawn(|| {
        std::thread::sleep(2 * PATIENCE);
        std::process::exit(3);
    });
    let (volume, _) = Volume::open_with(&folder.join("volume"), &settings(&folder)).unwrap();
    volume.journal().wait_for_members(PATIENCE).unwrap();
    for block in 0..BLOCKS {
        write(&volume, block, 1);
    }
    loop {
        let status = volume.status();
        let tail = status.journal.log.tail.0;
        if (status.data_lender).is_some_and(|kept| kept.in_service && kept.flushed == tail) {
            writeln!(std::io::stdout(), "ready").unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A lender, stopped when dropped.
struct Serving {
    lender: Lender,
    keeper: Option<Arc<Keeper>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.lender.stop(Duration::ZERO);
        if let Some(keeper) = &self.keeper {
            keeper.stop();
        }
    }
}

fn address(folder: &Path, name: &str) -> Address {
    Address::Unix(folder.join(name))
}

fn settings(folder: &Path) -> VolumeSettings {
    let mut settings = VolumeSettings {
        data_lender: Some(address(folder, "data.sock")),
        ..VolumeSettings::default()
    };
    settings.journal.lenders = vec![address(folder, "member.sock")];
    settings.journal.insecure = true;
    settings.journal.one_domain = true;
    settings
}

fn serve(folder: &Path, name: &str, keeper: Option<Arc<Keeper>>) -> Serving {
    let config = Config {
        listen: vec![address(folder, name)],
        memory: 16 << 20,
        store: Some(folder.join(name).with_extension("store")),
        allow_disk: true,
        ..Config::default()
    };
    let lender = Lender::start_with(config, keeper.clone().map(|keeper| keeper as _)).unwrap();
    Serving { lender, keeper }
}

fn data_lender(folder: &Path) -> Serving {
    let keeper = Arc::new(Keeper::start(&folder.join("kept")).unwrap());
    serve(folder, "data.sock", Some(keeper))
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A volume whose writer was killed when its data lender had all of it and a member held the newest of it.
fn killed(folder: &Path) -> VolumeId {
    let id = Volume::create(&folder.join("volume"), BYTES, JOURNAL_BYTES).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "writer", "--ignored", "--nocapture"])
        .env(PLACE, folder)
        .stdout(Stdio::piped());
    let mut writer = Killed(command.spawn().unwrap());
    let lines = BufReader::new(writer.0.stdout.take().unwrap()).lines();
    let ready = lines.map_while(Result::ok).any(|line| line.ends_with("ready"));
    assert!(ready, "the writer ended by itself");
    id
}

fn lose(folder: &Path) {
    std::fs::remove_dir_all(folder.join("volume")).unwrap();
}

fn bring_back(folder: &Path, id: VolumeId, accept_loss: bool) -> Result<Restored, RestoreError> {
    bring_back_and(folder, id, accept_loss, || ())
}

/// The same; `meanwhile` happens when the volume has been made, just before it appears.
fn bring_back_and(
    folder: &Path,
    id: VolumeId,
    accept_loss: bool,
    meanwhile: impl FnOnce(),
) -> Result<Restored, RestoreError> {
    let mut config = settings(folder).journal_config().unwrap();
    config.accept_loss = accept_loss;
    let root = folder.join("volume");
    let from = DataLender {
        address: address(folder, "data.sock"),
        security: config.security.clone(),
    };
    restore(&root, &from, id, &config, |_| {
        meanwhile();
        Ok(())
    })
}

fn fill(block: u64, version: u8) -> Vec<u8> {
    vec![block as u8 ^ version.wrapping_mul(51); BLOCK]
}

fn write(volume: &Volume, block: u64, version: u8) {
    let pending = volume.write(block * BLOCK as u64, &fill(block, version)).unwrap();
    volume.wait(pending).unwrap();
}

fn check(volume: &Volume) {
    let mut bytes = vec![0; BLOCK];
    for block in 0..BLOCKS {
        volume.read(block * BLOCK as u64, &mut bytes).unwrap();
        assert!(bytes == fill(block, 1), "block {block}");
    }
}

/// The copy named the old members until it heard the restored volume. What they held before the first loss then passed for
/// all that there was when the second volume was lost unheard.
#[test]
fn a_restored_volume_that_was_lost_unheard_is_not_restored_as_if_it_had_written_nothing() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let _member = serve(folder, "member.sock", None);
    let lender = data_lender(folder);
    let id = killed(folder);
    lose(folder);
    let restored = bring_back(folder, id, false).unwrap();
    assert_eq!(restored.loss_accepted, None);
    drop(lender);
    let mut alone = settings(folder);
    alone.journal.lenders.clear();
    let (volume, _) = Volume::open_with(&folder.join("volume"), &alone).unwrap();
    write(&volume, 7, 2);
    drop(volume);
    lose(folder);
    let _lender = data_lender(folder);
    let refused = bring_back(folder, id, false).unwrap_err();
    assert!(
        matches!(
            refused,
            RestoreError::Journal(JournalError::Refused {
                refusal: RecoveryRefusal::Unproven { .. },
                ..
            })
        ),
        "{refused}"
    );
    assert!(!folder.join("volume").exists());
    // Whoever accepts the loss gets what the data lender has.
    let restored = bring_back(folder, id, true).unwrap();
    assert!(restored.loss_accepted.is_some());
    let (volume, _) = Volume::open_with(&folder.join("volume"), &settings(folder)).unwrap();
    check(&volume);
}

#[test]
fn a_restore_whose_data_lender_keeps_no_release_makes_nothing_and_may_be_tried_again() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let _member = serve(folder, "member.sock", None);
    let lender = data_lender(folder);
    let id = killed(folder);
    lose(folder);
    let refused = bring_back_and(folder, id, false, || drop(lender)).unwrap_err();
    assert!(matches!(refused, RestoreError::Release(_)), "{refused}");
    assert!(!folder.join("volume").exists(), "nothing may serve");
    let _lender = data_lender(folder);
    let restored = bring_back(folder, id, false).unwrap();
    assert_eq!(restored.loss_accepted, None);
    let (volume, _) = Volume::open_with(&folder.join("volume"), &settings(folder)).unwrap();
    check(&volume);
    // Its data lender has it for its own again.
    let began = Instant::now();
    while !volume.data_lender().is_some_and(|kept| kept.in_service) {
        assert!(began.elapsed() < PATIENCE, "never in service again");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The client had given up what was in its own image; a copy's log that kept as much had no room for what members held
/// beyond it, and the takeover was refused as of a damaged log.
#[test]
fn a_copy_that_is_taken_over_has_all_of_its_log_free_for_what_members_hold() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path();
    let _member = serve(folder, "member.sock", None);
    let lender = data_lender(folder);
    let id = killed(folder);
    drop(lender);
    let mut taking = settings(folder);
    taking.data_lender = None;
    taking.take_over = true;
    let copy = folder.join("kept").join(id.to_string());
    let (taken, recovered) = Volume::open_with(&copy, &taking).unwrap();
    assert!(recovered.journal.local_end.0 > 0);
    assert_eq!(recovered.journal.head, recovered.journal.local_end);
    check(&taken);
}
