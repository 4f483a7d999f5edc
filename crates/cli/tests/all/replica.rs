//! A volume and its data lender as processes: killed, lost, and brought back by the commands that people
//! have.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_volume::{BlockDevice, Volume, VolumeControl, VolumeSettings};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{CommandOutput, LenderProcess, finish, forks, netram, start};

const PLACE: &str = "NETRAM_TEST_REPLICA";
const BLOCK: usize = 4096;
const BLOCKS: u64 = 512;
/// How long anything may take that is not itself under test.
const PATIENCE: Duration = Duration::from_secs(120);

/// Writes ever higher versions, one block after the other, and reports each that is complete.
#[test]
#[ignore = "the process that the other tests kill"]
fn writer() {
    let Some(path) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    // Should it ever wait in vain, it ends, and the other test with it.
    std::thread::spawn(|| {
        std::thread::sleep(2 * PATIENCE);
        std::process::exit(3);
    });
    let settings = VolumeSettings::load(&path.join("netram.toml")).unwrap();
    let (volume, _) = Volume::open_with(&path, &settings).unwrap();
    let volume = Arc::new(volume);
    let _control = VolumeControl::start(Arc::clone(&volume), || None).unwrap();
    let mut out = std::io::stdout().lock();
    let pause = path.with_file_name("pause");
    for version in newest(&volume).into_iter().max().unwrap_or(0) + 1.. {
        let bytes = version.to_le_bytes().repeat(BLOCK / 8);
        let pending = volume.write(version % BLOCKS * BLOCK as u64, &bytes).unwrap();
        volume.wait(pending).unwrap();
        writeln!(out, "done {version}").unwrap();
        out.flush().unwrap();
        while pause.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// The version of every block; none may be torn.
fn newest(volume: &Volume) -> Vec<u64> {
    let mut bytes = vec![0; BLOCKS as usize * BLOCK];
    volume.read(0, &mut bytes).unwrap();
    let version = |block: &[u8]| {
        let first: [u8; 8] = block[..8].try_into().unwrap();
        assert!(block.chunks_exact(8).all(|word| word == first), "a torn block");
        u64::from_le_bytes(first)
    };
    bytes.chunks_exact(BLOCK).map(version).collect()
}

/// A volume with one lender for its newest writes, and one for its copy.
pub(crate) struct ReplicaFixture {
    directory: tempfile::TempDir,
    member: LenderProcess,
    keeper: Option<LenderProcess>,
}

/// A process that writes.
pub(crate) struct ReplicaWriter {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    done: u64,
}

impl Drop for ReplicaWriter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl ReplicaWriter {
    pub(crate) fn start(place: &ReplicaFixture) -> ReplicaWriter {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "replica::writer", "--ignored", "--nocapture"])
            .env(PLACE, place.path("db"))
            .stdout(Stdio::piped());
        let mut child = start(&mut command);
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        ReplicaWriter {
            child,
            lines,
            done: 0,
        }
    }

    /// Waits until it has completed this many more writes.
    pub(crate) fn go_on(&mut self, count: u64) {
        let mut left = count;
        while left > 0 {
            let line = self.lines.next().expect("the writer goes on").unwrap();
            left -= u64::from(self.note(&line));
        }
    }

    fn note(&mut self, line: &str) -> bool {
        let version = line.find("done ").map(|at| line[at + 5..].parse().unwrap());
        self.done = version.unwrap_or(self.done);
        version.is_some()
    }

    /// Kills it. Returns the last version that it reported, also if the report came after the kill was
    /// decided.
    fn kill(mut self) -> u64 {
        self.child.kill().unwrap();
        while let Some(Ok(line)) = self.lines.next() {
            if line.starts_with("done ") {
                self.note(&line);
            }
        }
        self.child.wait().unwrap();
        self.done
    }
}

impl ReplicaFixture {
    pub(crate) fn new(name: &str) -> ReplicaFixture {
        let directory = tempfile::Builder::new()
            .prefix("netram-replica-")
            .tempdir()
            .unwrap();
        let member = LenderProcess::start(&format!("{name}-member"), &listen(directory.path(), "member"));
        let mut place = ReplicaFixture {
            directory,
            member,
            keeper: None,
        };
        place.start_keeper(name);
        let keeper = place.address();
        place.json(&[
            "create",
            "db",
            "--size",
            "16MiB",
            "--journal-size",
            "2MiB",
            "--lender",
            &place.member.address,
            "--data-lender",
            &keeper,
            "--insecure",
            "--one-domain",
        ]);
        let settings = place.path("db").join("netram.toml");
        let mut text = std::fs::read_to_string(&settings).unwrap();
        text.push_str("stage = \"256KiB\"\n");
        std::fs::write(settings, text).unwrap();
        place
    }

    fn start_keeper(&mut self, name: &str) {
        let kept = self.path("kept");
        let mut arguments = listen(self.directory.path(), "keeper").to_vec();
        let kept = kept.to_str().unwrap().to_owned();
        arguments.extend(["--data", &kept].map(|one| Box::leak(one.to_owned().into_boxed_str()) as &str));
        self.keeper = Some(LenderProcess::start(&format!("{name}-keeper"), &arguments));
    }

    pub(crate) fn address(&self) -> String {
        self.keeper.as_ref().unwrap().address.clone()
    }

    pub(crate) fn kill_keeper(&mut self) {
        if let Some(mut keeper) = self.keeper.take() {
            keeper.stop(Signal::KILL);
        }
    }

    /// Stops the lender, or lets it go on.
    pub(crate) fn pause_member(&self, signal: Signal) {
        let pid = i32::try_from(self.member.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.unwrap(), signal).unwrap();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn disk(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = netram();
        command
            .arg("volume")
            .args(arguments)
            .current_dir(self.directory.path());
        finish(command.env("NETRAM_VOLUME_RUN", self.path("run")))
    }

    /// Any command.
    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        finish(netram().args(arguments).current_dir(self.directory.path()))
    }

    /// A subcommand that must go well, with --json.
    fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.disk(&[arguments, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{arguments:?}: {}{}", ran.out, ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
    }

    /// Waits until members keep what the data lender lacks.
    pub(crate) fn await_service(&self, writer: &mut ReplicaWriter) {
        let began = Instant::now();
        while self.json(&["status", "db"])["live"]["data_lender"]["in_service"] != true {
            assert!(began.elapsed() < PATIENCE, "the data lender is never in service");
            writer.go_on(10);
        }
    }

    /// Does something while the writer pauses, its data lender is in service and members hold nothing that it
    /// lacks. At any other moment a busy machine may just have put it out of service, and what follows would
    /// rightly be refused.
    pub(crate) fn while_caught_up<T>(&self, then: impl FnOnce() -> T) -> T {
        std::fs::write(self.path("pause"), "").unwrap();
        let began = Instant::now();
        loop {
            let seen = self.json(&["status", "db"]);
            let (status, journal) = (&seen["live"]["data_lender"], &seen["live"]["journal"]);
            if status["in_service"] == true && status["flushed"] == journal["tail"] {
                break;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "the data lender never catches up: {status}"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        let done = then();
        std::fs::remove_file(self.path("pause")).unwrap();
        done
    }

    /// Kills the writer when its data lender has caught up.
    pub(crate) fn kill(&self, writer: ReplicaWriter) -> u64 {
        self.while_caught_up(|| writer.kill())
    }

    pub(crate) fn id(&self) -> String {
        self.json(&["status", "db"])["id"].as_str().unwrap().to_owned()
    }

    /// Checks that every write reported as complete is there, or a later one.
    pub(crate) fn check(&self, path: &Path, done: u64) {
        let settings = VolumeSettings::load(&path.join("netram.toml")).unwrap();
        let (volume, _) = Volume::open_with(path, &settings).unwrap();
        let found = newest(&volume);
        for version in done.saturating_sub(BLOCKS - 1).max(1)..=done {
            let there = found[(version % BLOCKS) as usize];
            assert!(
                there >= version,
                "{version} was complete; {there} is there, of {done}"
            );
        }
        // A child that is just being started has the lock, too.
        let _alone = forks();
        volume.close().unwrap();
    }
}

fn listen(directory: &Path, name: &str) -> [&'static str; 3] {
    let address = format!("unix:{}", directory.join(format!("{name}.sock")).display());
    ["--insecure", "--listen", Box::leak(address.into_boxed_str())]
}

#[test]
fn a_client_and_its_disk_are_lost_and_everything_complete_is_restored() {
    let mut place = ReplicaFixture::new("lost");
    let id = place.id();
    for round in 0..2 {
        let mut writer = ReplicaWriter::start(&place);
        writer.go_on(100);
        place.kill_keeper();
        // Several times the journal, so that it does not reach back.
        writer.go_on(if round == 0 { 1500 } else { 100 });
        place.start_keeper("lost");
        place.await_service(&mut writer);
        writer.go_on(50 + 77 * round);
        let done = place.kill(writer);
        std::fs::remove_dir_all(place.path("db")).unwrap();
        let listed = place.disk(&["replicas", &place.address(), "--insecure"]);
        assert!(listed.out.contains(&id), "{}{}", listed.out, listed.err);
        let (from, member) = (place.address(), place.member.address.clone());
        let arguments = [
            "restore",
            "db",
            "--from",
            &from,
            "--volume",
            &id,
            "--insecure",
            "--lender",
            &member,
            "--one-domain",
            "--client-is-off",
        ];
        let restored = place.json(&arguments);
        assert_eq!(restored["loss_accepted"], Value::Null);
        let again = place.disk(&arguments);
        assert!(
            again.code != 0 && again.err.contains("already exists"),
            "{}",
            again.err
        );
        place.check(&place.path("db"), done);
    }
}

#[test]
fn a_copy_is_taken_over_on_the_data_lenders_machine() {
    let place = ReplicaFixture::new("over");
    let id = place.id();
    let mut writer = ReplicaWriter::start(&place);
    place.await_service(&mut writer);
    writer.go_on(200);
    let copy = place.path("kept").join(&id);
    let copy = copy.to_str().unwrap();
    let early = place.disk(&["takeover", copy, "--insecure"]);
    assert!(early.code != 0, "its client lives: {}", early.out);
    let refused = place.disk(&["check", copy]);
    assert!(refused.err.contains("data lender's copy"), "{}", refused.err);
    let done = place.kill(writer);
    let began = Instant::now();
    loop {
        let taken = place.disk(&["takeover", copy, "--insecure", "--client-is-off"]);
        if taken.code == 0 {
            break;
        }
        // The data lender lets go of it a few seconds after its client went.
        assert!(
            taken.err.contains("in use") && began.elapsed() < PATIENCE,
            "{}",
            taken.err
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    std::fs::write(Path::new(copy).join("netram.toml"), "").unwrap();
    place.check(Path::new(copy), done);
    // The old client's own disk is an old copy now. Its lenders refuse it before its data lender could.
    let old = place.disk(&["check", "db"]);
    assert!(old.code != 0 && old.err.contains("it is newer"), "{}", old.err);
}

#[test]
fn a_flipped_bit_is_repaired_by_a_check_and_a_lost_copy_is_made_again() {
    let place = ReplicaFixture::new("flip");
    let mut writer = ReplicaWriter::start(&place);
    place.await_service(&mut writer);
    writer.go_on(600);
    // What the data lender lacks cannot be mended from it.
    let done = place.kill(writer);
    // Closed cleanly, so that the image has everything.
    place.check(&place.path("db"), done);
    let image = std::fs::OpenOptions::new()
        .write(true)
        .open(place.path("db").join("image"))
        .unwrap();
    image.write_all_at(&[0xa5; 100], 5 * BLOCK as u64 + 9).unwrap();
    let found = place.json(&["check", "db"]);
    assert_eq!(
        (&found["repaired_blocks"], &found["bad_blocks"]),
        (&1.into(), &0.into())
    );
    let found = place.json(&["check", "db"]);
    assert_eq!(found["repaired_blocks"], 0);
    let resynced = place.json(&["resync", "db", "--whole"]);
    assert_eq!(resynced["sent_blocks"], 0, "equal blocks are not sent");
    // The other side: found by comparing.
    let copy = place.path("kept").join(place.id());
    let began = Instant::now();
    let lock = || place.json(&["status", copy.to_str().unwrap()])["in_use"] == true;
    while lock() {
        assert!(
            began.elapsed() < PATIENCE,
            "the data lender never lets go of the copy"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    let image = std::fs::OpenOptions::new()
        .write(true)
        .open(copy.join("image"))
        .unwrap();
    // Not among the newest, which its log still has, and writes anew.
    let block = (done - 400) % BLOCKS;
    image
        .write_all_at(&[0x5a; 100], (block + 1) * BLOCK as u64 + 9)
        .unwrap();
    let resynced = place.json(&["resync", "db", "--whole"]);
    assert_eq!(resynced["sent_blocks"], 1);
    place.check(&place.path("db"), done);
}

/// The journal passes by many times while the copy is made anew.
#[test]
fn a_copy_is_made_again_and_comes_into_service_while_its_client_writes() {
    let mut place = ReplicaFixture::new("anew");
    let mut writer = ReplicaWriter::start(&place);
    for round in 0..3 {
        place.kill_keeper();
        if round == 1 {
            std::fs::remove_dir_all(place.path("kept")).unwrap();
        }
        // Several times the journal.
        writer.go_on(2000);
        place.start_keeper("anew");
        place.await_service(&mut writer);
    }
    let done = place.kill(writer);
    let resynced = place.json(&["resync", "db", "--whole"]);
    assert_eq!(resynced["sent_blocks"], 0, "the copy was the volume");
    assert_eq!(place.json(&["check", "db"])["bad_blocks"], 0);
    place.check(&place.path("db"), done);
}

/// Copies a volume's directory, which must not be open.
fn copy_directory(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => copy_directory(&entry.path(), &target),
            kind if kind.is_file() => drop(std::fs::copy(entry.path(), target).unwrap()),
            _ => (),
        }
    }
}

/// An old copy of the client's directory is put back, and has been opened so often that its epoch is no
/// lower.
#[test]
fn a_copy_that_has_more_than_its_client_is_overwritten_at_the_operators_word_only() {
    let place = ReplicaFixture::new("ahead");
    // Members would refuse the old directory before the data lender could.
    let settings = place.path("db").join("netram.toml");
    let text = std::fs::read_to_string(&settings).unwrap();
    let mut kept: Vec<&str> = text.lines().filter(|line| !line.contains("member")).collect();
    std::fs::write(&settings, kept.join("\n")).unwrap();
    let mut writer = ReplicaWriter::start(&place);
    place.await_service(&mut writer);
    let early = place.kill(writer);
    place.check(&place.path("db"), early);
    copy_directory(&place.path("db"), &place.path("old"));
    let mut writer = ReplicaWriter::start(&place);
    place.await_service(&mut writer);
    writer.go_on(300);
    let late = place.kill(writer);
    std::fs::remove_dir_all(place.path("db")).unwrap();
    std::fs::rename(place.path("old"), place.path("db")).unwrap();
    kept.retain(|line| !line.contains("data-lender"));
    std::fs::write(&settings, kept.join("\n")).unwrap();
    for _ in 0..4 {
        place.check(&place.path("db"), early);
    }
    std::fs::write(&settings, text).unwrap();
    // The copy is not changed, and the command is refused with the reason.
    for arguments in [&["resync", "db"][..], &["resync", "db", "--json"]] {
        let refused = place.disk(arguments);
        assert_ne!(refused.code, 0, "{}", refused.out);
        for word in ["resync --whole", "If"] {
            assert!(refused.err.contains(word), "{}", refused.err);
        }
    }
    place.check(&place.path("db"), early);
    let listed = place.disk(&["replicas", &place.address(), "--insecure"]);
    assert!(listed.out.contains("following"), "{}{}", listed.out, listed.err);
    let resynced = place.json(&["resync", "db", "--whole"]);
    assert!(
        resynced["sent_blocks"].as_u64().unwrap() > 0,
        "{late} was newer than {early}"
    );
    place.check(&place.path("db"), early);
    let resynced = place.json(&["resync", "db", "--whole"]);
    assert_eq!(resynced["sent_blocks"], 0);
}
