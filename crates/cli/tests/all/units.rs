//! The systemd units: how much systemd thinks that they expose, and that a volume is attached and survives
//! with the rights that they give.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{LenderProcess, finish, netram, program, skipped, start};
use crate::volume::restart::can_be_replaced;
use crate::volume::{can_attach, check_files, has_capability, tool, until, write_synced};

/// Highest exposure that a unit may have, in tenths.
const EXPOSURE_MAX: &str = "25";
/// The same for the unit that mounts: others see its mount only if it has no namespace of its own.
const EXPOSURE_OF_MOUNT_MAX: &str = "55";
/// A user whom every system knows, in place of the units' own.
const USER: &str = "nobody";
/// Capabilities that units name, by their numbers. A container may lack some.
const CAPABILITIES: [(&str, u32); 3] = [("CAP_KILL", 5), ("CAP_SYS_ADMIN", 21), ("CAP_SYS_RESOURCE", 24)];

fn unit(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../packaging")
        .join(name)
}

/// Values of a key in a unit's file.
fn values(name: &str, key: &str) -> Vec<String> {
    let text = fs::read_to_string(unit(name)).unwrap();
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.map(str::to_owned).collect()
}

#[test]
fn every_unit_exposes_little() {
    let analyze = |words: &[&str]| finish(Command::new("systemd-analyze").args(words).arg("--no-pager"));
    if !Command::new("systemd-analyze")
        .arg("--version")
        .output()
        .is_ok_and(|ran| ran.status.success())
    {
        return skipped("there is no systemd-analyze: apt-get install systemd");
    }
    let mut units = 0;
    for entry in fs::read_dir(unit("")).unwrap() {
        let path = entry.unwrap().path();
        // A link is another name of the same unit, for `make install`.
        if path.is_symlink() || path.extension().is_none_or(|ending| ending != "service") {
            continue;
        }
        let path = path.to_str().unwrap();
        let exposure = match path.ends_with("netram-mount@.service") {
            true => EXPOSURE_OF_MOUNT_MAX,
            false => EXPOSURE_MAX,
        };
        let threshold = format!("--threshold={exposure}");
        let ran = analyze(&["security", "--offline=true", &threshold, path]);
        if ran.err.contains("unrecognized option") {
            return skipped("this systemd-analyze judges no files: systemd 250 does");
        }
        assert_eq!(ran.code, 0, "{path}: {}{}", ran.out, ran.err);
        units += 1;
    }
    assert_eq!(units, 6, "a unit is missing, or new");
}

/// systemd knows every setting of the units, and finds what they name. Their program is not installed here.
#[test]
fn systemd_understands_every_unit() {
    let directory = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for entry in fs::read_dir(unit("")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.ends_with(".service") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        assert!(
            text.contains("/usr/local/bin/netram"),
            "{name}: `make install` finds no program"
        );
        let text = text.replace("/usr/local/bin/netram", program());
        let instance = name.replace("@.", "@srv-app.");
        for name in [name, instance] {
            fs::write(directory.path().join(&name), &text).unwrap();
            if !name.contains("@.") && !files.contains(&name) {
                files.push(name);
            }
        }
    }
    let mut verify = Command::new("systemd-analyze");
    verify
        .args(["verify", "--man=no", "--recursive-errors=no"])
        .args(&files);
    let Ok(ran) = verify.current_dir(directory.path()).output() else {
        return skipped("there is no systemd-analyze: apt-get install systemd");
    };
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    if said.contains("unrecognized option") {
        return skipped("this systemd-analyze is too old: systemd 250 verifies units by themselves");
    }
    let is_newer = |line: &&str| line.contains("SurviveFinalKillSignal");
    let found: Vec<&str> = said.lines().filter(|line| !is_newer(line)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

/// Names of the capabilities that a unit has by this key, if this process has them to give.
fn capabilities(name: &str, key: &str) -> Vec<String> {
    let sets = values(name, key).join(" ");
    let known = |word: &&str| {
        let number = CAPABILITIES.iter().find(|(name, _)| name == word);
        has_capability(number.unwrap_or_else(|| panic!("{word} is new")).1)
    };
    let names = sets.split_whitespace().filter(known);
    names
        .map(|name| name.strip_prefix("CAP_").unwrap().to_lowercase())
        .collect()
}

/// A process with the rights that a unit gives, killed when dropped.
struct UnitProcess(Child);

impl UnitProcess {
    /// Starts what the unit says, for this volume.
    fn start(name: &str, volume: &Path, run: &Path, log: &Path) -> UnitProcess {
        let line = values(name, "ExecStart").pop().unwrap();
        let mut words = line.split(' ').filter(|word| !word.starts_with('$'));
        assert_eq!(words.next(), Some("/usr/local/bin/netram"));
        let mut command = Command::new("setpriv");
        if let [user] = &values(name, "User")[..] {
            assert_eq!(user, "netram");
            command.args(["--reuid", USER]);
        }
        assert_eq!(values(name, "Group"), ["netram"]);
        command.args(["--regid", &group(), "--clear-groups", "--no-new-privs"]);
        // Without new privileges the bounding set of an ordinary user's process says nothing.
        let flags = match values(name, "User").is_empty() {
            true => [
                ("CapabilityBoundingSet", "--bounding-set"),
                ("AmbientCapabilities", "--ambient-caps"),
            ],
            false => [
                ("AmbientCapabilities", "--inh-caps"),
                ("AmbientCapabilities", "--ambient-caps"),
            ],
        };
        for (key, flag) in flags {
            let sets: Vec<String> = capabilities(name, key)
                .into_iter()
                .map(|name| format!(",+{name}"))
                .collect();
            command.arg(format!("{flag}=-all{}", sets.concat()));
        }
        command.arg(program());
        for word in words {
            match word {
                "netram" => command.arg(USER),
                "%f" => command.arg(volume),
                word => command.arg(word),
            };
        }
        let log = fs::File::options().create(true).append(true).open(log).unwrap();
        UnitProcess(start(
            command
                .env("NETRAM_VOLUME_RUN", run)
                .stdout(Stdio::null())
                .stderr(log),
        ))
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }

    fn status(&self, key: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        line.unwrap().trim().to_owned()
    }
}

impl Drop for UnitProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn group() -> String {
    let asked = finish(Command::new("id").args(["-g", USER]));
    asked.out.trim().to_owned()
}

/// A volume of the user's in a directory of the user's.
struct VolumeOfUser {
    directory: tempfile::TempDir,
}

impl VolumeOfUser {
    fn new(lender: &LenderProcess) -> VolumeOfUser {
        let directory = tempfile::Builder::new()
            .prefix("netram-units-")
            .tempdir_in("/var/tmp")
            .unwrap();
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let made = VolumeOfUser { directory };
        fs::create_dir(made.path("home")).unwrap();
        let [user, group] = ["-u", "-g"].map(|what| {
            let asked = finish(Command::new("id").args([what, USER]));
            asked.out.trim().parse::<u32>().unwrap()
        });
        chown(made.path("home"), Some(user), Some(group)).unwrap();
        fs::set_permissions(made.path("home"), Permissions::from_mode(0o711)).unwrap();
        let mut create = Command::new("setpriv");
        create.args(["--reuid", USER, "--regid", &group.to_string(), "--clear-groups"]);
        create.args([
            program(),
            "volume",
            "create",
            "--size",
            "64MiB",
            "--journal-size",
            "16MiB",
        ]);
        create
            .args(["--insecure", "--lender", &lender.address])
            .arg(made.volume());
        let created = finish(&mut create);
        assert_eq!(created.code, 0, "{}", created.err);
        fs::set_permissions(made.volume(), Permissions::from_mode(0o700)).unwrap();
        made
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn volume(&self) -> PathBuf {
        self.path("home/db")
    }

    fn start(&self, unit: &str) -> UnitProcess {
        UnitProcess::start(unit, &self.volume(), &self.path("run"), &self.path("log"))
    }

    /// The attachment's status, as root is told it.
    fn attached(&self) -> Value {
        let listed = finish(
            netram()
                .args(["volume", "list", "--json"])
                .env("NETRAM_VOLUME_RUN", self.path("run")),
        );
        assert_eq!(listed.code, 0, "{}", listed.err);
        let listed: Value = serde_json::from_str(&listed.out).unwrap();
        listed[0]["attached"].clone()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

impl Drop for VolumeOfUser {
    fn drop(&mut self) {
        let _ = tool("umount", &["--lazy", self.path("mount").to_str().unwrap()]);
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// Root's half of the units makes the device without opening a file of the volume, and the user's half, which
/// has no rights, serves it; systemd starts that again when it was killed.
#[test]
fn a_volume_is_attached_with_the_rights_that_the_units_give_and_survives_its_server() {
    const SERVER: &str = "netram-volume-server@.service";
    const DEVICE: &str = "netram-volume@.service";
    let may_run = || {
        tool(
            "setpriv",
            &["--reuid", USER, "--clear-groups", program(), "--version"],
        )
    };
    if let Err(missing) = can_attach()
        .and_then(|()| can_be_replaced())
        .and_then(|()| may_run())
    {
        return skipped(missing);
    }
    let listen = ["--listen", "tcp://127.0.0.1:0", "--insecure"];
    let lender = LenderProcess::start("units", &listen);
    let place = VolumeOfUser::new(&lender);
    // In the order in which systemd starts them: the server waits for its supervisor.
    let mut server = place.start(SERVER);
    let mut supervisor = place.start(DEVICE);
    let device = place.path("run/dev/db");
    until("the volume is attached", || {
        assert!(supervisor.0.try_wait().unwrap().is_none(), "{}", place.log());
        assert!(server.0.try_wait().unwrap().is_none(), "{}", place.log());
        device.exists() && !place.attached().is_null()
    });
    assert_eq!(place.attached()["server"]["id"], server.0.id());
    assert_eq!(server.status("CapPrm"), "0".repeat(16));
    assert_eq!(server.status("NoNewPrivs"), "1");
    // The kernel shows the files of a process that cannot be dumped as root's.
    assert_eq!(
        fs::metadata(format!("/proc/{}/mem", server.0.id()))
            .unwrap()
            .uid(),
        0
    );
    assert_ne!(server.status("Uid").split_whitespace().next(), Some("0"));
    let rights = u64::from_str_radix(&supervisor.status("CapPrm"), 16).unwrap();
    let given = capabilities(DEVICE, "CapabilityBoundingSet").len();
    assert_eq!(rights.count_ones() as usize, given, "{rights:#x}");

    let (mount, device) = (place.path("mount"), device.to_str().unwrap().to_owned());
    fs::create_dir(&mount).unwrap();
    tool("mkfs.ext4", &["-q", "-F", &device]).unwrap();
    tool("mount", &["-t", "ext4", &device, mount.to_str().unwrap()]).unwrap();
    for number in 0..10 {
        write_synced(&mount, number);
    }
    for round in 1..3 {
        server.signal(Signal::KILL);
        assert!(!server.0.wait().unwrap().success());
        server = place.start(SERVER);
        // It waits for the server, and for nothing else.
        for number in round * 10..round * 10 + 10 {
            write_synced(&mount, number);
        }
        assert_eq!(place.attached()["restarts"], round);
    }
    tool("umount", &[mount.to_str().unwrap()]).unwrap();
    check_files(&device, mount.to_str().unwrap(), 30);
    supervisor.signal(Signal::TERM);
    assert!(supervisor.0.wait().unwrap().success(), "{}", place.log());
    assert!(server.0.wait().unwrap().success(), "{}", place.log());
    assert!(!Path::new(&device).exists());
}
