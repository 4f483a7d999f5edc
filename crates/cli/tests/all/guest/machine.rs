//! Two machines: this one, with a server in a network of its own, and a guest, which is a whole kernel in a
//! process.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::faults::harness::process::tool;
use crate::guest::part;

/// How long a guest or a server may be silent: the machine may be slow and busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest silence of a kernel that boots. It takes two seconds alone; one that cannot run here hangs instead
/// of ending.
const BOOT_PATIENCE: Duration = Duration::from_secs(20);
/// The kernel that is a process.
const KERNEL: &str = "linux.uml";
const MEMORY: &str = "192M";
/// Where guests have their memory, and how much must be free there for all that run at a time.
pub(crate) const SHARED: &str = "/dev/shm";
pub(crate) const SHARED_FREE: u64 = 1 << 30;
/// The first process, which takes commands.
const INIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/guest/init.sh");
const TAP: &str = "tap";
const HOST: &str = "10.78.0.1";
/// Its address at the guest's end.
pub(crate) const GUEST: &str = "10.78.0.2";
const PORT: u16 = 10809;

static NETWORKS: AtomicU32 = AtomicU32::new(0);

/// A network namespace with one cable to a guest; removed when dropped.
pub(crate) struct Cable {
    namespace: String,
}

impl Cable {
    /// `Err`: what this machine lacks.
    pub(crate) fn new() -> Result<Cable, String> {
        let number = NETWORKS.fetch_add(1, Ordering::Relaxed);
        let cable = Cable {
            namespace: format!("ng{:x}{number:x}", std::process::id()),
        };
        let name = &cable.namespace;
        tool("ip", &["netns", "add", name])?;
        tool("ip", &["-n", name, "tuntap", "add", TAP, "mode", "tap"])?;
        tool(
            "ip",
            &["-n", name, "address", "add", &format!("{HOST}/24"), "dev", TAP],
        )?;
        tool("ip", &["-n", name, "link", "set", TAP, "up"])?;
        Ok(cable)
    }

    /// Where a server of this end listens.
    pub(crate) fn address() -> String {
        format!("tcp://{HOST}:{PORT}")
    }

    /// Returns the command that makes the guest's device `/dev/nbd0` of that server's export.
    pub(crate) fn client(connections: u32) -> String {
        format!("nbd-client {HOST} {PORT} /dev/nbd0 -N db -C {connections}")
    }

    /// The words that make a command run at this end.
    pub(crate) fn words(&self) -> Vec<String> {
        let command = self.here();
        let words = [command.get_program()].into_iter().chain(command.get_args());
        words.map(|word| word.to_string_lossy().into_owned()).collect()
    }

    /// The command that runs the one behind it at this end, and not longer than this test.
    fn here(&self) -> Command {
        // Not `ip netns exec`: that copies all mounts, and a disk that another test unmounts would stay
        // mounted there.
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace));
        command.args(["setpriv", "--pdeathsig", "KILL"]);
        command
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        let _ = tool("ip", &["netns", "delete", &self.namespace]);
    }
}

/// Checks what every guest needs; the error says what this machine lacks.
pub(crate) fn can_boot() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("this is not root".into());
    }
    let processor =
        std::fs::read_to_string("/proc/cpuinfo").map_err(|error| format!("/proc/cpuinfo: {error}"))?;
    if has_wide_state(&processor) {
        return Err("this processor has AMX, whose registers Debian's User-mode Linux cannot save: it dies in its first exec".into());
    }
    let version = tool(KERNEL, &["--version"]).map_err(|why| format!("{why} (package user-mode-linux)"))?;
    let driver = PathBuf::from(format!(
        "/usr/lib/uml/modules/{version}/kernel/drivers/block/nbd.ko"
    ));
    driver
        .metadata()
        .map_err(|error| format!("{}: {error}", driver.display()))?;
    let free = rustix::fs::statvfs(SHARED).map_err(|errno| format!("{SHARED}: {errno}"))?;
    if free.f_bavail * free.f_frsize < SHARED_FREE {
        return Err(format!("{SHARED} has less than {} MiB free", SHARED_FREE >> 20));
    }
    for program in [
        "nbd-client",
        "mkfs.ext4",
        "setpriv",
        "unshare",
        "strace",
        "insmod",
        "resize2fs",
    ] {
        tool("which", &[program]).map_err(|_| format!("there is no `{program}`"))?;
    }
    Ok(())
}

/// Whether the processor that the text describes has registers beyond those that User-mode Linux 6.1 knows
/// of.
fn has_wide_state(cpuinfo: &str) -> bool {
    cpuinfo
        .lines()
        .filter(|line| line.starts_with("flags"))
        .any(|line| line.split_whitespace().any(|flag| flag == "amx_tile"))
}

#[test]
fn a_processor_with_amx_is_told_from_one_without() {
    assert!(has_wide_state(
        "processor\t: 0\nflags\t\t: fpu amx_bf16 avx512f amx_tile amx_int8\n"
    ));
    assert!(!has_wide_state(
        "processor\t: 0\nmodel name\t: amx_tile\nflags\t\t: fpu avx512f\n"
    ));
}

/// A server of this end, killed when dropped.
pub(crate) struct Server {
    child: Child,
}

impl Server {
    /// Starts `netram volume serve`. With `slow_disk` each sync of the journal's file takes 200 ms longer, so
    /// that writes of that time are only in this process's memory and at the lender.
    pub(crate) fn of_volume(cable: &Cable, volume: &Path, slow_disk: bool) -> Server {
        let mut command = cable.here();
        if slow_disk {
            command.args(["strace", "-D", "-f", "-q", "--seccomp-bpf", "-o", "/dev/null"]);
            command.args([
                "-e",
                "trace=fdatasync",
                "-e",
                "inject=fdatasync:delay_enter=200000",
            ]);
        }
        command.args([crate::common::program(), "volume", "serve", "--insecure"]);
        command.args(["--name", "db", "--listen", &Cable::address()]);
        Server::start(command.arg(volume))
    }

    /// Serves a disk that forgets what is not flushed when it is killed.
    pub(crate) fn of_image(cable: &Cable, image: &Path) -> Server {
        let part = format!("serve {} {}", image.display(), Cable::address());
        let (program, arguments, (name, value)) = part::process(&part);
        let mut command = cable.here();
        Server::start(command.arg(program).args(arguments).env(name, value))
    }

    /// Starts a server by `command`, and waits until it is ready.
    pub(crate) fn start(command: &mut Command) -> Server {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut server = Server {
            child: child.expect("it starts"),
        };
        let output = server.child.stdout.take().expect("its output is a pipe");
        let ready = BufReader::new(output)
            .lines()
            .map_while(Result::ok)
            .any(|line| line == "ready");
        assert!(ready, "the server ended before it was ready");
        server
    }

    pub(crate) fn kill(mut self) {
        self.end();
    }

    /// Tells it to end, and waits until it has closed its volume.
    pub(crate) fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        assert!(self.child.wait().expect("it is our child").success());
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// A kernel with its processes, on a read-only view of this machine's files. Cut off when dropped.
pub(crate) struct Guest {
    child: Child,
    /// Process that serves the guest's root file system, if one does.
    files: Option<Child>,
    input: ChildStdin,
    said: Receiver<String>,
    /// All output, for a failed test's report.
    story: String,
}

impl Guest {
    /// Boots, and waits until it takes commands. `Err`: it cannot be had on this machine.
    pub(crate) fn boot(cable: Option<&Cable>, directory: &Path) -> Result<Guest, String> {
        Guest::boot_with(cable, directory, None)
    }

    /// The same with a disk, `/dev/ubda`.
    pub(crate) fn boot_with(
        cable: Option<&Cable>,
        directory: &Path,
        disk: Option<&Path>,
    ) -> Result<Guest, String> {
        let mut command = match cable {
            Some(cable) => cable.here(),
            None => Command::new("setpriv"),
        };
        if cable.is_none() {
            command.args(["--pdeathsig", "KILL"]);
        }
        // All of a guest's processes go with the first of them.
        command.args(["unshare", "--pid", "--fork", "--kill-child", KERNEL]);
        command.args([
            &format!("mem={MEMORY}"),
            "root=/dev/root",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
        ]);
        command.args([
            &format!("init={INIT}"),
            "con0=fd:0,fd:1",
            "con=null",
            "ssl=null",
            "quiet",
        ]);
        command.arg(format!("uml_dir={}", directory.display()));
        if let Some(disk) = disk {
            command.arg(format!("ubd0={}", disk.display()));
        }
        // Without `gro` it loses what the host sends in large pieces.
        if cable.is_some() {
            command.arg(format!("vec0:transport=tap,ifname={TAP},depth=128,gro=1"));
        }
        Guest::start(&mut command, KERNEL, None, BOOT_PATIENCE)
    }

    /// Starts `program` by `command`, and waits until it takes commands. `files` serves its root, and ends
    /// with it.
    pub(crate) fn start(
        command: &mut Command,
        program: &str,
        files: Option<Child>,
        patience: Duration,
    ) -> Result<Guest, String> {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = child.map_err(|error| format!("{program}: {error}"))?;
        let input = child.stdin.take().expect("its input is a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("its output is a pipe"));
        let (tell, said) = channel();
        std::thread::spawn(move || {
            let mut line = Vec::new();
            while matches!(output.read_until(b'\n', &mut line), Ok(1..)) {
                if tell
                    .send(String::from_utf8_lossy(&line).trim().to_owned())
                    .is_err()
                {
                    // The output is not needed, but the guest must not wait until it is read.
                    let _ = std::io::copy(&mut output.by_ref(), &mut std::io::sink());
                }
                line.clear();
            }
        });
        let mut guest = Guest {
            child,
            files,
            input,
            said,
            story: String::new(),
        };
        match guest.find_within(patience, |line| (line == "guest: ready").then_some(())) {
            Some(()) => Ok(guest),
            None => Err(format!("{program} ended before it had booted: {}", guest.story)),
        }
    }

    /// The next line that `wanted` takes; `None` when the guest has ended.
    fn find<T>(&mut self, wanted: impl FnMut(&str) -> Option<T>) -> Option<T> {
        self.find_within(PATIENCE, wanted)
    }

    /// The same, with this much silence at most.
    fn find_within<T>(&mut self, patience: Duration, mut wanted: impl FnMut(&str) -> Option<T>) -> Option<T> {
        loop {
            match self.said.recv_timeout(patience) {
                Ok(line) => {
                    let _ = writeln!(self.story, "{line}");
                    if let Some(found) = wanted(&line) {
                        return Some(found);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => panic!("the guest is silent: {}", self.story),
            }
        }
    }

    /// Gives a command, and does not wait for its end.
    pub(crate) fn tell(&mut self, command: &str) {
        let _ = writeln!(self.story, "$ {command}");
        writeln!(self.input, "{command}").expect("the guest listens");
    }

    /// Runs a command to its end. Returns its output and exit code.
    pub(crate) fn run(&mut self, command: &str) -> (String, i32) {
        self.tell(command);
        self.end_of_command()
    }

    /// Returns the rest of the running command's output, and its exit code.
    pub(crate) fn end_of_command(&mut self) -> (String, i32) {
        let mut said = String::new();
        let code = self.find(|line| {
            let code = line.strip_prefix("guest: done ");
            if code.is_none() && !line.is_empty() {
                let _ = writeln!(said, "{line}");
            }
            code.map(|code| code.parse().expect("an exit code"))
        });
        let code = code.unwrap_or_else(|| panic!("the guest has ended: {}", self.story));
        (said, code)
    }

    /// Runs a command that must succeed. Returns its output.
    pub(crate) fn must(&mut self, command: &str) -> String {
        let (said, code) = self.run(command);
        assert_eq!(code, 0, "{command}: {said}\nthe guest: {}", self.story);
        said
    }

    /// Waits until `count` more files are synced: how many are now.
    pub(crate) fn wait_for_synced(&mut self, count: u64) -> u64 {
        let mut left = count;
        let last = self.find(|line| {
            let number = part::acknowledged(line)?;
            left -= 1;
            (left == 0).then_some(number)
        });
        last.unwrap_or_else(|| panic!("the guest has ended: {}", self.story)) + 1
    }

    /// Waits until the guest has ended by itself, with this much silence at most.
    pub(crate) fn until_off(mut self, patience: Duration) {
        while self.find_within(patience, |_| None::<()>).is_some() {}
        let ended = self.child.wait().expect("it is our child");
        assert!(ended.success(), "{ended}: {}", self.story);
    }

    /// Ends all processes of the guest at once. Returns how many files were synced by then, if more than
    /// `synced`.
    pub(crate) fn cut(mut self, synced: u64) -> u64 {
        self.kill();
        let mut count = synced;
        // Its output ends with its last process.
        self.find(|line| {
            count = part::acknowledged(line).map_or(count, |number| number + 1);
            None::<()>
        });
        count
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(files) = &mut self.files {
            let _ = files.kill();
            let _ = files.wait();
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}
