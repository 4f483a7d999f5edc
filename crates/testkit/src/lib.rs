//! Helpers of the tests of netram's programs: they run programs as users do, with lenders, disks, mounts and
//! recoverable memory.
#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "helpers of tests, named for what they do")]
#![allow(clippy::new_without_default, reason = "each new one is a new directory")]

pub mod disk;
pub mod mounted;
pub mod port;
pub mod rvm;
pub mod shared;

use port::{ANY_PORT, reserve_port};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Output of a program, and its exit code.
pub struct CommandOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

/// The directory into which cargo builds programs: the parent of the one with this test program.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("the test program has a file");
    let deps = test.parent().expect("the test program is in a directory");
    deps.parent().expect("cargo builds tests into deps/").to_owned()
}

/// Path of the program `netram`.
pub fn program() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| file_of("netram", "netram-cli"))
}

fn file_of(name: &str, package: &str) -> String {
    let file = built().join(name);
    let file = file.to_str().expect("cargo's directory is UTF-8").to_owned();
    assert!(
        Path::new(&file).is_file(),
        "{file} is not built: cargo build --profile test -p {package}"
    );
    file
}

/// The program `netram`, without the settings of the user who runs the tests.
pub fn netram() -> Command {
    clean(Command::new(program()))
}

/// The program `netram-lab`, the same way.
pub fn lab() -> Command {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    clean(Command::new(
        PROGRAM.get_or_init(|| file_of("netram-lab", "netram-lab")),
    ))
}

/// A program without the settings of the user who runs the tests.
pub fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("NETRAM_")) {
        command.env_remove(name);
    }
    // A directory for tests, not the one where the user's programs record deleted journals.
    command.env("NETRAM_STATE_DIR", built().join("state-of-tests"));
    command.stdin(Stdio::null());
    command
}

/// Held while a process is started, and while a test closes files that it has locked. A child that has not
/// executed its program yet has copies of this process's files, and with them their locks.
pub fn forks() -> MutexGuard<'static, ()> {
    static FORKS: Mutex<()> = Mutex::new(());
    FORKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a command.
pub fn start(command: &mut Command) -> Child {
    let _alone = forks();
    command.spawn().expect("the program starts")
}

/// Runs a command to its end.
pub fn finish(command: &mut Command) -> CommandOutput {
    let child = start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    ran(child.wait_with_output().expect("it is our child"))
}

/// Runs the laboratory's program to its end.
pub fn run_lab<'a>(arguments: impl IntoIterator<Item = &'a str>) -> CommandOutput {
    finish(lab().args(arguments))
}

/// Runs the program to its end.
pub fn run<'a>(arguments: impl IntoIterator<Item = &'a str>) -> CommandOutput {
    finish(netram().args(arguments))
}

pub fn ran(output: Output) -> CommandOutput {
    let text = |bytes| String::from_utf8(bytes).expect("the program speaks UTF-8");
    CommandOutput {
        code: output.status.code().expect("the program was not killed"),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// Prints why a test is skipped, past the test harness, which would swallow it when the test passes.
pub fn skipped(why: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED: {why}");
}

/// A library of this workspace package that programs load. Cargo builds it only for its own package's tests,
/// so it is built here; `cargo xtask test` has done that already.
pub fn library(package: &str) -> PathBuf {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let directory = built();
    let library = directory.join(format!("lib{}.so", package.replace('-', "_")));
    if std::env::var_os("NETRAM_TEST_BUILT").is_some() {
        return library;
    }
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "test",
        Some(profile) => profile,
    };
    let mut command = Command::new("timeout");
    command.arg("500").arg(cargo).args(["build", "--quiet"]);
    command.args(["--package", package, "--profile", profile]);
    // Variables that cargo sets for this test's package would make build scripts run again, and much be
    // compiled twice.
    std::env::vars_os()
        .map(|(name, _)| name)
        .filter(|name| {
            name.to_str()
                .is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_"))
        })
        .for_each(|name| {
            command.env_remove(name);
        });
    let built = command.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(built.status.success(), "{built:?}");
    library
}

/// Writes `MemAvailable` of `bytes` into `proc`, for a lender that reads it there (`--proc`).
pub fn available(proc: &Path, bytes: u64) {
    let whole = proc.join("new");
    let meminfo = format!("MemTotal: 4194304 kB\nMemAvailable: {} kB\n", bytes / 1024);
    std::fs::write(&whole, meminfo).expect("the directory is the test's");
    std::fs::rename(whole, proc.join("meminfo")).expect("the directory is the test's");
}

/// A lender process, killed when dropped, with its memory removed.
pub struct LenderProcess {
    child: Child,
    pub address: String,
    /// Address for data sessions only, if there is one.
    pub data_address: Option<String>,
    store: PathBuf,
}

impl LenderProcess {
    /// Starts a lender with `arguments` beside those of every test, and waits until it listens.
    pub fn start(name: &str, arguments: &[&str]) -> LenderProcess {
        LenderProcess::with_memory("16MiB", name, arguments)
    }

    /// The same with another amount of memory.
    pub fn with_memory(memory: &str, name: &str, arguments: &[&str]) -> LenderProcess {
        LenderProcess::of_program(netram(), memory, name, arguments)
    }

    /// The same with another program, for instance one of an earlier release.
    pub fn of_program(mut command: Command, memory: &str, name: &str, arguments: &[&str]) -> LenderProcess {
        let name = format!("test-{}-{name}", std::process::id());
        let store = PathBuf::from(format!("/dev/shm/netram-{name}.mem"));
        let own_port = |argument: &&str| match *argument {
            ANY_PORT => reserve_port(),
            argument => argument.to_owned(),
        };
        let errors = tempfile::tempfile().expect("a file of our own");
        command
            .args([
                "lender",
                "serve",
                "--with-parent",
                "--memory",
                memory,
                "--name",
                &name,
                "--store",
            ])
            .arg(&store)
            .args(arguments.iter().map(own_port))
            // However little memory the test machine has free.
            .env("NETRAM_KEEP_FREE", "0")
            .env("NETRAM_PRESSURE", "0")
            .stdout(Stdio::piped())
            .stderr(errors.try_clone().expect("a descriptor"));
        let mut child = start(&mut command);
        let output = child.stdout.take().expect("the output is piped");
        let mut lender = LenderProcess {
            child,
            address: String::new(),
            data_address: None,
            store,
        };
        for line in BufReader::new(output).lines() {
            let line = line.expect("the lender speaks UTF-8");
            if let Some(address) = line.strip_prefix("data sessions ") {
                lender.data_address = Some(address.to_owned());
            } else if let Some(address) = line.strip_prefix("listening ") {
                lender.address = address.to_owned();
            }
            if line == "ready" {
                return lender;
            }
        }
        let mut said = String::new();
        let mut errors = errors;
        errors.rewind().expect("it is a file");
        errors.read_to_string(&mut said).expect("the lender speaks UTF-8");
        panic!("the lender ended before it was ready: {said}");
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The lender's status as JSON.
    pub fn status(&self) -> serde_json::Value {
        let ran = run(["lender", "status", "--insecure", "--json", &self.address]);
        let answers: serde_json::Value = serde_json::from_str(&ran.out).expect("the status is JSON");
        answers[0]["report"].clone()
    }

    /// Socket of its operator.
    pub fn operator(&self) -> PathBuf {
        let mut path = self.store.clone().into_os_string();
        path.push(".operator");
        path.into()
    }

    /// Directory of its memory.
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// Returns the exit code once it has ended by itself; as for [`stop`](Self::stop).
    pub fn ended(&mut self) -> Option<Option<i32>> {
        let status = self.child.try_wait().expect("it is our child");
        status.map(|status| status.code())
    }

    /// Sends a signal and waits for the end. Returns the exit code, or `None` if a signal killed the process.
    pub fn stop(&mut self, signal: rustix::process::Signal) -> Option<i32> {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .expect("it runs");
        self.child.wait().expect("it is our child").code()
    }
}

impl Drop for LenderProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.store);
        let _ = std::fs::remove_file(self.operator());
    }
}
