//! The lender's container image: read by umoci, run by runc, and killed. What it lent outlives it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use netram_journal::{Journal, JournalConfig};
use netram_proto::port::{Durability, Record, RecordKind, RecordLog};
use netram_transport::{ClusterKey, Security};
use serde_json::{Value, json};

use crate::common::mounted::wait_until;
use crate::common::{finish, netram, program, skipped, start};
use crate::lifecycle::{PATIENCE, crashed};
use crate::volume::{has_capability, tool};

const PROGRAM: &str = "netram-lender";
/// Number of CAP_SYS_RESOURCE, which the bundle's limits need.
const SYS_RESOURCE: u32 = 24;
const RECORDS: u8 = 40;
/// Longer than the test: the newest records are at the lender only.
const NEVER: Duration = Duration::from_secs(3600);

/// An image, the directory that its containers share with this machine, and the container that runs.
struct Image {
    place: tempfile::TempDir,
    /// The store's directory, on a memory file system of this machine.
    store: tempfile::TempDir,
    name: String,
    container: Option<Child>,
}

impl Image {
    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn runc(&self, words: &[&str]) -> Command {
        let mut runc = Command::new("runc");
        runc.arg("--root").arg(self.path("runc")).args(words);
        runc
    }

    fn made() -> Image {
        let image = Image {
            place: tempfile::tempdir().unwrap(),
            store: tempfile::tempdir_in("/dev/shm").unwrap(),
            name: format!("netram-test-{}", std::process::id()),
            container: None,
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/image.sh");
        let built = Path::new(program()).parent().unwrap();
        let made = finish(
            Command::new(script)
                .arg(PROGRAM)
                .arg(built)
                .arg(image.path("made")),
        );
        assert_eq!(made.code, 0, "{}", made.err);
        image
    }

    /// Makes the shipped bundle fit this machine: other directories, and no limit that it may not set.
    fn adjust(&self) {
        let file = self.path("made").join(PROGRAM).join("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        for mount in config["mounts"].as_array_mut().unwrap() {
            let source = match mount["destination"].as_str().unwrap() {
                "/store" => self.store.path().to_owned(),
                "/spill" => self.directory("spill"),
                "/etc/netram" => self.directory("key"),
                _ => continue,
            };
            mount["source"] = json!(source);
        }
        let process = config["process"].as_object_mut().unwrap();
        process["args"]
            .as_array_mut()
            .unwrap()
            .extend(["--listen", "unix:/store/socket", "--memory", "16MiB"].map(|word| json!(word)));
        if !has_capability(SYS_RESOURCE) {
            process.remove("rlimits");
            process.remove("oomScoreAdj");
        }
        fs::write(file, config.to_string()).unwrap();
        let key = self.path("key/key");
        assert_eq!(finish(netram().args(["key", "create"]).arg(&key)).code, 0);
    }

    fn directory(&self, name: &str) -> PathBuf {
        fs::create_dir_all(self.path(name)).unwrap();
        self.path(name)
    }

    /// Starts a container; returns what its lender said of its memory.
    fn start(&mut self) -> String {
        let log = fs::File::create(self.path("log")).unwrap();
        let mut runc = self.runc(&["run", "--bundle"]);
        runc.arg(self.path("made").join(PROGRAM)).arg(&self.name);
        let mut container = start(runc.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log));
        let mut lines = BufReader::new(container.stdout.take().unwrap()).lines();
        let ready = lines.any(|line| line.unwrap() == "ready");
        self.container = Some(container);
        let log = || fs::read_to_string(self.path("log")).unwrap();
        assert!(ready, "the container ended: {}", log());
        // A thread of its own writes the log, so it may come after what it tells of.
        let mut origin = None;
        wait_until("the line about the memory", || {
            let log = log();
            origin = log.split_once("origin=").and_then(|(_, rest)| {
                let (word, _) = rest.split_once(char::is_whitespace)?;
                Some(word.to_owned())
            });
            origin.is_some()
        });
        origin.expect("it was waited for")
    }

    /// Kills everything in the container, and removes it.
    fn kill(&mut self) {
        let killed = finish(&mut self.runc(&["kill", &self.name, "KILL"]));
        assert_eq!(killed.code, 0, "{}", killed.err);
        // runc ends with the container's first process, and then deletes the container.
        let ended = self.container.take().unwrap().wait().unwrap();
        assert!(!ended.success());
    }

    fn open(&self, journal: &Path) -> Journal {
        let lender = format!("unix:{}", self.store.path().join("socket").display());
        let security = Security::Key(ClusterKey::load(&self.path("key/key")).unwrap());
        let config = JournalConfig {
            one_domain: true,
            window_bytes: 1 << 20,
            disk_delay: NEVER,
            ..JournalConfig::with_lenders(vec![lender.parse().unwrap()], security, 1)
        };
        let (journal, _) = Journal::open(journal, config).unwrap();
        journal.wait_for_members(PATIENCE).unwrap();
        journal
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        if let Some(mut container) = self.container.take() {
            let _ = self.runc(&["delete", "--force", &self.name]).status();
            let _ = container.wait();
        }
    }
}

fn cannot_run() -> bool {
    let lacks = match rustix::process::geteuid().is_root() {
        false => Some("not root: no containers".to_owned()),
        true => ["umoci", "runc"]
            .into_iter()
            .find(|command| tool(command, &["--version"]).is_err())
            .map(|command| format!("no `{command}` (Debian: apt-get install {command})")),
    };
    lacks.iter().for_each(skipped);
    lacks.is_some()
}

/// Another implementation of OCI's format unpacks the image into the root that the bundle has.
fn check_layout(image: &Image) {
    let made = image.path("made");
    let layout = image.directory("layout");
    let packed = made.join(format!("{PROGRAM}-{}.oci.tar", env!("CARGO_PKG_VERSION")));
    let mut tar = Command::new("tar");
    assert_eq!(finish(tar.arg("-xf").arg(&packed).arg("-C").arg(&layout)).code, 0);
    let name = format!("{}:{PROGRAM}:{}", layout.display(), env!("CARGO_PKG_VERSION"));
    let unpacked = image.path("unpacked");
    let umoci = finish(
        Command::new("umoci")
            .args(["unpack", "--image", &name])
            .arg(&unpacked),
    );
    assert_eq!(umoci.code, 0, "{}", umoci.err);
    let roots = [made.join(PROGRAM).join("rootfs"), unpacked.join("rootfs")];
    let differs = finish(Command::new("diff").args(["-r", "--no-dereference"]).args(roots));
    assert_eq!(differs.out, "");
    let read = |path: PathBuf| -> Value { serde_json::from_slice(&fs::read(path).unwrap()).unwrap() };
    let shipped = read(made.join(PROGRAM).join("config.json"));
    let translated = read(unpacked.join("config.json"));
    assert_eq!(shipped["process"]["args"], translated["process"]["args"]);
    let has = |variable: &Value| {
        translated["process"]["env"]
            .as_array()
            .unwrap()
            .contains(variable)
    };
    assert!(shipped["process"]["env"].as_array().unwrap().iter().all(has));
}

/// A journal whose newest records are in the memory that a container lent, and on no disk.
#[test]
fn what_a_container_lent_is_there_for_the_container_after_it() {
    if cannot_run() {
        return;
    }
    let mut image = Image::made();
    check_layout(&image);
    image.adjust();
    assert_eq!(image.start(), "New");
    let path = image.path("journal");
    Journal::create(&path, 1 << 20).unwrap();
    let journal = image.open(&path);
    for number in 0..RECORDS {
        let ticket = journal
            .append(RecordKind(16), 1, &mut |into| into[0] = number)
            .unwrap();
        journal.wait(ticket, Durability::Remote).unwrap();
    }
    crashed(&path, &image.path("crashed"));
    // A client that ended while it reached the lender would tell it so.
    image.kill();
    drop(journal);
    assert_eq!(image.start(), "Restored");
    let journal = image.open(&image.path("crashed"));
    let mut found = Vec::new();
    let mut each = |record: Record<'_>| {
        found.push(record.payload[0]);
        true
    };
    journal.read(journal.state().head, &mut each).unwrap();
    assert_eq!(found, (0..RECORDS).collect::<Vec<u8>>());
    drop(journal);
    image.kill();
}
