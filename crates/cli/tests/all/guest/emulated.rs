//! A guest under QEMU, for a kernel that the package has no User-mode Linux of: a whole machine, emulated,
//! whose root is this machine's, read-only (virtiofs). A disk of its own and the lenders of this machine
//! outlive it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::faults::harness::process::tool;
use crate::guest::machine::{Guest, SHARED, SHARED_FREE};

const EMULATOR: &str = "qemu-system-x86_64";
/// Places of the program that serves this machine's files to the guest.
const FILES: [&str; 2] = ["/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd"];
/// Longest silence of a machine that is emulated while it boots.
const BOOT_PATIENCE: Duration = Duration::from_secs(120);
const FILES_PATIENCE: Duration = Duration::from_secs(30);
const MEMORY: &str = "512M";
/// The first process of a guest that takes commands only.
pub(crate) const INIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/guest/emulated.sh");
/// Variable with the directory of a kernel and its modules, as `scripts/guest.sh` makes it.
const KERNEL: &str = "NETRAM_GUEST_KERNEL";
const KERNEL_DEFAULT: &str = "/var/cache/netram/guest-kernel";
/// This machine's loopback, as guests see it.
pub(crate) const HOST: &str = "10.0.2.2";

/// A kernel that has ublk, unpacked from its package.
pub(crate) struct Kernel {
    image: PathBuf,
    modules: PathBuf,
    /// The program that serves files.
    files: &'static str,
}

impl Kernel {
    /// `Err`: what this machine lacks.
    pub(crate) fn find() -> Result<Kernel, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("this is not root".into());
        }
        let directory = std::env::var(KERNEL).unwrap_or_else(|_| KERNEL_DEFAULT.into());
        let only = |inside: &str, name: &str| {
            let inside = Path::new(&directory).join(inside);
            let mut entries = fs::read_dir(&inside).into_iter().flatten().flatten();
            let found = entries.find(|entry| entry.file_name().to_string_lossy().starts_with(name));
            let missing = || {
                format!(
                    "{} has no {name}* (`make guest` fetches a kernel; {KERNEL} names another place)",
                    inside.display()
                )
            };
            found.map(|entry| entry.path()).ok_or_else(missing)
        };
        let files = FILES.into_iter().find(|program| Path::new(program).exists());
        let kernel = Kernel {
            image: only("boot", "vmlinuz-")?,
            modules: only("lib/modules", "")?.join("kernel"),
            files: files.ok_or_else(|| format!("there is no {}", FILES.join(" or ")))?,
        };
        for driver in ["drivers/block/ublk_drv.ko.xz", "drivers/net/virtio_net.ko.xz"] {
            let driver = kernel.modules.join(driver);
            let found = driver.metadata();
            found.map_err(|error| format!("{}: {error}", driver.display()))?;
        }
        for program in [EMULATOR, "mkfs.ext4", "setpriv", "insmod", "fio", "blkdiscard"] {
            tool("which", &[program]).map_err(|_| format!("there is no `{program}`"))?;
        }
        let free = rustix::fs::statvfs(SHARED).map_err(|errno| format!("{SHARED}: {errno}"))?;
        if free.f_bavail * free.f_frsize < SHARED_FREE {
            return Err(format!("{SHARED} has less than {} MiB free", SHARED_FREE >> 20));
        }
        Ok(kernel)
    }

    /// Boots it with the disk `disk`. `directory` is for sockets. `Err`: what went wrong.
    pub(crate) fn boot(&self, directory: &Path, disk: &Path) -> Result<Guest, String> {
        self.boot_with(directory, disk, INIT, "", &[])
    }

    /// Does the same with another first process, which finds `words` on the kernel's command line, and `more`
    /// devices in the emulator's arguments.
    pub(crate) fn boot_with(
        &self,
        directory: &Path,
        disk: &Path,
        init: &str,
        words: &str,
        more: &[String],
    ) -> Result<Guest, String> {
        let socket = directory.join("files");
        let files = serve_files(self.files, &socket)?;
        let memory = format!("memory-backend-memfd,id=memory,size={MEMORY},share=on");
        let files_socket = format!("socket,id=files,path={}", socket.display());
        let disk = format!(
            "id=disk,file={},format=raw,if=none,cache=writeback",
            disk.display()
        );
        let line = format!(
            "root=root rootfstype=virtiofs ro init={init} console=ttyS0 quiet panic=-1 {words} netram.modules={}",
            self.modules.display()
        );
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", EMULATOR, "-nodefaults", "-no-user-config"]);
        command.args([
            "-machine",
            "q35",
            "-accel",
            "tcg,thread=single",
            "-cpu",
            "max",
            "-smp",
            "2",
        ]);
        command.args(["-m", MEMORY, "-object", &memory, "-numa", "node,memdev=memory"]);
        command.args([
            "-chardev",
            &files_socket,
            "-device",
            "vhost-user-fs-pci,chardev=files,tag=root",
        ]);
        // Before others, so that it is the guest's first.
        command.args(["-drive", &disk, "-device", "virtio-blk-pci,drive=disk"]);
        command.args([
            "-netdev",
            "user,id=net",
            "-device",
            "virtio-net-pci,netdev=net,romfile=",
        ]);
        command
            .args(["-display", "none", "-no-reboot", "-serial", "stdio"])
            .args(more);
        command.arg("-kernel").arg(&self.image).args(["-append", &line]);
        Guest::start(&mut command, EMULATOR, Some(files), BOOT_PATIENCE)
    }
}

/// Begins to have `program` serve this machine's files at `socket`.
fn serve_files(program: &str, socket: &Path) -> Result<Child, String> {
    // One of an earlier guest's.
    let _ = fs::remove_file(socket);
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "KILL",
        program,
        "-o",
        "source=/",
        "-o",
        "sandbox=chroot",
    ]);
    command.args(["-o", "cache=always"]);
    command.arg(format!("--socket-path={}", socket.display()));
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut files = command.spawn().map_err(|error| format!("{program}: {error}"))?;
    let deadline = Instant::now() + FILES_PATIENCE;
    while !socket.exists() {
        if Instant::now() > deadline || files.try_wait().is_ok_and(|ended| ended.is_some()) {
            let _ = files.kill();
            let _ = files.wait();
            return Err(format!("{program} does not serve files here"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(files)
}
