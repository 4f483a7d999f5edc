//! Check, then fence (rule 18). A refused command has changed nothing, a volume whose client is alive is left
//! alone, and the operator may declare which directory is the newest. After any two commands, the first of
//! which is killed, some command leads to a volume with everything.

use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command};
use std::time::{Duration, Instant};

use netram_block::VolumeId;
use netram_journal::{JournalInspector, JournalOpenError as JournalError};
use netram_proto::id::{Epoch, WriterId};
use netram_proto::journal::RecoveryError;
use netram_volume::replica::restore::{
    DataLenderEndpoint, RestoreError, RestoreReport, RestoreRequest, check_restore, restore,
};
use netram_volume::{BlockDevice, Volume, VolumeOpenError, VolumeSettings};

use crate::restore::{
    BLOCK, BLOCKS, KilledProcess, PATIENCE, PLACE, RunningLender, VOLUME, address, data_lender, fill,
    killed_after, serve, settings, spawn, write,
};

const COMMAND: &str = "NETRAM_TEST_PROOF_COMMAND";
/// Commands that operators may run, in any order.
const COMMANDS: [&str; 5] = ["open", "newest", "restore", "takeover", "check"];

/// A directory in which a lender's memory outlives its process.
fn in_memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn in_haste(directory: &Path) -> VolumeSettings {
    let mut settings = settings(directory);
    settings.journal.patience = Some(Duration::from_millis(300));
    settings
}

fn source(directory: &Path) -> DataLenderEndpoint {
    DataLenderEndpoint {
        address: address(directory, "data.sock"),
        security: settings(directory).journal_config().unwrap().security,
    }
}

fn restore_to(
    directory: &Path,
    name: &str,
    id: VolumeId,
    client_is_off: bool,
    finish: impl FnOnce() -> std::io::Result<()>,
) -> Result<RestoreReport, RestoreError> {
    let config = in_haste(directory).journal_config().unwrap();
    let request = RestoreRequest {
        from: &source(directory),
        volume: id,
        config: &config,
        recovery: None,
        client_is_off,
    };
    restore(&directory.join(name), &request, |_| finish())
}

fn open(directory: &Path, name: &str, newest: bool) -> Result<Volume, VolumeOpenError> {
    let settings = VolumeSettings {
        newest,
        ..in_haste(directory)
    };
    Volume::open_with(&directory.join(name), &settings).map(|(volume, _)| volume)
}

fn take_over(directory: &Path, id: VolumeId, client_is_off: bool) -> Result<Volume, VolumeOpenError> {
    let settings = VolumeSettings {
        data_lender: None,
        take_over: true,
        client_is_off,
        ..in_haste(directory)
    };
    Volume::open_with(&directory.join("kept").join(id.to_string()), &settings).map(|(volume, _)| volume)
}

/// Checks that all of `done` completed writes are there.
fn check(volume: &Volume, done: u64) {
    let mut bytes = vec![0; BLOCK];
    for block in 0..BLOCKS {
        volume.read(block * BLOCK as u64, &mut bytes).unwrap();
        let newest = bytes == fill(block, 2);
        assert!(newest || bytes == fill(block, 1), "block {block}");
        assert!(newest || block >= done, "block {block} of {done}");
    }
}

/// State that fencing would change: the epoch that the copy obeys, and the writer that fenced the member.
fn fences(directory: &Path, member: &RunningLender, id: VolumeId) -> (Epoch, Epoch, WriterId) {
    let journal = member.lender.report().journals.remove(0).state.unwrap();
    let copy = directory.join("kept").join(id.to_string()).join("journal");
    let copy = JournalInspector::open(&copy).unwrap().view().epoch;
    (copy, journal.epoch, journal.writer)
}

/// A process that writes, and prints each write that is complete.
struct WriterProcess {
    process: KilledProcess,
    lines: Lines<BufReader<ChildStdout>>,
    done: u64,
}

impl WriterProcess {
    /// Starts writing the volume of `directory`, whose data lender has everything written before.
    fn start(directory: &Path) -> WriterProcess {
        let mut process = spawn(directory, "restore::writer", "");
        let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let ready = lines
            .by_ref()
            .map_while(Result::ok)
            .any(|line| line.ends_with("ready"));
        assert!(ready, "the writer ended by itself");
        std::fs::write(directory.join("go"), "").unwrap();
        let mut writer = WriterProcess {
            process,
            lines,
            done: 0,
        };
        writer.go_on(20);
        writer
    }

    fn go_on(&mut self, count: u64) {
        let until = self.done + count;
        while self.done < until {
            let line = self.lines.next().expect("the writer is still running").unwrap();
            self.done += u64::from(line.starts_with("done"));
        }
    }

    /// Returns the number of writes that it had reported complete.
    fn kill(mut self) -> u64 {
        self.process.0.kill().unwrap();
        let rest = self.lines.by_ref().map_while(Result::ok);
        self.done + rest.filter(|line| line.starts_with("done")).count() as u64
    }
}

fn is_missing(error: &JournalError) -> bool {
    let refusal = |refusal: &RecoveryError| matches!(refusal, RecoveryError::Missing { .. });
    matches!(error, JournalError::Refused { refusal: why, .. } if refusal(why))
}

/// A restore against a live client was refused, but had fenced the client within 2 s; then neither volume
/// opened.
#[test]
fn a_restore_against_a_live_client_is_refused_and_the_client_continues() {
    let place = in_memory();
    let directory = place.path();
    let member = serve(directory, "member.sock", None);
    let _keeper = data_lender(directory);
    let id = Volume::create(&directory.join("volume"), 4 << 20, 4 << 20).unwrap();
    let mut writer = WriterProcess::start(directory);
    let before = fences(directory, &member, id);
    for _ in 0..2 {
        let refused = restore_to(directory, "restored", id, false, || Ok(())).unwrap_err();
        assert!(matches!(refused, RestoreError::LiveClient { .. }), "{refused}");
        assert!(refused.to_string().contains("--client-is-off"), "{refused}");
        writer.go_on(20);
    }
    assert_eq!(fences(directory, &member, id), before);
    assert!(!directory.join("restored").exists());
    let done = writer.kill();
    check(&open(directory, "volume", false).unwrap(), done);
}

/// A forced restore leaves one of both volumes, and the messages tell which.
#[test]
fn a_restore_forced_on_a_live_client_leaves_one_volume_that_serves() {
    let place = in_memory();
    let directory = place.path();
    let _member = serve(directory, "member.sock", None);
    let _keeper = data_lender(directory);
    let id = Volume::create(&directory.join("volume"), 4 << 20, 4 << 20).unwrap();
    let writer = WriterProcess::start(directory);
    let before = writer.done;
    let restored = restore_to(directory, "restored", id, true, || Ok(()));
    let done = writer.kill();
    if restored.is_err() {
        let original = open(directory, "volume", false).or_else(|_| open(directory, "volume", true));
        return check(&original.unwrap(), done);
    }
    check(&open(directory, "restored", false).unwrap(), before);
    let refused = open(directory, "volume", false).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, VolumeOpenError::Claimed { .. }), "{text}");
    assert!(
        text.contains("claimed it in epoch") && text.contains(" s ago"),
        "{text}"
    );
    let word = open(directory, "volume", true).unwrap_err();
    assert!(matches!(word, VolumeOpenError::NotNewest { .. }), "{word}");
}

/// The refused restore had claimed the copy and fenced the other lenders, so the healthy original was taken
/// for an old copy.
#[test]
fn a_refused_restore_leaves_the_original_unchanged() {
    let place = in_memory();
    let directory = place.path();
    let member = serve(directory, "member.sock", None);
    let _keeper = data_lender(directory);
    let (id, done) = killed_after(directory, 30);
    let before = fences(directory, &member, id);
    drop(member);
    let refused = restore_to(directory, "restored", id, true, || Ok(())).unwrap_err();
    assert!(
        matches!(&refused, RestoreError::Journal(error) if is_missing(error)),
        "{refused}"
    );
    let member = serve(directory, "member.sock", None);
    assert_eq!(fences(directory, &member, id), before);
    check(&open(directory, "volume", false).unwrap(), done);
}

/// The original's refused attempts had fenced a lender; the restore then took it for one that continued
/// without its data lender.
#[test]
fn a_refused_opening_does_not_prevent_a_restore() {
    let place = in_memory();
    let directory = place.path();
    let member = serve(directory, "member.sock", None);
    let _keeper = data_lender(directory);
    let (id, done) = killed_after(directory, 30);
    let before = fences(directory, &member, id);
    drop(member);
    for _ in 0..3 {
        let refused = open(directory, "volume", false).unwrap_err();
        assert!(
            matches!(&refused, VolumeOpenError::Journal(error) if is_missing(error)),
            "{refused}"
        );
    }
    let member = serve(directory, "member.sock", None);
    assert_eq!(fences(directory, &member, id), before);
    let in_service = restore_to(directory, "restored", id, true, || Ok(()));
    if let Err(RestoreError::Journal(error)) = &in_service {
        // On a busy machine the data lender may be out of service: then the members dropped records that only
        // the client's disk has.
        assert!(is_missing(error), "{error}");
        return check(&open(directory, "volume", false).unwrap(), done);
    }
    in_service.unwrap();
    check(&open(directory, "restored", false).unwrap(), done);
}

#[test]
fn a_takeover_is_refused_while_its_client_may_live_and_changes_nothing_when_members_are_missing() {
    let place = in_memory();
    let directory = place.path();
    let member = serve(directory, "member.sock", None);
    let keeper = data_lender(directory);
    let (id, done) = killed_after(directory, 30);
    drop(keeper);
    let refused = take_over(directory, id, false).unwrap_err();
    assert!(matches!(refused, VolumeOpenError::LiveClient { .. }), "{refused}");
    drop(member);
    let refused = take_over(directory, id, true).unwrap_err();
    assert!(
        matches!(&refused, VolumeOpenError::Journal(error) if is_missing(error)),
        "{refused}"
    );
    let _member = serve(directory, "member.sock", None);
    let _keeper = data_lender(directory);
    check(&open(directory, "volume", false).unwrap(), done);
}

/// No command covered this case: everything was complete on the client's disk, but opening and
/// restoring were both refused.
#[test]
fn a_directory_declared_newest_opens_after_a_restore_that_never_served() {
    let place = in_memory();
    let directory = place.path();
    let _member = serve(directory, "member.sock", None);
    let _keeper = data_lender(directory);
    let (id, done) = killed_after(directory, 30);
    let cut_off = restore_to(directory, "restored", id, true, || {
        Err(std::io::Error::other("cut off"))
    });
    if matches!(&cut_off, Err(RestoreError::Journal(error)) if is_missing(error)) {
        // As above: the restore was rightly refused, and nothing was claimed.
        return check(&open(directory, "volume", false).unwrap(), done);
    }
    assert!(matches!(cut_off, Err(RestoreError::Create(_))), "{cut_off:?}");
    let refused = open(directory, "volume", false).unwrap_err();
    let text = refused.to_string();
    assert!(matches!(refused, VolumeOpenError::Claimed { .. }), "{text}");
    assert!(
        text.contains("never served") && text.contains("--newest"),
        "{text}"
    );
    let volume = open(directory, "volume", true).unwrap();
    check(&volume, done);
    // The data lender accepts it again without a resync of everything.
    write(&volume, 3, 2);
    let began = Instant::now();
    while !volume.data_lender().is_some_and(|kept| kept.in_service) {
        assert!(
            began.elapsed() < PATIENCE,
            "never in service: {:?}",
            volume.data_lender()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    volume.close().unwrap();
    check(&open(directory, "volume", false).unwrap(), done);
}

/// One of the commands, as a process that another test kills.
#[test]
#[ignore = "a process that another test kills"]
fn commander() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let id = u128::from_str_radix(&std::env::var(VOLUME).unwrap(), 16).unwrap();
    let _ = command(&directory, &std::env::var(COMMAND).unwrap(), VolumeId(id));
}

/// Runs a command. Its refusal is for the operator to read.
fn command(directory: &Path, name: &str, id: VolumeId) -> Result<(), String> {
    let told = |error: &dyn std::fmt::Display| error.to_string();
    match name {
        "open" | "newest" => {
            let volume = open(directory, "volume", name == "newest").map_err(|error| told(&error))?;
            volume.close().map_err(|error| told(&error))
        }
        "restore" => restore_to(directory, "restored", id, true, || Ok(()))
            .map(drop)
            .map_err(|error| told(&error)),
        "takeover" => {
            let volume = take_over(directory, id, true).map_err(|error| told(&error))?;
            volume.close().map_err(|error| told(&error))
        }
        _ => {
            let config = in_haste(directory).journal_config().unwrap();
            let request = RestoreRequest {
                from: &source(directory),
                volume: id,
                config: &config,
                recovery: None,
                client_is_off: true,
            };
            let found = check_restore(&directory.join("restored"), &request);
            found.map_err(|error| told(&error))?;
            let found = Volume::check(&directory.join("volume"), &in_haste(directory));
            found.map(drop).map_err(|error| told(&error))
        }
    }
}

/// Name of a command that opens the volume, and its function.
type OpenMethod<'a> = (&'static str, &'a dyn Fn() -> Result<Volume, String>);

/// A volume whose client was killed, with everything that is left, to be put back as often as needed.
struct KilledVolume {
    place: tempfile::TempDir,
    kept: tempfile::TempDir,
    id: VolumeId,
    done: u64,
}

impl KilledVolume {
    fn new() -> KilledVolume {
        let (place, kept) = (in_memory(), in_memory());
        let serving = [
            serve(place.path(), "member.sock", None),
            data_lender(place.path()),
        ];
        let (id, done) = killed_after(place.path(), 30);
        drop(serving);
        let scene = KilledVolume {
            place,
            kept,
            id,
            done,
        };
        copy(scene.place.path(), scene.kept.path());
        scene
    }

    fn directory(&self) -> &Path {
        self.place.path()
    }

    /// Runs `first`, kills it after a while, then runs `second`: afterwards some command must open the volume
    /// with everything.
    fn play(&self, first: &str, second: &str, after: Duration) {
        copy(self.kept.path(), self.directory());
        let member = serve(self.directory(), "member.sock", None);
        // A copy that its data lender has open cannot be taken over.
        let takes_over = [first, second].contains(&"takeover");
        let keeper = (!takes_over).then(|| data_lender(self.directory()));
        let mut process = Command::new(std::env::current_exe().unwrap());
        process
            .args(["--exact", "proof::commander", "--ignored"])
            .env(PLACE, self.directory())
            .env(VOLUME, self.id.to_string())
            .env(COMMAND, first)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null());
        let process = KilledProcess(process.spawn().unwrap());
        std::thread::sleep(after);
        drop(process);
        let said = command(self.directory(), second, self.id);
        drop(keeper);
        let told = self.find();
        assert!(
            told.is_empty(),
            "{first}, killed after {after:?}, then {second} ({said:?}): no command opens the volume: {told:#?}"
        );
        drop(member);
    }

    /// Opens whichever volume can be opened, and checks that it has everything. Otherwise returns why none
    /// can.
    fn find(&self) -> Vec<String> {
        let (directory, mut told) = (self.directory(), Vec::new());
        let ways: [OpenMethod<'_>; 5] = [
            ("the copy", &|| take_over_or_open(directory, self.id)),
            ("the restored volume", &|| {
                open(directory, "restored", false).map_err(|error| error.to_string())
            }),
            ("the original", &|| {
                open(directory, "volume", false).map_err(|error| error.to_string())
            }),
            ("the original, declared the newest", &|| {
                open(directory, "volume", true).map_err(|error| error.to_string())
            }),
            ("another restore", &|| {
                restore_to(directory, "again", self.id, true, || Ok(()))
                    .map_err(|error| error.to_string())?;
                open(directory, "again", false).map_err(|error| error.to_string())
            }),
        ];
        // A copy that was taken over is opened in place, while no data lender has it.
        for (index, (name, way)) in ways.into_iter().enumerate() {
            let _keeper = (index > 0).then(|| data_lender(directory));
            match way() {
                Ok(volume) => {
                    check(&volume, self.done);
                    return Vec::new();
                }
                Err(why) => told.push(format!("{name}: {why}")),
            }
        }
        told
    }
}

/// Opens the copy if it has been taken over, or takes it over.
fn take_over_or_open(directory: &Path, id: VolumeId) -> Result<Volume, String> {
    let settings = VolumeSettings {
        data_lender: None,
        ..in_haste(directory)
    };
    let copy = directory.join("kept").join(id.to_string());
    Volume::open_with(&copy, &settings)
        .map(|(volume, _)| volume)
        .map_err(|error| error.to_string())
}

/// Copies `from` to `to`: files with their holes, but no sockets.
fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(to).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => std::fs::remove_dir_all(path).unwrap(),
            false => std::fs::remove_file(path).unwrap(),
        }
    }
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "sock") {
            continue;
        }
        let mut command = Command::new("cp");
        command.args(["-a", "--sparse=always"]).arg(&path).arg(to);
        assert!(command.status().unwrap().success(), "{}", path.display());
    }
}

/// Milliseconds that look random but are the same in every run.
fn delay(round: u64, most: u64) -> Duration {
    let mixed = (round + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33;
    Duration::from_millis(mixed % most)
}

#[test]
fn after_any_two_commands_with_the_first_killed_some_command_opens_the_volume() {
    let scene = KilledVolume::new();
    for (round, first) in COMMANDS.iter().enumerate() {
        for (more, second) in COMMANDS.iter().enumerate() {
            let round = (round * COMMANDS.len() + more) as u64;
            scene.play(first, second, delay(round, 80));
        }
    }
}

#[test]
#[ignore = "500 rounds, minutes: cargo test -p netram-volume --test all proof:: -- --ignored many_pairs"]
fn many_pairs_of_commands_each_killed_at_many_moments() {
    let scene = KilledVolume::new();
    for round in 0..500 {
        let pick = |shift: u64| COMMANDS[(round / shift) as usize % COMMANDS.len()];
        scene.play(pick(1), pick(5), delay(round, 150));
    }
}
