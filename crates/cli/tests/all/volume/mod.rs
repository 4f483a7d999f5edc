//! `netram volume`: volumes made, looked at, grown, scrubbed, deleted; and attached, under a real file system
//! with real lenders, by a server that is killed.

mod certificates;
mod create;
mod full;
mod hung;
mod memory;
pub(crate) mod restart;
mod vhost;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{CommandOutput, LenderProcess, finish, netram, start};

/// How long anything may take that is not itself under test: the machine may be slow and busy.
const PATIENCE: Duration = Duration::from_secs(180);

/// A directory with a volume, and all that is attached from it.
struct VolumeFixture {
    directory: tempfile::TempDir,
}

impl VolumeFixture {
    fn new() -> VolumeFixture {
        let directory = tempfile::Builder::new().prefix("netram-disk-").tempdir().unwrap();
        VolumeFixture { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn disk(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = netram();
        command
            .arg("volume")
            .args(arguments)
            .current_dir(self.directory.path());
        finish(command.env("NETRAM_VOLUME_RUN", self.path("run")))
    }

    /// A subcommand that must go well, with --json.
    fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.disk(&[arguments, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{arguments:?}: {}{}", ran.out, ran.err);
        serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
    }

    /// Attaches `db`. A supervisor that is about to end may still hold the name for a moment.
    fn attach(&self) -> Value {
        let mut ran = self.disk(&["attach", "db", "--way", "fuse", "--json"]);
        until("the volume is attached", || {
            let early = ran.err.contains("being attached or detached");
            if early {
                ran = self.disk(&["attach", "db", "--way", "fuse", "--json"]);
            }
            !early
        });
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        serde_json::from_str(&ran.out).unwrap()
    }

    /// Creates a small `db` whose newest writes a lender has too, and attaches it.
    fn attach_with(&self, lender: &LenderProcess, more: &[&str]) {
        let made = ["create", "db", "--size", "16MiB", "--journal-size", "4MiB"];
        let kept = ["--insecure", "--lender", &lender.address];
        self.json(&[&made[..], &kept, more].concat());
        self.attach();
    }

    /// Creates `db` with two lenders, and attaches it.
    fn attach_with_two(&self, names: [&str; 2]) -> [LenderProcess; 2] {
        let listen = ["--listen", "tcp://127.0.0.1:0", "--insecure", "--domain", "ups-1"];
        let lenders = names.map(|name| LenderProcess::start(name, &listen));
        let [a, b] = lenders.each_ref().map(|lender| lender.address.as_str());
        let made = ["create", "db", "--size", "64MiB", "--journal-size", "16MiB"];
        self.json(&[&made[..], &["--insecure", "--lender", a, "--lender", b]].concat());
        self.attach();
        lenders
    }

    /// Process of the server of the attached `db`.
    fn server(&self) -> Value {
        self.json(&["list"])[0]["attached"]["server"]["id"].clone()
    }

    /// Log of the supervisor of `db`.
    fn log(&self) -> String {
        fs::read_to_string(self.path("run/db/log")).unwrap()
    }

    /// The device's link, and a directory to mount it on.
    fn device_and_mount(&self) -> (String, String) {
        let mount = self.path("mount");
        fs::create_dir(&mount).unwrap();
        (
            self.path("run/dev/db").display().to_string(),
            mount.display().to_string(),
        )
    }

    /// A subcommand that must fail: what it complains of.
    fn refused(&self, arguments: &[&str], code: i32) -> String {
        let ran = self.disk(arguments);
        assert_eq!(ran.code, code, "{arguments:?}: {}{}", ran.out, ran.err);
        ran.err
    }
}

impl VolumeFixture {
    /// Ends what a test that failed has left attached.
    fn end_all(&self) {
        if self.path("run").exists() {
            let listed = self.disk(&["list", "--json"]).out;
            for entry in serde_json::from_str::<Vec<Value>>(&listed).unwrap_or_default() {
                // The supervisor before the server: it would start another.
                for process in ["supervisor", "server"] {
                    kill(&entry["attached"][process]["id"]);
                }
            }
        }
    }
}

impl Drop for VolumeFixture {
    fn drop(&mut self) {
        // A server that is stuck would hold up the unmounting for ever, so it goes first.
        self.end_all();
        let _ = tool("umount", &["--lazy", &self.path("mount").display().to_string()]);
    }
}

#[test]
fn a_volume_is_made_shown_grown_scrubbed_and_deleted() {
    let place = VolumeFixture::new();
    let made = place.json(&[
        "create",
        "db",
        "--size",
        "16MiB",
        "--journal-size",
        "4MiB",
        "--flush",
        "disk",
    ]);
    assert_eq!(made["bytes"], 16 << 20);
    let twice = place.refused(&["create", "db", "--size", "16MiB"], 1);
    assert!(twice.contains("db"), "{twice}");
    let shown = place.json(&["status", "db"]);
    assert_eq!(
        (&shown["bytes"], &shown["flush"], &shown["in_use"], &shown["id"]),
        (&(16 << 20).into(), &"disk".into(), &false.into(), &made["id"])
    );
    let listed = place.json(&["list", "."]);
    assert_eq!(listed[0]["state"], "closed");
    assert_eq!(
        listed[0]["volume"],
        place.path("db").canonicalize().unwrap().to_str().unwrap()
    );

    let grown = place.json(&["grow", "db", "--size", "24MiB"]);
    assert_eq!(
        (&grown["before"], &grown["after"]),
        (&(16 << 20).into(), &(24 << 20).into())
    );
    let smaller = place.refused(&["grow", "db", "--size", "16MiB"], 1);
    assert!(smaller.contains("cannot shrink"), "{smaller}");
    assert_eq!(place.json(&["status", "db"])["bytes"], 24 << 20);

    assert_eq!(place.json(&["check", "db"])["bad_blocks"], 0);
    let unsaid = place.refused(&["delete", "db"], 2);
    assert!(unsaid.contains("--yes"), "{unsaid}");
    // As a removal leaves it that was cut off.
    std::fs::remove_file(place.path("db").join("super")).unwrap();
    let unsaid = place.refused(&["delete", "db"], 2);
    assert!(unsaid.contains("left of a volume"), "{unsaid}");
    place.json(&["delete", "db", "--yes"]);
    assert!(!place.path("db").exists());
    let gone = place.refused(&["status", "db"], 1);
    assert!(gone.contains("netram volume create"), "{gone}");
}

#[test]
fn a_volume_is_served_until_a_signal_and_then_closed() {
    let place = VolumeFixture::new();
    place.json(&["create", "db", "--size", "1MiB", "--journal-size", "4MiB"]);
    let abroad = place.refused(&["serve", "db", "--listen", "tcp://0.0.0.0:0"], 1);
    assert!(abroad.contains("other machines"), "{abroad}");
    let (mut command, socket) = (netram(), place.path("socket"));
    command.args([
        "volume",
        "serve",
        "db",
        "--listen",
        &format!("unix:{}", socket.display()),
    ]);
    command.current_dir(place.directory.path());
    let mut server = Started(start(command.stdout(Stdio::piped())));
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    assert!(
        lines.any(|line| line.unwrap() == "ready"),
        "it ended before it was ready"
    );
    // A server of the fixed newstyle introduces itself.
    let mut greeting = [0; 16];
    let mut client = UnixStream::connect(socket).unwrap();
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT");
    let shown = place.json(&["status", "db"]);
    assert_eq!(shown["in_use"], true);
    let live = &shown["live"];
    assert_eq!(
        (&live["pid"], &live["front"]["kind"]),
        (&server.0.id().into(), &"nbd".into())
    );
    assert_eq!(live["front"]["connections"], 1);
    let metrics = place.disk(&["status", "db", "--metrics"]).out;
    assert!(
        metrics.contains("\nnetram_volume_size_bytes{volume=")
            && metrics.contains("\nnetram_volume_front_sessions_total{"),
        "{metrics}"
    );
    assert_eq!(place.json(&["grow", "db", "--size", "3MiB"])["before"], 1 << 20);
    assert_eq!(place.json(&["status", "db"])["live"]["bytes"], 3 << 20);
    assert_eq!(place.json(&["check", "db"])["bad_blocks"], 0);
    let second = place.refused(&["serve", "db", "--listen", "unix:/nowhere"], 1);
    assert!(second.contains("in use"), "{second}");
    kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
    assert!(server.0.wait().unwrap().success());
    let shown = place.json(&["status", "db"]);
    assert_eq!((&shown["in_use"], &shown["live"]), (&false.into(), &Value::Null));
    let no_copy = place.refused(&["takeover", "db"], 1);
    assert!(no_copy.contains("not a data lender's copy"), "{no_copy}");
    let closed = place.refused(&["status", "db", "--metrics"], 1);
    assert!(closed.contains("neither attached nor served"), "{closed}");
}

#[test]
fn a_scrub_names_the_block_that_rotted() {
    let place = VolumeFixture::new();
    place.json(&["create", "db", "--size", "1MiB", "--journal-size", "4MiB"]);
    let (volume, _) = netram_volume::Volume::open(&place.path("db")).unwrap();
    let blocks: Vec<u8> = (0..16 * 4096).map(|at| (at / 4096 + 1) as u8).collect();
    let written = netram_volume::BlockDevice::write(&volume, 0, &blocks).unwrap();
    netram_volume::BlockDevice::wait(&volume, written).unwrap();
    volume.close().unwrap();
    let path = place.path("db/image");
    let bytes = fs::read(&path).unwrap();
    let fifth = bytes
        .chunks(4096)
        .position(|block| block.iter().all(|byte| *byte == 6));
    let at = fifth.expect("block 5 is in the image") as u64 * 4096;
    let image = File::options().write(true).open(path).unwrap();
    image.write_all_at(b"rot", at + 77).unwrap();
    let ran = place.disk(&["check", "db", "--json"]);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let found: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(
        (&found["bad_blocks"], &found["named"]),
        (&1.into(), &vec![5].into())
    );
}

#[test]
fn an_attached_volume_is_detached_and_changed_only_when_not_in_use() {
    const NAME: &str = "an_attached_volume_is_detached_and_changed_only_when_not_in_use";
    if let Err(missing) = can_attach() {
        return skipped(NAME, &missing);
    }
    let place = VolumeFixture::new();
    place.json(&["create", "db", "--size", "64MiB", "--journal-size", "16MiB"]);
    let attached = place.attach();
    let link = place.path("run/dev/db");
    assert_eq!(attached["link"], link.to_str().unwrap());
    let again = place.refused(&["attach", "db"], 1);
    assert!(again.contains("already attached"), "{again}");
    let refused = place.refused(&["delete", "db", "--yes"], 1);
    assert!(refused.contains("netram volume detach"), "{refused}");
    let (device, mount) = place.device_and_mount();
    tool("mkfs.ext4", &["-q", "-F", &device]).unwrap();
    tool("mount", &["-t", "ext4", &device, &mount]).unwrap();
    let refused = place.refused(&["detach", "db"], 1);
    assert!(refused.contains(&mount), "{refused}");
    tool("umount", &[&mount]).unwrap();
    place.json(&["detach", "db"]);
    assert!(link.symlink_metadata().is_err(), "the link stays");
    assert_eq!(place.json(&["list"]), Value::Array(Vec::new()));
    let shown = place.json(&["status", "db"]);
    assert_eq!(
        (&shown["in_use"], &shown["attached"]),
        (&false.into(), &Value::Null)
    );
    let nothing = place.refused(&["detach", "db"], 1);
    assert!(nothing.contains("nothing is attached"), "{nothing}");
}

#[test]
fn a_mounted_file_system_grows_with_its_volume_and_its_volume_is_scrubbed_under_it() {
    const NAME: &str = "a_mounted_file_system_grows_with_its_volume_and_its_volume_is_scrubbed_under_it";
    if let Err(missing) = can_attach().and_then(|()| tool("sh", &["-c", "command -v resize2fs"])) {
        return skipped(NAME, &missing);
    }
    let place = VolumeFixture::new();
    place.json(&["create", "db", "--size", "64MiB", "--journal-size", "16MiB"]);
    place.attach();
    let (device, mount) = place.device_and_mount();
    tool("mkfs.ext4", &["-q", "-F", &device]).unwrap();
    tool("mount", &["-t", "ext4", &device, &mount]).unwrap();
    for number in 0..20 {
        write_synced(Path::new(&mount), number);
    }
    let free = || {
        let space = rustix::fs::statvfs(&mount).unwrap();
        space.f_bfree * space.f_frsize
    };
    let before = free();
    let grown = place.json(&["grow", "db", "--size", "192MiB"]);
    assert_eq!(
        (&grown["before"], &grown["after"]),
        (&(64 << 20).into(), &(192 << 20).into())
    );
    let mut seen = File::open(&device).unwrap();
    assert_eq!(
        seen.seek(SeekFrom::End(0)).unwrap(),
        192 << 20,
        "the device has its old size"
    );
    drop(seen);
    // ext4 can be grown online only by processes that may exceed limits, which some containers do not allow.
    if has_capability(CAP_SYS_RESOURCE) {
        tool("resize2fs", &[&device]).unwrap();
    } else {
        skipped(NAME, "CAP_SYS_RESOURCE, so the file system grows unmounted");
        tool("umount", &[&mount]).unwrap();
        tool("fsck.ext4", &["-f", "-y", &device]).unwrap();
        tool("resize2fs", &[&device]).unwrap();
        tool("mount", &["-t", "ext4", &device, &mount]).unwrap();
    }
    assert!(
        free() > before + (100 << 20),
        "{} bytes are free, of {before}",
        free()
    );
    // More than there was room for.
    fs::write(Path::new(&mount).join("large"), vec![7; 100 << 20]).unwrap();
    tool("sync", &["-f", &mount]).unwrap();
    let scrubbed = place.json(&["check", "db"]);
    assert_eq!(scrubbed["bad_blocks"], 0);
    // Less what is in stages still, at most one open and three closed: only the image is read.
    assert!(scrubbed["read_bytes"].as_u64() > Some(50 << 20), "{scrubbed}");
    let live = &place.json(&["status", "db"])["live"];
    assert_eq!(live["bytes"], 192 << 20);
    let smaller = place.refused(&["grow", "db", "--size", "64MiB"], 1);
    assert!(smaller.contains("cannot shrink"), "{smaller}");
    tool("umount", &[&mount]).unwrap();
    check_files(&device, &mount, 20);
    place.json(&["detach", "db"]);
}

#[test]
fn an_attached_volume_outlives_its_killed_server_with_every_synced_file() {
    const NAME: &str = "an_attached_volume_outlives_its_killed_server_with_every_synced_file";
    if let Err(missing) = can_attach() {
        return skipped(NAME, &missing);
    }
    let place = VolumeFixture::new();
    let _lenders = place.attach_with_two(["disk-a", "disk-b"]);
    let (device, mount) = place.device_and_mount();
    tool("mkfs.ext4", &["-q", "-F", &device]).unwrap();
    let mut synced = 0;
    for _ in 0..2 {
        tool("mount", &["-t", "ext4", &device, &mount]).unwrap();
        for _ in 0..25 {
            write_synced(Path::new(&mount), synced);
            synced += 1;
        }
        // The device gives errors now.
        place.json(&["detach", "db", "--force"]);
        tool("umount", &[&mount]).unwrap();
        until("the record goes with the supervisor", || {
            place.json(&["list"]).as_array().is_some_and(Vec::is_empty)
        });
        place.attach();
        check_files(&device, &mount, synced);
    }
    place.json(&["detach", "db"]);
    let members = &place.json(&["status", "db"])["members"];
    assert_eq!(
        *members,
        Value::Array(Vec::new()),
        "closed without its members being released"
    );
}

#[test]
fn a_killed_supervisors_record_stays_while_its_server_lives() {
    const NAME: &str = "a_killed_supervisors_record_stays_while_its_server_lives";
    if let Err(missing) = can_attach() {
        return skipped(NAME, &missing);
    }
    let place = VolumeFixture::new();
    place.json(&["create", "db", "--size", "64MiB", "--journal-size", "16MiB"]);
    place.attach();
    let (device, mount) = place.device_and_mount();
    tool("mkfs.ext4", &["-q", "-F", &device]).unwrap();
    tool("mount", &["-t", "ext4", &device, &mount]).unwrap();
    kill(&place.json(&["list"])[0]["attached"]["supervisor"]["id"]);
    // What is killed may live for a moment more.
    until("the supervisor is known to be gone", || {
        place.refused(&["detach", "db"], 1).contains("its server goes on")
    });
    let listed = place.json(&["list"]);
    let server = &listed[0]["attached"]["server"]["id"];
    assert!(server.is_u64(), "its record is gone: {listed}");
    // Another volume would have the only record of the device under its own name.
    place.json(&["create", "other", "--size", "64MiB", "--journal-size", "16MiB"]);
    let refused = place.refused(&["attach", "other", "--name", "db", "--way", "fuse"], 1);
    assert!(refused.contains("the name db belongs to"), "{refused}");
    place.refused(&["attach", "db", "--name", "again", "--way", "fuse"], 1);
    kill(server);
    until("the server is known to be gone", || {
        let refused = place.refused(&["detach", "db"], 1);
        refused.contains("is still mounted at")
    });
    assert!(place.json(&["list"]).as_array().is_some_and(Vec::is_empty));
    tool("umount", &[&mount]).unwrap();
    // Under whatever name it is attached next, the record of the name before goes.
    place.attach();
    for process in ["supervisor", "server"] {
        kill(&place.json(&["list"])[0]["attached"][process]["id"]);
    }
    until("it is attached again", || {
        place
            .disk(&["attach", "db", "--name", "again", "--way", "fuse"])
            .code
            == 0
    });
    let listed = place.json(&["list"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    place.json(&["detach", "again"]);
}

/// After ext4 has replayed its journal it must be clean, and every file be there.
pub(crate) fn check_files(device: &str, mount: &str, synced: u64) {
    tool("mount", &["-t", "ext4", device, mount]).unwrap();
    tool("umount", &[mount]).unwrap();
    tool("fsck.ext4", &["-f", "-n", device]).unwrap();
    tool("mount", &["-t", "ext4", device, mount]).unwrap();
    for number in 0..synced {
        let found = fs::read(Path::new(mount).join(number.to_string())).unwrap();
        assert!(
            found == content(number),
            "file {number} of {synced} has other bytes"
        );
    }
    tool("umount", &[mount]).unwrap();
}

fn skipped(test: &str, missing: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}

pub(crate) fn write_synced(directory: &Path, number: u64) {
    let mut file = File::create_new(directory.join(number.to_string())).unwrap();
    file.write_all(&content(number)).unwrap();
    file.sync_all().unwrap();
    File::open(directory).unwrap().sync_all().unwrap();
}

fn content(number: u64) -> Vec<u8> {
    let length = 1 + number * 997 % 9000;
    (0..length).map(|at| (at * 31 + number * 17) as u8).collect()
}

const CAP_SYS_RESOURCE: u32 = 24;

pub(crate) fn has_capability(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    effective.is_some_and(|mask| mask >> number & 1 == 1)
}

/// A process that does not outlive a failed test.
struct Started(std::process::Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Checks what a device with ext4 needs; the error says what this machine lacks.
pub(crate) fn can_attach() -> Result<(), String> {
    has_loop_devices()?;
    tool("mkfs.ext4", &["-V"])?;
    // The kernel may have it as a module that was never loaded.
    let ext4 = "grep -qw ext4 /proc/filesystems || modprobe ext4";
    tool("sh", &["-c", ext4]).map_err(|_| "this kernel has no ext4".into())
}

/// Checks what a device needs; the error says what this machine lacks.
pub(crate) fn has_loop_devices() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("this is not root".into());
    }
    for path in ["/dev/fuse", "/dev/loop-control"] {
        let opened = File::options().read(true).write(true).open(path);
        opened.map_err(|error| format!("{path}: {error}"))?;
    }
    let fuse = rustix::mount::fsopen("fuse", rustix::mount::FsOpenFlags::FSOPEN_CLOEXEC);
    fuse.map_err(|errno| format!("mounting FUSE: {errno}"))?;
    // In a container the driver may be there, but not the devices that it makes.
    tool(
        "sh",
        &[
            "-c",
            "device=$(losetup --find) && test -b \"$device\" && : <> \"$device\"",
        ],
    )
    .map_err(|_| "there are no loop devices here".into())
}

fn kill(process: &Value) {
    let number = process.as_i64().and_then(|number| i32::try_from(number).ok());
    if let Some(pid) = number.and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
}

/// Runs a tool to its end, which is near.
pub(crate) fn tool(program: &str, arguments: &[&str]) -> Result<(), String> {
    let run = Command::new("timeout")
        .args(["--signal=KILL", "150", program])
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = run.map_err(|error| format!("timeout {program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{program} {}: {}: {}{}",
            arguments.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

/// Waits until `condition` holds; panics when it never does.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(
            Instant::now() < deadline,
            "waited {PATIENCE:?} in vain until {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}
