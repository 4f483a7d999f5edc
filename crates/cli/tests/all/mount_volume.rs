//! `netram mount attach DIR --on VOLUME`: a volume attached and its file system mounted, by one command; and
//! everything away again.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{CommandOutput, LenderProcess, finish, netram, start};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const PATIENCE: Duration = Duration::from_secs(180);

/// A volume, a directory for it, and its lender.
struct Place {
    directory: tempfile::TempDir,
    _lender: LenderProcess,
}

/// A command that has it mounted.
struct Mounted {
    process: Child,
    said: String,
}

impl Place {
    /// Returns `None` if the machine lacks something; the test printed that it is skipped.
    fn new(name: &str) -> Option<Place> {
        let lacks = match rustix::process::geteuid().is_root() {
            false => Some("root"),
            true => ["/dev/fuse", "/dev/loop-control"]
                .into_iter()
                .find(|path| !Path::new(path).exists()),
        };
        if let Some(lacks) = lacks {
            crate::common::skipped(format_args!("attaching a volume needs {lacks}"));
            return None;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let lender = LenderProcess::start(name, &["--insecure", "--listen", "tcp://127.0.0.1:0"]);
        let address = lender.address.clone();
        let place = Place {
            directory,
            _lender: lender,
        };
        fs::create_dir(place.dir()).unwrap();
        let words = [
            "volume",
            "create",
            "db",
            "--size",
            "64MiB",
            "--journal-size",
            "16MiB",
        ];
        let made = place.run(&[&words[..], &["--insecure", "--lender", &address]].concat());
        assert_eq!(made.code, 0, "{}", made.err);
        Some(place)
    }

    fn dir(&self) -> PathBuf {
        self.directory.path().join("dir")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = netram();
        command
            .args(words)
            .current_dir(self.directory.path())
            .env("NETRAM_VOLUME_RUN", self.directory.path().join("run"));
        command
    }

    fn run(&self, words: &[&str]) -> CommandOutput {
        finish(&mut self.command(words))
    }

    /// Mounts it; the command stays.
    fn mount(&self, more: &[&str]) -> Mounted {
        let mut command = self.command(&["mount", "attach", "dir", "--on", "db"]);
        command.args(more).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = start(&mut command);
        let mut said = String::new();
        BufReader::new(process.stdout.as_mut().unwrap())
            .read_line(&mut said)
            .unwrap();
        Mounted { process, said }
    }

    /// Runs a mount that must fail. Returns the error.
    fn refused(&self, more: &[&str]) -> String {
        let ran = self.run(&[&["mount", "attach", "dir", "--on", "db"], more].concat());
        assert_ne!(ran.code, 0, "{more:?}: {}", ran.out);
        ran.err
    }

    fn attached(&self) -> usize {
        let ran = self.run(&["volume", "list", "--json"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let list: Value = serde_json::from_str(&ran.out).unwrap();
        list.as_array().unwrap().len()
    }

    fn write(&self, name: &str, text: &str) {
        let mut file = File::create(self.dir().join(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.sync_all().unwrap();
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir().join(name)).unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Nothing of it may be left behind.
            let _ = Command::new("umount").arg("--lazy").arg(self.dir()).status();
            let _ = self.run(&["volume", "detach", "db", "--force"]);
        }
    }
}

impl Mounted {
    /// Waits until the mount ends by itself, with success.
    fn ended(mut self) {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "it goes on");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert!(status.success(), "{status}");
    }
}

#[test]
fn a_volume_is_mounted_by_one_command_and_taken_away_by_another() {
    let Some(place) = Place::new("mount-volume") else {
        return;
    };
    let said = place.refused(&[]);
    assert!(said.contains("--format ext4 makes one"), "{said}");
    assert_eq!(
        place.attached(),
        0,
        "what could not be mounted does not stay attached"
    );

    let mounted = place.mount(&["--format", "ext4"]);
    assert!(mounted.said.starts_with("mounted dir, /dev/"), "{}", mounted.said);
    place.write("one", "first");
    let busy = File::open(place.dir().join("one")).unwrap();
    let ran = place.run(&["mount", "detach", "dir"]);
    assert_ne!(ran.code, 0, "a file is open there");
    assert!(ran.err.contains("busy"), "{}", ran.err);
    drop(busy);
    let ran = place.run(&["mount", "detach", "dir"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    mounted.ended();
    assert_eq!(place.attached(), 0);
    assert_eq!(fs::read_dir(place.dir()).unwrap().count(), 0);

    let said = place.refused(&["--format", "ext4"]);
    assert!(said.contains("a file system on"), "{said}");
    assert!(said.contains("ext4"), "{said}");
    let mounted = place.mount(&[]);
    assert_eq!(place.read("one"), "first");
    kill_process(Pid::from_child(&mounted.process), Signal::TERM).unwrap();
    mounted.ended();
    assert_eq!(place.attached(), 0);
}

#[test]
fn the_process_that_mounted_a_volume_may_be_killed() {
    let Some(place) = Place::new("mount-volume-killed") else {
        return;
    };
    let mut mounted = place.mount(&["--format", "ext4"]);
    place.write("two", "second");
    mounted.process.kill().unwrap();
    mounted.process.wait().unwrap();
    assert_eq!(place.read("two"), "second", "the file system does not notice");
    // The same command again looks after it.
    let again = place.mount(&[]);
    assert!(again.said.starts_with("mounted dir"), "{}", again.said);
    kill_process(Pid::from_child(&again.process), Signal::INT).unwrap();
    again.ended();
    assert_eq!(place.attached(), 0);
    // If the process that mounted it is gone, unmounting detaches the volume.
    let mut mounted = place.mount(&[]);
    mounted.process.kill().unwrap();
    mounted.process.wait().unwrap();
    let ran = place.run(&["mount", "detach", "dir"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert_eq!(place.attached(), 0);
}

#[test]
fn a_volume_that_cannot_be_mounted_is_refused() {
    let Some(place) = Place::new("mount-volume-refused") else {
        return;
    };
    for (words, told) in [
        (&["--lender", "tcp://127.0.0.1:1"][..], "--lender is for journals"),
        (&["--sync", "disk"], "--sync is for journals"),
        (&["--accept-loss"], "--accept-loss is for journals"),
        (&["--format", "fat"], "possible values: ext4, xfs, btrfs"),
    ] {
        let said = place.refused(words);
        assert!(said.contains(told), "{words:?}: {said}");
    }
    let journal = place.run(&["mount", "attach", "dir", "--on", "journal", "--format", "ext4"]);
    assert_eq!(journal.code, 2);
    assert!(journal.err.contains("journal is not one"), "{}", journal.err);
    fs::write(place.dir().join("mine"), "").unwrap();
    let said = place.refused(&["--format", "ext4"]);
    assert!(said.contains("is not empty"), "{said}");
    fs::remove_file(place.dir().join("mine")).unwrap();
    // Attached by another command.
    let ran = place.run(&["volume", "attach", "db"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let said = place.refused(&[]);
    assert!(said.contains("is attached already"), "{said}");
    let ran = place.run(&["volume", "detach", "db"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
}
