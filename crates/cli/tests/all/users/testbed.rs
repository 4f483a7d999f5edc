//! Where a test takes place: lenders, a volume, its device, and a directory that it is mounted on.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{CommandOutput, LenderProcess, finish, netram};
use crate::users::file_system::FileSystem;
use crate::users::process::{has, reap, tool, until};
use crate::volume::has_loop_devices;

/// Bytes of the volume: XFS refuses less than 300 MB.
const VOLUME: &str = "512MiB";
const JOURNAL: &str = "64MiB";

/// Lenders of this process: their names must not meet.
static MADE: AtomicU32 = AtomicU32::new(0);

/// How the volume is kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AttachChoice {
    Usual,
    /// Either lender suffices.
    Any,
    KeptTwice,
    Multicast,
}

/// A volume `db` with a file system, attached and mounted while a workload runs.
pub(crate) struct UsersTestbed {
    directory: tempfile::TempDir,
    file_system: FileSystem,
    // Their memory has what a killed server had acknowledged.
    lenders: Vec<LenderProcess>,
    /// A lender that was removed a moment ago.
    retired: Option<LenderProcess>,
    /// Where one of them was that was lost.
    lost: Option<String>,
    keeper: Option<VolumeProcess>,
    /// The volume's id.
    id: String,
}

/// The data lender, and where its disk is.
struct VolumeProcess {
    process: Option<LenderProcess>,
    address: String,
    data: PathBuf,
}

impl VolumeProcess {
    fn start(data: PathBuf) -> VolumeProcess {
        let mut keeper = VolumeProcess {
            process: None,
            address: "tcp://127.0.0.1:0".to_owned(),
            data,
        };
        keeper.restart();
        keeper
    }

    /// Kills the process, if it runs, and starts it again on its disk.
    fn restart(&mut self) {
        self.process = None;
        let data = self.data.to_str().unwrap();
        let process = lender(&self.address, &["--data", data]);
        self.address = process.address.clone();
        self.process = Some(process);
    }
}

impl UsersTestbed {
    /// Makes a new volume with `file_system` on it, attached and mounted. `None`: the machine lacks
    /// something, and the test printed that it is skipped.
    pub(crate) fn new(test: &str, file_system: FileSystem, programs: &[&str]) -> Option<UsersTestbed> {
        UsersTestbed::with(test, file_system, programs, AttachChoice::Usual)
    }

    /// The same with a volume that takes a write for complete when either lender has it.
    pub(crate) fn with_any(test: &str, file_system: FileSystem, programs: &[&str]) -> Option<UsersTestbed> {
        UsersTestbed::with(test, file_system, programs, AttachChoice::Any)
    }

    /// The same on two disks: a data lender keeps a copy.
    pub(crate) fn kept_twice(test: &str, file_system: FileSystem) -> Option<UsersTestbed> {
        UsersTestbed::with(test, file_system, &[], AttachChoice::KeptTwice)
    }

    /// The same with `any`, and writes multicast to both lenders.
    pub(crate) fn by_multicast(test: &str, file_system: FileSystem) -> Option<UsersTestbed> {
        UsersTestbed::with(test, file_system, &[], AttachChoice::Multicast)
    }

    fn with(
        test: &str,
        file_system: FileSystem,
        programs: &[&str],
        way: AttachChoice,
    ) -> Option<UsersTestbed> {
        let lacking = has_loop_devices()
            .and_then(|()| file_system.can())
            .and_then(|()| programs.iter().try_for_each(|program| has(program)));
        if let Err(missing) = lacking {
            skipped(test, &missing);
            return None;
        }
        let group = (way == AttachChoice::Multicast).then(free_group);
        let more: &[&str] = match &group {
            Some(group) => &["--multicast", group],
            None => &[],
        };
        let lenders = vec![
            lender("tcp://127.0.0.1:0", more),
            lender("tcp://127.0.0.1:0", more),
        ];
        let directory = tempfile::Builder::new()
            .prefix("netram-users-")
            .tempdir()
            .unwrap();
        // Databases run as users of their own, and must get through to what is theirs.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711)).unwrap();
        let keeper =
            (way == AttachChoice::KeptTwice).then(|| VolumeProcess::start(directory.path().join("kept")));
        let mut site = UsersTestbed {
            directory,
            file_system,
            lenders,
            retired: None,
            lost: None,
            keeper,
            id: String::new(),
        };
        site.create(way, group.as_deref());
        fs::create_dir(site.mounted()).unwrap();
        site.attach();
        file_system.make(&site.device());
        site.mount();
        Some(site)
    }

    /// Creates the volume, with this fixture's lenders.
    fn create(&mut self, way: AttachChoice, group: Option<&str>) {
        let rule = match way {
            AttachChoice::Usual | AttachChoice::KeptTwice => "all",
            AttachChoice::Any | AttachChoice::Multicast => "any",
        };
        let mut create = vec![
            "create",
            "db",
            "--size",
            VOLUME,
            "--journal-size",
            JOURNAL,
            "--insecure",
            "--rule",
            rule,
            "--json",
        ];
        for lender in &self.lenders {
            create.extend(["--lender", &lender.address]);
        }
        if let Some(keeper) = &self.keeper {
            create.extend(["--data-lender", &keeper.address]);
        }
        if let Some(group) = group {
            create.extend(["--multicast", group, "--datagram", "1400"]);
        }
        let made = self.disk(&create);
        assert_eq!(made.code, 0, "{}{}", made.out, made.err);
        let made: Value = serde_json::from_str(&made.out).unwrap();
        self.id = made["id"].as_str().unwrap().to_owned();
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where the volume is mounted.
    pub(crate) fn mounted(&self) -> PathBuf {
        self.path("mount")
    }

    fn device(&self) -> String {
        self.path("run/dev/db").display().to_string()
    }

    /// Writes that the device has completed, ever.
    pub(crate) fn writes(&self) -> u64 {
        let device = fs::canonicalize(self.device()).unwrap();
        let name = device.file_name().unwrap().to_str().unwrap();
        let counts = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        counts.split_whitespace().nth(4).unwrap().parse().unwrap()
    }

    /// Bytes of the device.
    pub(crate) fn bytes(&self) -> u64 {
        let said = tool("blockdev", &["--getsize64", &self.device()]).unwrap();
        said.trim().parse().unwrap()
    }

    /// Blocks of the file system that nothing is in.
    pub(crate) fn free_blocks(&self) -> u64 {
        rustix::fs::statvfs(self.mounted()).unwrap().f_bfree
    }

    /// The volume is as large from here on, and so is its device.
    pub(crate) fn grow(&self, bytes: u64) {
        let grown = self.disk(&["grow", "db", "--size", &bytes.to_string()]);
        assert_eq!(grown.code, 0, "{}{}", grown.out, grown.err);
    }

    /// Kills the device's server alone; returns when another has taken its place.
    pub(crate) fn kill_server(&self) {
        let server = |attached: Vec<Value>| attached[0]["attached"]["server"]["id"].clone();
        let killed = server(self.attached());
        kill(&killed);
        until("another server has taken over", || {
            server(self.attached()) != killed
        });
    }

    /// Unmounted and detached as its user would, then attached and mounted again.
    pub(crate) fn reattach(&self) {
        self.unmount();
        self.detach();
        self.attach();
        self.file_system.check(&self.device(), &self.mounted());
        self.mount();
    }

    fn detach(&self) {
        let detached = self.disk(&["detach", "db"]);
        assert_eq!(detached.code, 0, "{}{}", detached.out, detached.err);
    }

    fn disk(&self, arguments: &[&str]) -> CommandOutput {
        let mut command = netram();
        command
            .arg("volume")
            .args(arguments)
            .current_dir(self.directory.path());
        finish(command.env("NETRAM_VOLUME_RUN", self.path("run")))
    }

    /// Returns what is attached.
    fn attached(&self) -> Vec<Value> {
        let listed = self.disk(&["list", "--json"]).out;
        serde_json::from_str(&listed).unwrap_or_default()
    }

    /// Attaches the volume. A supervisor that is about to end may still hold the name for a moment.
    fn attach(&self) {
        let mut ran = self.disk(&["attach", "db", "--way", "fuse"]);
        until("the volume is attached", || {
            let early = ran.err.contains("being attached or detached");
            if early {
                ran = self.disk(&["attach", "db", "--way", "fuse"]);
            }
            !early
        });
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    }

    fn mount(&self) {
        self.file_system.mount(&self.device(), &self.mounted());
    }

    fn unmount(&self) {
        let directory = self.mounted();
        // Files of a killed program are closed a moment after it is gone from the process table.
        let mut last = Ok(String::new());
        until("the file system is unmounted", || {
            last = tool("umount", &[directory.to_str().unwrap()]);
            !last.as_ref().is_err_and(|error| error.contains("busy"))
        });
        last.unwrap();
    }

    /// Kills supervisor and server of the device, as if the client's machine had died. Programs that write
    /// get errors.
    pub(crate) fn crash(&self) {
        self.crash_after(|| ());
    }

    /// Crashes the volume, and returns what `look` read just before: everything acknowledged by then. It is
    /// not read afterwards, because while a file system's journal fails under several callers, Linux reports
    /// a sync as done to one whose commit failed for another.
    pub(crate) fn crash_after<T>(&self, look: impl FnOnce() -> T) -> T {
        let attached = self.attached();
        let seen = look();
        for entry in attached {
            // The supervisor first: it might start another server.
            for part in ["supervisor", "server"] {
                kill(&entry["attached"][part]["id"]);
            }
        }
        seen
    }

    /// Gives an order to the journal of the volume, which is open, and waits until it is carried out.
    pub(crate) fn order(&self, arguments: &[&str]) {
        let mut command = netram();
        command
            .args(["journal", arguments[0], "db"])
            .args(&arguments[1..])
            .current_dir(self.directory.path());
        let ran = finish(&mut command);
        assert_eq!(ran.code, 0, "{arguments:?}: {}{}", ran.out, ran.err);
    }

    /// Adds a lender as a third member.
    pub(crate) fn add_lender(&mut self, wait: &[&str]) {
        let new = lender("tcp://127.0.0.1:0", &[]);
        self.order(&[&["add-lender", &new.address, "--members", "3"], wait].concat());
        self.lenders.push(new);
    }

    /// Removes the lender that has been one for longest, and lets it die with its memory.
    pub(crate) fn remove_lender(&mut self) {
        let old = self.lenders.remove(0);
        self.order(&["remove-lender", &old.address, "--members", "2", "--wait", "180s"]);
    }

    /// Lets lenders come and go, and the rule change, each to its end. Two lenders are left.
    pub(crate) fn exchange_lenders(&mut self) {
        const WAIT: [&str; 2] = ["--wait", "180s"];
        self.add_lender(&WAIT);
        while self.lenders.len() > 2 {
            self.remove_lender();
        }
        self.order(&["set", "--rule", "any", WAIT[0], WAIT[1]]);
        self.order(&["set", "--rule", "all", WAIT[0], WAIT[1]]);
    }

    /// Begins a change and does not wait for it. Whatever a crash finds, the lenders are there.
    pub(crate) fn begin_change(&mut self, joins: bool) {
        if joins {
            return self.add_lender(&[]);
        }
        self.add_lender(&["--wait", "180s"]);
        let old = self.lenders.remove(0);
        self.order(&["remove-lender", &old.address, "--members", "2"]);
        self.retired = Some(old);
    }

    /// One of the two lenders dies, with its memory. The other one has everything, too.
    pub(crate) fn lose_lender(&mut self, which: u64) {
        let lender = self.lenders.remove(which as usize % self.lenders.len());
        self.lost = Some(lender.address.clone());
    }

    /// Starts another lender in the lost one's place, with an empty memory.
    pub(crate) fn replace_lender(&mut self) {
        if let Some(address) = self.lost.take() {
            self.lenders.push(lender(&address, &[]));
        }
    }

    /// The data lender's process is killed, and starts again on its disk.
    pub(crate) fn restart_keeper(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            keeper.restart();
        }
    }

    /// Returns the number of datagrams that each lender received.
    pub(crate) fn datagrams(&self) -> Vec<u64> {
        let mut status = netram();
        status.args(["lender", "status", "--json", "--insecure"]);
        status.args(self.lenders.iter().map(|lender| &lender.address));
        let answers: Value = serde_json::from_str(&finish(&mut status).out).unwrap_or_default();
        let count = |answer: &Value| answer["report"]["counters"]["datagrams"].as_u64().unwrap_or(0);
        answers.as_array().into_iter().flatten().map(count).collect()
    }

    /// Whether the data lender has all that the client's disk has, as far as the lenders do not have it.
    pub(crate) fn is_kept(&self) -> bool {
        let shown = self.disk(&["status", "db", "--json"]).out;
        let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
        shown["live"]["data_lender"]["in_service"] == true
    }

    /// After a crash: loses the client's disk, and restores its volume from the data lender.
    pub(crate) fn lose_disk(&self) {
        fs::remove_dir_all(self.path("db")).unwrap();
        let keeper = self.keeper.as_ref().expect("there is a data lender");
        let mut restore = vec![
            "restore",
            "db",
            "--volume",
            &self.id,
            "--from",
            &keeper.address,
            "--insecure",
            "--client-is-off",
        ];
        for lender in &self.lenders {
            restore.extend(["--lender", &lender.address]);
        }
        let restored = self.disk(&restore);
        assert_eq!(restored.code, 0, "{}{}", restored.out, restored.err);
    }

    /// After a crash: the volume recovered, the file system clean by its own checker, and mounted.
    pub(crate) fn recover(&self) {
        self.unmount();
        self.attach();
        self.file_system.check(&self.device(), &self.mounted());
        self.mount();
    }

    /// The same without its own checker, which takes a while.
    pub(crate) fn recover_unchecked(&self) {
        self.unmount();
        self.attach();
        self.mount();
    }

    /// Waits until every lender is a member, which holds what is written.
    pub(crate) fn wait_for_members(&self) {
        until("all lenders are members", || {
            let shown = self.disk(&["status", "db", "--json"]).out;
            let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
            let lenders = shown["live"]["lenders"].as_array();
            lenders.is_some_and(|lenders| {
                lenders.len() == self.lenders.len() && lenders.iter().all(|lender| lender["member"] == true)
            }) && shown["live"]["journal"]["blocked"].is_null()
        });
    }

    /// Closes everything as a user would, and checks it once more.
    pub(crate) fn close(self) {
        self.unmount();
        self.detach();
        let scrubbed = self.disk(&["check", "db"]);
        assert_eq!(scrubbed.code, 0, "{}{}", scrubbed.out, scrubbed.err);
    }
}

impl Drop for UsersTestbed {
    fn drop(&mut self) {
        // Of a test that failed: a server that is stuck would hold up the unmounting for ever, so it goes
        // first.
        self.crash();
        let _ = tool("umount", &["--lazy", self.mounted().to_str().unwrap_or("")]);
    }
}

/// Returns a multicast group that no other test on this machine has.
fn free_group() -> String {
    let free = std::net::UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.local_addr());
    format!("239.190.5.1:{}%lo", free.unwrap().port())
}

fn lender(listen: &str, more: &[&str]) -> LenderProcess {
    let name = MADE.fetch_add(1, Ordering::Relaxed).to_string();
    let fixed = ["--listen", listen, "--insecure", "--domain", "ups-1"];
    LenderProcess::start(&name, &[&fixed, more].concat())
}

/// Says that a test cannot be run here, past the test harness.
pub(crate) fn skipped(test: &str, missing: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}

/// Gives a directory to the user that a database runs as.
pub(crate) fn give_to(user: &str, directory: &Path) {
    tool("chown", &[user, directory.to_str().unwrap()]).unwrap();
}

fn kill(process: &Value) {
    let number = process.as_i64().and_then(|number| i32::try_from(number).ok());
    if let Some(pid) = number.and_then(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
        reap(pid);
    }
}
