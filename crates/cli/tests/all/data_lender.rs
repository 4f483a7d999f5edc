//! A data lender's own settings: a separate key for its copies, a limit of their size, and the interval at
//! which they are checked.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netram_volume::{BlockDevice, Volume, VolumeSettings};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{CommandOutput, LenderProcess, finish, netram};

const BLOCK: usize = 4096;
/// How long anything may take that is not itself under test.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory with keys, a data lender's copies, and volumes.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        let directory = tempfile::Builder::new().prefix("netram-data-").tempdir().unwrap();
        let place = Place { directory };
        for key in ["cluster.key", "data.key"] {
            let made = place.run(&["key", "create", key]);
            assert_eq!(made.code, 0, "{}", made.err);
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = netram();
        command.args(arguments).current_dir(self.directory.path());
        finish(command.env("NETRAM_VOLUME_RUN", self.path("run")))
    }

    /// A subcommand of `netram volume` that must go well, with --json.
    fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.run(&[&["volume"], arguments, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{arguments:?}: {}{}", ran.out, ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
    }

    /// A data lender with a key of its own for data sessions.
    fn lender(&self, name: &str, more: &[&str]) -> LenderProcess {
        let (kept, cluster, data) = (self.path("kept"), self.path("cluster.key"), self.path("data.key"));
        let own = [
            "--listen",
            "tcp://127.0.0.1:0",
            "--key-file",
            cluster.to_str().unwrap(),
            "--data",
            kept.to_str().unwrap(),
            "--data-listen",
            "tcp://127.0.0.1:0",
            "--data-key-file",
            data.to_str().unwrap(),
        ];
        LenderProcess::start(name, &[&own, more].concat())
    }

    fn create(&self, name: &str, data_lender: &str, more: &[&str]) -> Value {
        let arguments = [
            "create",
            name,
            "--size",
            "4MiB",
            "--journal-size",
            "1MiB",
            "--data-lender",
            data_lender,
            "--key-file",
            "cluster.key",
        ];
        self.json(&[&arguments, more].concat())
    }
}

fn open(path: &Path) -> Volume {
    let settings = VolumeSettings::load(&path.join("netram.toml")).unwrap();
    Volume::open_with(path, &settings).unwrap().0
}

fn write(volume: &Volume, block: u64, byte: u8) {
    let pending = volume.write(block * BLOCK as u64, &[byte; BLOCK]).unwrap();
    volume.wait(pending).unwrap();
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn await_service(volume: &Volume) {
    until("the data lender has everything", || {
        let tail = volume.status().journal.log.tail.0;
        (volume.data_lender()).is_some_and(|kept| kept.in_service && kept.flushed == tail)
    });
}

/// With one key for everything, every machine that lends memory could read and overwrite all copies.
#[test]
fn the_cluster_key_gives_no_access_to_copies_with_a_separate_key() {
    let place = Place::new();
    let lender = place.lender("doors", &[]);
    let data = lender.data_address.clone().unwrap();
    let keys = [
        "--data-lender-key-file",
        "data.key",
        "--recovery-key-file",
        "db.recovery",
    ];
    place.create("db", &data, &keys);
    let volume = open(&place.path("db"));
    write(&volume, 3, 7);
    await_service(&volume);
    volume.close().unwrap();

    let listed = place.json(&["replicas", &data, "--key-file", "data.key"]);
    let id = listed[0]["volume"].as_str().unwrap();
    let wrong = place.run(&["volume", "replicas", &data, "--key-file", "cluster.key"]);
    assert!(wrong.code != 0 && wrong.err.contains("key"), "{}", wrong.err);
    let elsewhere = place.run(&["volume", "replicas", &lender.address, "--key-file", "cluster.key"]);
    assert!(
        elsewhere.code != 0 && elsewhere.err.contains("--data-listen"),
        "{}",
        elsewhere.err
    );
    let memory = place.run(&["lender", "status", &data, "--key-file", "data.key"]);
    assert!(
        memory.code == 1 && memory.out.contains("data sessions only"),
        "{}{}",
        memory.out,
        memory.err
    );

    // A client without the key goes on alone, and its log says what to do.
    place.create("other", &lender.address, &[]);
    let other = open(&place.path("other"));
    write(&other, 0, 1);
    until("the client says what to do", || {
        let trouble = other.data_lender().and_then(|kept| kept.trouble);
        trouble.is_some_and(|trouble| trouble.contains("data-lender-key-file"))
    });
    drop(other);

    std::fs::remove_dir_all(place.path("db")).unwrap();
    place.json(&[
        "restore",
        "db",
        "--from",
        &data,
        "--volume",
        id,
        "--key-file",
        "cluster.key",
        "--data-lender-key-file",
        "data.key",
        "--recovery-key-file",
        "db.recovery",
    ]);
    let volume = open(&place.path("db"));
    let mut bytes = [0; BLOCK];
    volume.read(3 * BLOCK as u64, &mut bytes).unwrap();
    assert_eq!(bytes, [7; BLOCK]);
}

/// A file that only its owner can read.
fn write_secret(path: &Path, text: &str) {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    std::io::Write::write_all(&mut file.unwrap(), text.as_bytes()).unwrap();
}

#[test]
fn a_recovery_key_is_shown_once_and_a_restore_asks_for_it_by_name() {
    let place = Place::new();
    let lender = place.lender("recovery", &[]);
    let data = lender.data_address.clone().unwrap();
    let key = ["--data-lender-key-file", "data.key"];
    let made = place.create("db", &data, &key);
    let shown = made["recovery_key"].as_str().unwrap();
    assert!(shown.starts_with("netram-recovery-1:"), "{made}");
    write_secret(&place.path("first"), shown);
    let volume = open(&place.path("db"));
    write(&volume, 3, 7);
    await_service(&volume);
    volume.close().unwrap();
    let status = place.run(&["volume", "status", "db"]);
    assert!(!status.out.contains(shown), "{}", status.out);

    let listed = place.json(&["replicas", &data, "--key-file", "data.key"]);
    let id = listed[0]["volume"].as_str().unwrap().to_owned();
    let restore = |more: &[&str]| {
        let own = ["volume", "restore", "new", "--from", &data, "--volume", &id];
        let keys = ["--key-file", "cluster.key", "--data-lender-key-file", "data.key"];
        place.run(&[&own[..], &keys, more].concat())
    };
    let locked = restore(&["--check"]);
    assert!(
        locked.code == 3 && locked.out.contains("--recovery-key-file"),
        "{}{}",
        locked.out,
        locked.err
    );
    // An existing file is never overwritten, and nothing is changed then.
    let refused = place.run(&["volume", "rekey", "db", "--recovery-key-file", "first"]);
    assert!(
        refused.code == 1 && refused.err.contains("never overwritten"),
        "{}",
        refused.err
    );
    assert_eq!(restore(&["--check", "--recovery-key-file", "first"]).code, 0);
    let rekeyed = place.run(&["volume", "rekey", "db", "--recovery-key-file", "second"]);
    assert!(
        rekeyed.code == 0 && rekeyed.out.contains("when the volume is opened"),
        "{}{}",
        rekeyed.out,
        rekeyed.err
    );
    let volume = open(&place.path("db"));
    await_service(&volume);
    volume.close().unwrap();
    let former = restore(&["--recovery-key-file", "first"]);
    assert!(
        former.code == 1 && former.err.contains("not the volume's recovery key"),
        "{}",
        former.err
    );
    std::fs::remove_dir_all(place.path("db")).unwrap();
    let restored = restore(&["--recovery-key-file", "second", "--json"]);
    assert_eq!(restored.code, 0, "{}{}", restored.out, restored.err);
}

#[test]
fn a_data_listener_takes_its_key_and_another_one_than_the_cluster_has() {
    let place = Place::new();
    let lend = |more: &[&str]| {
        let own = [
            "lender",
            "serve",
            "--listen",
            "tcp://127.0.0.1:0",
            "--key-file",
            "cluster.key",
        ];
        place.run(&[&own, more].concat())
    };
    for (arguments, named) in [
        (
            &["--data", "kept", "--data-listen", "tcp://127.0.0.1:0"][..],
            "--data-key-file",
        ),
        (
            &["--data", "kept", "--data-key-file", "data.key"],
            "--data-listen",
        ),
        (
            &[
                "--data-listen",
                "tcp://127.0.0.1:0",
                "--data-key-file",
                "data.key",
            ],
            "--data",
        ),
        (
            &[
                "--data",
                "kept",
                "--data-listen",
                "tcp://127.0.0.1:0",
                "--data-key-file",
                "cluster.key",
            ],
            "cluster key",
        ),
    ] {
        let refused = lend(arguments);
        assert!(
            refused.code == 2 && refused.err.contains(named),
            "{arguments:?}: {}",
            refused.err
        );
    }
}

fn trouble(volume: &Volume) -> String {
    let trouble = volume.data_lender().and_then(|kept| kept.trouble);
    trouble.unwrap_or_default()
}

#[test]
fn a_copy_beyond_the_quota_is_refused_with_the_numbers_and_its_client_goes_on() {
    let place = Place::new();
    // A volume of 4 MiB has 4 KiB of checksums, and here a log of 1 MiB.
    let lender = place.lender("quota", &["--data-quota", "6MiB"]);
    let data = lender.data_address.clone().unwrap();
    let key = ["--data-lender-key-file", "data.key"];
    place.create("first", &data, &key);
    let first = open(&place.path("first"));
    write(&first, 0, 1);
    await_service(&first);
    place.create("second", &data, &key);
    let second = open(&place.path("second"));
    let names = |volume: &Volume| {
        let said = trouble(volume);
        said.contains("--data-quota") && said.contains("6291456 bytes")
    };
    until("the second is refused", || names(&second));
    write(&second, 0, 2);
    second.close().unwrap();

    let listed = place.json(&["replicas", &data, "--key-file", "data.key"]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    // Image and checksums begin with a block of their own, the log with its headers.
    let promised = listed[0]["promised_bytes"].as_u64().unwrap();
    assert!(
        (5_246_976..5_300_000).contains(&promised),
        "{promised} are promised"
    );
    let status = place.run(&["lender", "status", &lender.address, "--key-file", "cluster.key"]);
    assert!(status.out.contains("quota 6.0 MiB"), "{}", status.out);

    // Growing takes room, too.
    first.grow(5 << 20).unwrap();
    until("growing is refused", || names(&first));
    write(&first, 1100, 3);
    drop(lender);
    let lender = LenderProcess::start(
        "quota",
        &[
            "--listen",
            "tcp://127.0.0.1:0",
            "--key-file",
            place.path("cluster.key").to_str().unwrap(),
            "--data",
            place.path("kept").to_str().unwrap(),
            "--data-listen",
            &data,
            "--data-key-file",
            place.path("data.key").to_str().unwrap(),
            "--data-quota",
            "7MiB",
        ],
    );
    await_service(&first);
    first.close().unwrap();
    drop(lender);
}

/// Copies are counted by the name of the key that their client has, and end with it.
#[test]
fn copies_are_for_the_names_that_may_have_them_and_count_by_name() {
    let place = Place::new();
    let key = |words: &[&str]| {
        let done = place.run(&[&["key"], words, &["--clients", "clients"]].concat());
        assert_eq!(done.code, 0, "{}", done.err);
    };
    key(&["add", "small", "data=6MiB"]);
    key(&["add", "large", "data=all"]);
    key(&["add", "none"]);
    let (kept, clients) = (place.path("kept"), place.path("clients"));
    let arguments = [
        "--listen",
        "tcp://127.0.0.1:0",
        "--clients",
        clients.to_str().unwrap(),
        "--data",
        kept.to_str().unwrap(),
    ];
    let lender = LenderProcess::start("names", &arguments);
    let made = |name: &str, client: &str| {
        let key = format!("{client}.key");
        place.create(name, &lender.address, &["--data-lender-key-file", &key]);
        open(&place.path(name))
    };
    let first = made("first", "small");
    write(&first, 0, 1);
    await_service(&first);
    let second = made("second", "small");
    until("the second is refused", || {
        trouble(&second).contains("data = 6291456")
    });
    let others = made("others", "large");
    await_service(&others);
    let outside = made("outside", "none");
    until("it has no right", || {
        trouble(&outside).contains("no right to data")
    });
    let status = place.run(&["lender", "status", &lender.address, "--key-file", "large.key"]);
    let line = status.out.lines().find(|line| line.contains("small")).unwrap();
    assert!(line.contains("5.0 MiB of 6.0 MiB"), "{}", status.out);

    key(&["revoke", "small"]);
    kill_process(Pid::from_raw(lender.id() as i32).unwrap(), Signal::HUP).unwrap();
    let in_service = |volume: &Volume| volume.data_lender().is_some_and(|kept| kept.in_service);
    until("the revoked client's copy follows no more", || {
        !in_service(&first)
    });
    write(&first, 1, 2);
    write(&others, 1, 2);
    await_service(&others);
    let listed = place.json(&["replicas", &lender.address, "--key-file", "large.key"]);
    assert_eq!(listed.as_array().unwrap().len(), 2, "its copy is kept: {listed}");
    for volume in [first, second, others, outside] {
        volume.close().unwrap();
    }
}

#[test]
fn a_data_lender_finds_damage_in_its_copies_by_itself_and_has_it_mended() {
    let place = Place::new();
    let lender = place.lender("scrub", &["--data-scrub-interval", "3s"]);
    let data = lender.data_address.clone().unwrap();
    place.create("db", &data, &["--data-lender-key-file", "data.key"]);
    let volume = open(&place.path("db"));
    for block in 0..64 {
        write(&volume, block, 5);
    }
    volume.drain().unwrap();
    await_service(&volume);
    until("the copy's image has it", || {
        volume
            .data_lender()
            .is_some_and(|kept| kept.applied >= kept.flushed)
    });
    let id = place.json(&["status", "db"])["id"].as_str().unwrap().to_owned();
    let image = place.path("kept").join(&id).join("image");
    let image = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(image)
        .unwrap();
    let at = 41 * BLOCK as u64 + 77;
    let mut byte = [0];
    until("the scrub has found it, and the client sent it again", || {
        // Read before the count: a block that is whole now and not yet counted later was never repaired.
        image.read_exact_at(&mut byte, at).unwrap();
        let listed = place.json(&["replicas", &data, "--key-file", "data.key"]);
        let scrub = listed[0]["scrub"].clone();
        if scrub["found_blocks"] == 0 && byte == [5] {
            image.write_all_at(&[4], at).unwrap();
        }
        scrub["found_blocks"] == 1 && scrub["mended_blocks"] == 1
    });
    image.read_exact_at(&mut byte, at).unwrap();
    assert_eq!(byte, [5]);
    let shown = place.run(&["volume", "replicas", &data, "--key-file", "data.key"]);
    assert!(shown.out.contains("1 bad, 1 repaired"), "{}", shown.out);
    volume.close().unwrap();
}
