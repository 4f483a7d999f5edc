//! A directory that `netram mount` serves, with its lenders.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

use super::disk::LoopDisk;
use super::{CommandOutput, LenderProcess, finish, netram, start};

/// Whether this machine cannot mount. If so, prints why the test is skipped.
pub fn cannot_mount() -> bool {
    let missing = match (
        rustix::process::geteuid().is_root(),
        Path::new("/dev/fuse").exists(),
    ) {
        (true, true) => return false,
        (false, _) => "root",
        (true, false) => "/dev/fuse (`modprobe fuse`)",
    };
    super::skipped(format_args!("mounting needs {missing}"));
    true
}

/// Whether this kernel sends requests again that a dead server left unanswered (Linux 6.9).
pub fn can_survive() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|number| number.parse::<u32>().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= (6, 9)
}

/// Whether no mount outlives its server here. If so, prints why the test is skipped.
pub fn cannot_survive() -> bool {
    let cannot = !can_survive();
    if cannot {
        super::skipped("a mount outlives its server since Linux 6.9");
    }
    cannot
}

/// Waits until `so` holds; a machine may be busy with other tests.
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !so() {
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A directory with a journal and lenders, mounted by its own processes.
pub struct MountFixture {
    pub directory: TempDir,
    pub lenders: Vec<LenderProcess>,
    /// Address of a lender that was lost.
    lost: Option<String>,
    name: String,
    /// Command that starts the server, given before the server's own command line.
    wrap: Vec<String>,
    pub server: Option<Child>,
    pub disk: Option<LoopDisk>,
}

impl MountFixture {
    /// A fixture with `lenders` lenders, all of which must hold a write, and a journal of size `journal`.
    pub fn new(name: &str, lenders: usize, journal: &str) -> MountFixture {
        // Not in /tmp, which may be memory.
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        MountFixture::with(directory, None, name, lenders, journal)
    }

    /// A fixture with one lender, whose server is started by the command `wrap`, with further arguments
    /// `words`.
    pub fn wrapped(name: &str, wrap: &[&str], user: Option<u32>, words: &[&str]) -> MountFixture {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut mounted = MountFixture::with(directory, None, name, 0, "4MiB");
        let socket = format!("unix:{}/lender", mounted.directory.path().display());
        mounted.lenders.push(lender(name, &socket));
        mounted.wrap = wrap.iter().map(|word| (*word).to_owned()).collect();
        if let Some(user) = user {
            for path in [
                mounted.directory.path(),
                mounted.dir().as_path(),
                mounted.directory.path().join("lender").as_path(),
            ] {
                std::os::unix::fs::chown(path, Some(user), Some(user)).unwrap();
            }
        }
        let own = [
            "--journal-size",
            "4MiB",
            "--insecure",
            "--one-domain",
            "--members",
            "1",
            "--lender",
        ];
        let words = own
            .iter()
            .copied()
            .chain([&socket[..]])
            .chain(words.iter().copied());
        let words: Vec<String> = words.map(str::to_owned).collect();
        mounted.mount_with(&words);
        mounted
    }

    /// Path of the catalog.
    pub fn catalog(&self) -> PathBuf {
        self.journal().join("catalog")
    }

    /// Waits for a checkpoint of everything done before.
    pub fn wait_for_checkpoint(&self) {
        // The first checkpoint may have begun before.
        for _ in 0..2 {
            let before = fs::metadata(self.catalog()).unwrap().modified().unwrap();
            wait_until("a checkpoint", || {
                // A checkpoint without changes writes no catalog.
                let _ = fs::write(self.dir().join("touched"), b"");
                fs::metadata(self.catalog()).is_ok_and(|there| there.modified().unwrap() > before)
            });
        }
    }

    pub fn with(
        directory: TempDir,
        disk: Option<LoopDisk>,
        name: &str,
        lenders: usize,
        journal: &str,
    ) -> MountFixture {
        let lenders = (0..lenders).map(|number| {
            let socket = format!("unix:{}/lender-{number}", directory.path().display());
            lender(name, &socket)
        });
        let mut mounted = MountFixture {
            lenders: lenders.collect(),
            directory,
            lost: None,
            name: name.to_owned(),
            wrap: Vec::new(),
            server: None,
            disk,
        };
        fs::create_dir(mounted.dir()).unwrap();
        let mut words = vec![
            "--journal-size".to_owned(),
            journal.to_owned(),
            "--insecure".to_owned(),
        ];
        words.extend(["--one-domain", "--patience", "2s"].map(str::to_owned));
        for lender in &mounted.lenders {
            words.extend(["--lender".to_owned(), lender.address.clone()]);
        }
        words.extend(["--members".to_owned(), mounted.lenders.len().to_string()]);
        if !mounted.lenders.is_empty() {
            mounted.mount_with(&words);
        }
        mounted
    }

    pub fn dir(&self) -> PathBuf {
        self.root().join("dir")
    }

    pub fn journal(&self) -> PathBuf {
        self.root().join("journal")
    }

    /// Directory of mount and journal: a disk of their own, if they have one.
    fn root(&self) -> PathBuf {
        match &self.disk {
            Some(disk) => disk.at.clone(),
            None => self.directory.path().to_path_buf(),
        }
    }

    fn command(&self) -> Command {
        let mut command = self.program();
        command
            .args(["mount", "attach"])
            .arg(self.dir())
            .arg("--on")
            .arg(self.journal());
        command.arg("--with-parent");
        command
    }

    /// The program, started as the server is.
    pub fn program(&self) -> Command {
        let own = netram();
        let Some((first, rest)) = self.wrap.split_first() else {
            return own;
        };
        let mut command = Command::new(first);
        command.args(rest).arg(own.get_program()).stdin(Stdio::null());
        for (name, _) in own.get_envs() {
            command.env_remove(name);
        }
        command
    }

    /// Mounts the directory again and waits until it is mounted. Returns the output.
    pub fn mount(&mut self) -> String {
        self.mount_with(&[])
    }

    pub fn mount_with(&mut self, words: &[String]) -> String {
        let mut command = self.command();
        command.args(words).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut server = start(&mut command);
        let mut said = String::new();
        for line in BufReader::new(server.stdout.take().unwrap()).lines() {
            let line = line.unwrap();
            said.push_str(&line);
            said.push('\n');
            if line.starts_with("mounted ") {
                self.server = Some(server);
                if self.lenders.is_empty() || fs::read_dir(self.dir()).is_ok() {
                    self.wait_for_members();
                }
                return said;
            }
        }
        let mut error = String::new();
        server.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        server.wait().unwrap();
        panic!("it was not mounted: {error}");
    }

    /// Waits for the members; until they have joined, commits wait for the disk.
    pub fn wait_for_members(&self) {
        let probe = self.dir().join("probe");
        for _ in 0..200 {
            fs::write(&probe, b"probe").unwrap();
            fs::File::open(&probe).unwrap().sync_all().unwrap();
            let joined = self.lenders.iter().all(|lender| {
                let journals = lender.status()["journals"].clone();
                journals.as_array().is_some_and(|journals| !journals.is_empty())
            });
            if joined {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        fs::remove_file(&probe).unwrap();
    }

    /// Error output of a mount that must fail.
    pub fn refused(&self) -> String {
        let ran = finish(&mut self.command());
        assert_ne!(ran.code, 0, "{}", ran.out);
        ran.err
    }

    /// The process that serves the directory: `netram mount attach` itself with `--restarts 0`, else one that
    /// it supervises.
    pub fn server_id(&self) -> Pid {
        let lock = fs::read_to_string(self.journal().join("lock")).unwrap();
        Pid::from_raw(lock.trim().parse().unwrap()).expect("the lock names a process")
    }

    /// Kills the server alone, and waits until its supervisor has put another in its place.
    pub fn kill_server(&self) {
        let killed = self.server_id();
        kill_process(killed, Signal::KILL).unwrap();
        let lock = self.journal().join("lock");
        wait_until("another server opens the journal", || {
            let named = fs::read_to_string(&lock).unwrap_or_default();
            named
                .trim()
                .parse()
                .is_ok_and(|id: i32| Pid::from_raw(id) != Some(killed))
        });
    }

    /// Kills the server with SIGKILL, and before it its supervisor, so that there is no other. Waits until
    /// both are gone.
    pub fn kill(&mut self) {
        let mut supervisor = self.server.take().expect("it is mounted");
        let server = pidfd_open(self.server_id(), PidfdFlags::empty());
        supervisor.kill().unwrap();
        supervisor.wait().unwrap();
        // It is gone already if it was the same process, or ended with its supervisor.
        let Ok(server) = server else { return };
        let _ = pidfd_send_signal(&server, Signal::KILL);
        let mut end = [PollFd::new(&server, PollFlags::IN)];
        retry_on_intr(|| poll(&mut end, None)).unwrap();
    }

    /// Kills a lender and discards its memory.
    pub fn lose_lender(&mut self, which: u64) {
        let lender = self.lenders.remove(which as usize % self.lenders.len());
        self.lost = Some(lender.address.clone());
    }

    /// Starts a lender with empty memory in place of the lost one.
    pub fn replace_lender(&mut self) {
        if let Some(address) = self.lost.take() {
            self.lenders.push(lender(&self.name, &address));
        }
    }

    pub fn unmount(&mut self) -> CommandOutput {
        let ran = finish(self.program().args(["mount", "detach"]).arg(self.dir()));
        if ran.code == 0 {
            let ended = self.server.take().expect("it is mounted").wait().unwrap();
            assert!(ended.success(), "{ended:?}");
        }
        ran
    }

    pub fn recover(&self) -> CommandOutput {
        finish(self.program().args(["mount", "recover"]).arg(self.dir()))
    }
}

fn lender(test: &str, address: &str) -> LenderProcess {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let name = format!("{test}-{}", MADE.fetch_add(1, Ordering::Relaxed));
    LenderProcess::start(&name, &["--insecure", "--listen", address])
}

impl Drop for MountFixture {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // Its server ends with it.
            let _ = server.kill();
            let _ = server.wait();
        }
        let _ = unmount(self.dir(), UnmountFlags::DETACH);
        // The directory is immutable and would remain, unless its whole disk is removed.
        let _ = finish(Command::new("chattr").arg("-i").arg(self.dir()));
    }
}
