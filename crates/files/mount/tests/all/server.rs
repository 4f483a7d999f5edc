//! A mount that is served by a process of its own, and continued by another when that one is killed. The
//! process is this test program: it runs the test [`server`], which does nothing otherwise.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use netram_mount::{BackingHandles, Mount, MountOptions, create_journal, unmount};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

/// Names the place of the mount to the server's process.
const PLACE: &str = "NETRAM_TEST_MOUNT";
/// Says that the server continues a mount.
const CONTINUES: &str = "NETRAM_TEST_CONTINUES";
/// A program that waits longer for a server will wait for ever.
const PATIENCE: Duration = Duration::from_secs(120);

const OPTIONS: MountOptions = MountOptions {
    durability: netram_proto::port::Durability::Disk,
    checkpoint: Duration::from_millis(200),
    threads: 3,
    passthrough: false,
    accept_loss: false,
    modelled_sync_delay: Duration::ZERO,
    survive: true,
    on_failed_sync: None,
    restarts: 0,
    io_uring: false,
};

/// The process that serves, when it is started as one.
#[test]
fn server() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let (dir, journal) = (place.join("dir"), place.join("journal"));
    let socket = std::io::stdin();
    let mount = match std::env::var_os(CONTINUES) {
        Some(_) => {
            let backing = receive(socket.as_fd()).expect("the test gives the directory");
            let control = receive(socket.as_fd()).expect("the test gives the kernel's end");
            Mount::take_over(control, backing, &dir, &journal, OPTIONS)
                .expect("the mount continues")
                .0
        }
        None => {
            let mount = Mount::begin(&dir, &journal, OPTIONS).expect("the mount begins").0;
            send(socket.as_fd(), mount.control());
            mount
        }
    };
    mount.wait().expect("the directory is given back");
}

/// A mount, and the kernel's end of it that its servers share.
pub(crate) struct SurvivingMount {
    place: TempDir,
    control: Option<OwnedFd>,
    backing: Option<BackingHandles>,
    server: Option<Child>,
    /// Replies after which each server dies; `None`: it lives.
    replies: Option<u32>,
}

impl SurvivingMount {
    /// Mounts a directory. `None`: it cannot be here, which is said.
    pub(crate) fn begin(replies: Option<u32>) -> Option<SurvivingMount> {
        let skipped = |why: &str| {
            eprintln!("\nSKIPPED: {why}");
            None
        };
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            return skipped("mounting needs root and /dev/fuse (`modprobe fuse`)");
        }
        if replies.is_some() && Command::new("strace").arg("-V").output().is_err() {
            return skipped("killing a server at a reply needs strace");
        }
        // Not in /tmp, which may be memory.
        let place = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::create_dir(place.path().join("dir")).unwrap();
        create_journal(&place.path().join("journal"), 4 << 20).unwrap();
        let backing = BackingHandles::open(&place.path().join("dir"), 1).unwrap();
        let mut mount = SurvivingMount {
            place,
            control: None,
            backing: Some(backing),
            server: None,
            replies: None,
        };
        let socket = mount.start(false);
        mount.control = receive(socket.as_fd());
        if mount.control.is_none() {
            mount.end();
            return skipped("this kernel does not resend requests (Linux 6.9 does)");
        }
        mount.replies = replies;
        if replies.is_some() {
            mount.kill();
        }
        Some(mount)
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.place.path().join("dir")
    }

    fn start(&mut self, continues: bool) -> UnixStream {
        let (own, its) = UnixStream::pair().unwrap();
        let program = std::env::current_exe().unwrap();
        let mut command = match self.replies {
            None => Command::new(program),
            Some(replies) => {
                let mut command = Command::new("strace");
                let when = format!("inject=writev:signal=SIGKILL:when={replies}");
                command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=writev", "-e", &when]);
                command.arg(program);
                command
            }
        };
        command.args(["--exact", "server::server", "--nocapture", "--test-threads=1"]);
        command.env(PLACE, self.place.path().canonicalize().unwrap());
        if continues {
            command.env(CONTINUES, "1");
        }
        command
            .stdin(Stdio::from(OwnedFd::from(its)))
            .stdout(Stdio::null());
        // `strace` and its server are ended together.
        self.server = Some(command.process_group(0).spawn().unwrap());
        own
    }

    /// Kills the server and starts another.
    pub(crate) fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        self.take_over();
    }

    fn take_over(&mut self) {
        let socket = self.start(true);
        // Its disk does not fail, so all servers may have the same.
        let backing = self.backing.as_ref().map(|all| all.next().unwrap());
        send(socket.as_fd(), backing.as_ref().map(AsFd::as_fd));
        send(socket.as_fd(), self.control.as_ref().map(AsFd::as_fd));
    }

    /// Runs a program that uses the mount for `duration`, and starts another server whenever one has died.
    /// Returns the program's result and the number of servers. `between` runs now and then.
    pub(crate) fn supervise<R: Send + 'static>(
        &mut self,
        duration: Duration,
        program: impl FnOnce(&Path) -> R + Send + 'static,
        mut between: impl FnMut(&mut SurvivingMount),
    ) -> (R, u32) {
        let (dir, (done, is_done)) = (self.dir(), channel());
        let thread = std::thread::spawn(move || drop(done.send(program(&dir))));
        let (mut servers, until) = (0, Instant::now() + duration + PATIENCE);
        loop {
            match is_done.recv_timeout(Duration::from_millis(2)) {
                Ok(result) => {
                    thread.join().unwrap();
                    return (result, servers);
                }
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => {
                    thread.join().expect("the program succeeds");
                    unreachable!("a program that ends has a result");
                }
            }
            if Instant::now() > until {
                // The program's calls fail.
                self.control = None;
                self.server.take().iter_mut().for_each(end_group);
                panic!("the program waits in vain after {servers} servers");
            }
            if self.server.as_mut().unwrap().try_wait().unwrap().is_some() {
                servers += 1;
                self.take_over();
            }
            between(self);
        }
    }

    /// Unmounts the directory and returns its path: it has its files back.
    pub(crate) fn end(&mut self) -> PathBuf {
        if self.replies.take().is_some() {
            // The last server that dies at a reply needs some to give; the next one lives.
            let ask = |dir: &Path| (0..3).for_each(|_| assert!(rustix::fs::statvfs(dir).is_ok()));
            self.supervise(Duration::ZERO, ask, |_| ());
        }
        let dir = self.dir();
        // Another test's child may have copies of this program's files until it executes its own program.
        let until = Instant::now() + PATIENCE;
        while let Err(error) = unmount(&dir) {
            assert!(Instant::now() < until, "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.control = None;
        let ended = self.server.take().unwrap().wait().unwrap();
        assert!(ended.success(), "{ended}");
        dir
    }
}

impl Drop for SurvivingMount {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            end_group(&mut server);
            self.control = None;
            let _ = unmount(&self.dir());
        }
    }
}

fn end_group(server: &mut Child) {
    let _ = kill_process_group(Pid::from_child(server), Signal::KILL);
    let _ = server.wait();
}

fn send(socket: BorrowedFd<'_>, descriptor: Option<BorrowedFd<'_>>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.as_slice();
    assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
    sendmsg(socket, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).unwrap();
}

fn receive(socket: BorrowedFd<'_>) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 1];
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )
    .unwrap();
    let received = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    received.map(File::from).map(OwnedFd::from).next()
}
