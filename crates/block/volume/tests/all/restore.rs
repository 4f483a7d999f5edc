//! A client that is killed and loses its disk is restored from its data lender: twice in a row, with a data
//! lender that goes away during the restore, by taking over its copy, and by attempts killed at every step.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_block::VolumeId;
use netram_journal::JournalOpenError as JournalError;
use netram_lender::{Lender, LenderConfig};
use netram_proto::journal::RecoveryError;
use netram_transport::NetAddress;
use netram_volume::replica::ReplicaHost;
use netram_volume::replica::restore::{
    DataLenderEndpoint, RestoreError, RestoreReport, RestoreRequest, restore,
};
use netram_volume::{BlockDevice, Volume, VolumeOpenError, VolumePaths, VolumeSettings};

pub(crate) const PLACE: &str = "NETRAM_TEST_RESTORE";
pub(crate) const VOLUME: &str = "NETRAM_TEST_RESTORE_VOLUME";
pub(crate) const BLOCK: usize = 4096;
pub(crate) const BLOCKS: u64 = 100;
const BYTES: u64 = 4 << 20;
const JOURNAL_BYTES: u64 = 4 << 20;
/// Timeout of everything that is not itself under test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Writes a volume, waits until its data lender has all of it, and reports that. Then it continues writing
/// and reports each complete write.
#[test]
#[ignore = "the process that other tests kill"]
fn writer() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    // Ends the process if it waits too long or is never killed.
    std::thread::spawn(|| {
        std::thread::sleep(2 * PATIENCE);
        std::process::exit(3);
    });
    let (volume, _) = Volume::open_with(&directory.join("volume"), &settings(&directory)).unwrap();
    volume.journal().wait_for_members(PATIENCE).unwrap();
    for block in 0..BLOCKS {
        write(&volume, block, 1);
    }
    while !has_all(&volume) {
        std::thread::sleep(Duration::from_millis(5));
    }
    writeln!(std::io::stdout(), "ready").unwrap();
    while !directory.join("go").exists() {
        if has_all(&volume) {
            writeln!(std::io::stdout(), "still ready").unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for block in (0..BLOCKS).cycle() {
        write(&volume, block, 2);
        writeln!(std::io::stdout(), "done {block}").unwrap();
    }
}

fn has_all(volume: &Volume) -> bool {
    let status = volume.status();
    let tail = status.journal.log.tail.0;
    (status.data_lender).is_some_and(|kept| kept.in_service && kept.flushed == tail)
}

/// Restores the volume.
#[test]
#[ignore = "a process that another test kills"]
fn restorer() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let id = u128::from_str_radix(&std::env::var(VOLUME).unwrap(), 16).unwrap();
    bring_back(&directory, VolumeId(id), false).unwrap();
}

/// Takes its copy over.
#[test]
#[ignore = "a process that another test kills"]
fn taker() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let id = u128::from_str_radix(&std::env::var(VOLUME).unwrap(), 16).unwrap();
    take_over(&directory, VolumeId(id)).unwrap().close().unwrap();
}

/// A lender, stopped when dropped.
pub(crate) struct RunningLender {
    pub(crate) lender: Lender,
    keeper: Option<Arc<ReplicaHost>>,
}

impl Drop for RunningLender {
    fn drop(&mut self) {
        self.lender.stop(Duration::ZERO);
        if let Some(keeper) = &self.keeper {
            keeper.stop();
        }
    }
}

pub(crate) fn address(directory: &Path, name: &str) -> NetAddress {
    NetAddress::Unix(directory.join(name))
}

pub(crate) fn settings(directory: &Path) -> VolumeSettings {
    let mut settings = VolumeSettings {
        data_lender: Some(address(directory, "data.sock")),
        ..VolumeSettings::default()
    };
    settings.journal.lenders = vec![address(directory, "member.sock")];
    settings.journal.insecure = true;
    settings.journal.one_domain = true;
    settings
}

pub(crate) fn serve(directory: &Path, name: &str, keeper: Option<Arc<ReplicaHost>>) -> RunningLender {
    let config = LenderConfig {
        listen: vec![address(directory, name)],
        memory: 16 << 20,
        store: Some(directory.join(name).with_extension("store")),
        allow_disk: true,
        ..LenderConfig::default()
    };
    let lender = Lender::start_with(config, keeper.clone().map(|keeper| keeper as _)).unwrap();
    RunningLender { lender, keeper }
}

pub(crate) fn data_lender(directory: &Path) -> RunningLender {
    let began = Instant::now();
    let keeper = loop {
        match ReplicaHost::start(&directory.join("kept")) {
            Ok(keeper) => break Arc::new(keeper),
            // A child process that another test is just starting shares the lock.
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    serve(directory, "data.sock", Some(keeper))
}

pub(crate) struct KilledProcess(pub(crate) Child);

impl Drop for KilledProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test of this program as a process of its own.
pub(crate) fn spawn(directory: &Path, test: &str, volume: &str) -> KilledProcess {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env(PLACE, directory)
        .env(VOLUME, volume)
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    KilledProcess(command.spawn().unwrap())
}

/// A volume whose writer was killed once its data lender had all of it.
pub(crate) fn killed(directory: &Path) -> VolumeId {
    killed_after(directory, 0).0
}

/// As [`killed`] if `writes` is zero. Otherwise the writer is killed after so many writes, which a member may
/// hold and the data lender lack. Returns the number of complete writes.
pub(crate) fn killed_after(directory: &Path, writes: u64) -> (VolumeId, u64) {
    let id = Volume::create(&directory.join("volume"), BYTES, JOURNAL_BYTES).unwrap();
    let mut writer = spawn(directory, "restore::writer", "");
    let mut lines = BufReader::new(writer.0.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    let ready = lines.any(|line| line.ends_with("ready"));
    assert!(ready, "the writer ended by itself");
    if writes == 0 {
        return (id, 0);
    }
    std::fs::write(directory.join("go"), "").unwrap();
    let mut done = 0;
    while done < writes {
        let line = lines.next().expect("the writer is still running");
        done += u64::from(line.starts_with("done"));
    }
    drop(writer);
    // Writes that it reported and that were not read yet.
    (
        id,
        done + lines.filter(|line| line.starts_with("done")).count() as u64,
    )
}

/// A volume that was lost for good, and everything that is left of it.
struct LostVolume {
    place: tempfile::TempDir,
    member: RunningLender,
    lender: Option<RunningLender>,
    id: VolumeId,
    /// Number of writes that had been reported complete.
    done: u64,
}

impl LostVolume {
    /// A member holds writes that the data lender lacks, with no gap between them. On a busy machine the data
    /// lender may just have gone out of service, and later steps would rightly be refused: then it is tried
    /// again in another directory.
    fn new() -> LostVolume {
        for attempt in 0..50 {
            let place = tempfile::tempdir().unwrap();
            let member = serve(place.path(), "member.sock", None);
            let lender = data_lender(place.path());
            let (id, done) = killed_after(place.path(), 30 + attempt);
            lose(place.path());
            let began = Instant::now();
            let copy = loop {
                let copy = lender.lender.report().replicas.remove(0);
                if !copy.connected {
                    break copy;
                }
                assert!(began.elapsed() < PATIENCE, "the session does not end");
                std::thread::sleep(Duration::from_millis(5));
            };
            let window = member.lender.report().journals.remove(0).state.unwrap();
            if copy
                .flushed
                .is_some_and(|flushed| (window.trim.0..window.held.0).contains(&flushed))
            {
                let lender = Some(lender);
                return LostVolume {
                    place,
                    member,
                    lender,
                    id,
                    done,
                };
            }
        }
        panic!("no attempt killed a writer with its data lender in service and behind");
    }

    fn directory(&self) -> &Path {
        self.place.path()
    }

    /// Runs `test` repeatedly, each time a little longer before it is killed, until there is a volume or it
    /// succeeds. Returns the number of killed runs.
    fn insist(&self, test: &str) -> u32 {
        for round in 0.. {
            if self.directory().join("volume").exists() {
                return round;
            }
            let mut process = spawn(self.directory(), test, &self.id.to_string());
            let deadline = Instant::now() + Duration::from_millis(u64::from(round) * 4);
            while Instant::now() < deadline {
                if let Some(status) = process.0.try_wait().unwrap() {
                    assert!(status.success(), "{test} fails after {round} runs were killed");
                    return round;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        unreachable!("there is always a next round")
    }

    /// Checks that every complete write is there.
    fn check(&self, volume: &Volume) {
        let mut bytes = vec![0; BLOCK];
        for block in 0..BLOCKS {
            volume.read(block * BLOCK as u64, &mut bytes).unwrap();
            let newest = bytes == fill(block, 2);
            assert!(newest || bytes == fill(block, 1), "block {block}");
            assert!(newest || block >= self.done, "block {block} of {}", self.done);
        }
    }
}

pub(crate) fn lose(directory: &Path) {
    std::fs::remove_dir_all(directory.join("volume")).unwrap();
}

fn bring_back(directory: &Path, id: VolumeId, accept_loss: bool) -> Result<RestoreReport, RestoreError> {
    bring_back_and(directory, id, accept_loss, || ())
}

/// As [`bring_back`]; `meanwhile` runs when the volume is complete, just before it gets its name.
fn bring_back_and(
    directory: &Path,
    id: VolumeId,
    accept_loss: bool,
    meanwhile: impl FnOnce(),
) -> Result<RestoreReport, RestoreError> {
    let mut config = settings(directory).journal_config().unwrap();
    config.accept_loss = accept_loss;
    let root = directory.join("volume");
    let from = DataLenderEndpoint {
        address: address(directory, "data.sock"),
        security: config.security.clone(),
    };
    let request = RestoreRequest {
        from: &from,
        volume: id,
        config: &config,
        recovery: None,
        // Its writer was killed a moment ago.
        client_is_off: true,
    };
    restore(&root, &request, |_| {
        meanwhile();
        Ok(())
    })
}

pub(crate) fn take_over(directory: &Path, id: VolumeId) -> Result<Volume, VolumeOpenError> {
    let mut taking = settings(directory);
    taking.data_lender = None;
    taking.take_over = true;
    taking.client_is_off = true;
    Volume::open_with(&directory.join("kept").join(id.to_string()), &taking).map(|(volume, _)| volume)
}

pub(crate) fn fill(block: u64, version: u8) -> Vec<u8> {
    vec![block as u8 ^ version.wrapping_mul(51); BLOCK]
}

pub(crate) fn write(volume: &Volume, block: u64, version: u8) {
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

/// The copy named the old members until the restored volume reached the data lender. Their records from
/// before the first loss then passed for complete when the second volume was lost unannounced.
#[test]
fn a_restored_volume_that_served_and_was_lost_is_not_restored_without_its_writes() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let _member = serve(directory, "member.sock", None);
    let lender = data_lender(directory);
    let id = killed(directory);
    lose(directory);
    let restored = bring_back(directory, id, false).unwrap();
    assert_eq!(restored.loss_accepted, None);
    drop(lender);
    let mut alone = settings(directory);
    alone.journal.lenders.clear();
    // Without its data lender it does not serve at all.
    let unheard = Volume::open_with(&directory.join("volume"), &alone).unwrap_err();
    assert!(
        matches!(unheard, VolumeOpenError::Unannounced { .. }),
        "{unheard}"
    );
    let lender = data_lender(directory);
    let (volume, _) = Volume::open_with(&directory.join("volume"), &alone).unwrap();
    drop(lender);
    write(&volume, 7, 2);
    drop(volume);
    lose(directory);
    let _lender = data_lender(directory);
    let refused = bring_back(directory, id, false).unwrap_err();
    assert!(
        matches!(
            refused,
            RestoreError::Journal(JournalError::Refused {
                refusal: RecoveryError::Unproven { .. },
                ..
            })
        ),
        "{refused}"
    );
    assert!(!directory.join("volume").exists());
    // With the loss accepted, the data lender's state is restored.
    let restored = bring_back(directory, id, true).unwrap();
    assert!(restored.loss_accepted.is_some());
    let (volume, _) = Volume::open_with(&directory.join("volume"), &settings(directory)).unwrap();
    check(&volume);
}

/// Between the release and the naming, the copy named no members and was not complete without them: accepting
/// loss then lost the records that they held beyond it.
#[test]
fn a_restore_interrupted_before_the_volume_has_its_name_is_repeated_without_loss() {
    let mut lost = LostVolume::new();
    let (directory, id) = (lost.directory().to_path_buf(), lost.id);
    let obstacle = directory.join("volume").join("obstacle");
    let cut_off = bring_back_and(&directory, id, false, || {
        std::fs::create_dir_all(&obstacle).unwrap();
    });
    assert!(matches!(cut_off, Err(RestoreError::Create(_))), "{cut_off:?}");
    lose(&directory);
    // The members are not needed any more either.
    drop(std::mem::replace(
        &mut lost.member,
        serve(&directory, "other.sock", None),
    ));
    let restored = bring_back(&directory, id, false).unwrap();
    assert_eq!(restored.loss_accepted, None);
    // It is lost again before it was ever opened.
    lose(&directory);
    bring_back(&directory, id, false).unwrap();
    let mut alone = settings(&directory);
    alone.journal.lenders.clear();
    let (volume, _) = Volume::open_with(&directory.join("volume"), &alone).unwrap();
    lost.check(&volume);
}

#[test]
fn of_two_volumes_restored_from_one_copy_only_the_later_serves() {
    let lost = LostVolume::new();
    let directory = lost.directory();
    bring_back(directory, lost.id, false).unwrap();
    let (first, second) = (directory.join("first"), directory.join("volume"));
    std::fs::rename(&second, &first).unwrap();
    bring_back(directory, lost.id, false).unwrap();
    // However often it is tried: every opening takes a later epoch.
    for _ in 0..3 {
        let refused = Volume::open_with(&first, &settings(directory)).unwrap_err();
        assert!(matches!(refused, VolumeOpenError::Claimed { .. }), "{refused}");
    }
    let (volume, _) = Volume::open_with(&second, &settings(directory)).unwrap();
    lost.check(&volume);
}

#[test]
fn restores_killed_at_any_point_are_repeated_without_loss() {
    let lost = LostVolume::new();
    let killed = lost.insist("restore::restorer");
    assert!(killed > 0);
    let (volume, _) =
        Volume::open_with(&lost.directory().join("volume"), &settings(lost.directory())).unwrap();
    lost.check(&volume);
}

/// At that point the copy named no members and was not marked, so it was not known to be complete.
#[test]
fn a_takeover_killed_when_it_releases_the_members_is_repeated_without_loss() {
    let mut lost = LostVolume::new();
    lost.lender = None;
    let copy = VolumePaths::at(&lost.directory().join("kept").join(lost.id.to_string()));
    assert!(!copy.inspect().unwrap().members.is_empty());
    let taker = spawn(lost.directory(), "restore::taker", &lost.id.to_string());
    let began = Instant::now();
    while !copy.inspect().is_ok_and(|found| found.members.is_empty()) {
        assert!(
            began.elapsed() < PATIENCE,
            "the takeover never releases the members"
        );
    }
    drop(taker);
    let volume = take_over(lost.directory(), lost.id).unwrap();
    lost.check(&volume);
}

#[test]
fn takeovers_killed_at_any_point_are_repeated_without_loss() {
    let mut lost = LostVolume::new();
    lost.lender = None;
    let killed = lost.insist("restore::taker");
    assert!(killed > 0);
    let volume = take_over(lost.directory(), lost.id).unwrap();
    lost.check(&volume);
}

#[test]
fn a_restore_whose_release_is_not_stored_creates_nothing_and_can_be_repeated() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let _member = serve(directory, "member.sock", None);
    let lender = data_lender(directory);
    let id = killed(directory);
    lose(directory);
    let refused = bring_back_and(directory, id, false, || drop(lender)).unwrap_err();
    assert!(matches!(refused, RestoreError::Release(_)), "{refused}");
    assert!(!directory.join("volume").exists(), "nothing may serve");
    let _lender = data_lender(directory);
    let restored = bring_back(directory, id, false).unwrap();
    assert_eq!(restored.loss_accepted, None);
    let (volume, _) = Volume::open_with(&directory.join("volume"), &settings(directory)).unwrap();
    check(&volume);
    // Its data lender accepts it as its own again.
    let began = Instant::now();
    while !volume.data_lender().is_some_and(|kept| kept.in_service) {
        assert!(began.elapsed() < PATIENCE, "never in service again");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The client had trimmed records that its own image had. A copy's log that kept as many had no room for the
/// members' records beyond it, so the takeover failed as if the log were damaged.
#[test]
fn a_copy_being_taken_over_has_its_whole_log_free_for_the_members_records() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path();
    let _member = serve(directory, "member.sock", None);
    let lender = data_lender(directory);
    let id = killed(directory);
    drop(lender);
    let mut taking = settings(directory);
    taking.data_lender = None;
    taking.take_over = true;
    taking.client_is_off = true;
    let copy = directory.join("kept").join(id.to_string());
    let (taken, recovered) = Volume::open_with(&copy, &taking).unwrap();
    assert!(recovered.journal.local_end.0 > 0);
    assert_eq!(recovered.journal.head, recovered.journal.local_end);
    check(&taken);
}
