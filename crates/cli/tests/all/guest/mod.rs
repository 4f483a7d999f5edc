//! The Linux kernel's own NBD client in a guest: a whole kernel in a process (User-mode Linux), with ext4 on
//! a volume that this machine serves, cut off while it writes.
//!
//! The guest's writer syncs small files and reports each on the console. Then all processes of the guest are
//! killed at once, as in a power cut; in some rounds the server too, and then the lender's bytes are needed.
//! Every file that the guest reported as synced must be there, and the file system clean.
//!
//! Needs root, `linux.uml` with its modules, `nbd-client` and a tap device; without them each test prints
//! `SKIPPED` and why. `NETRAM_GUEST_ROUNDS` multiplies the rounds, `NETRAM_GUEST_SEED` replays the moments,
//! as far as the machine's timing allows.

mod attached;
#[path = "../../../../block/attach/tests/all/device/cache.rs"]
#[allow(dead_code, reason = "its other users need more of it")]
mod cache;
mod emulated;
mod lender;
mod machine;
mod part;
mod systemd;
mod ublk;
mod vhost;

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use crate::common::{LenderProcess, finish, netram};
use crate::faults::harness::random::FaultsRandom;
use crate::guest::machine::{Cable, Guest, Server, can_boot};

const MIB: u64 = 1 << 20;
/// As the kernel's client is recommended to be used.
const CONNECTIONS: u32 = 4;
/// With blocks as this machine's way to the volume has them, too.
const MAKE: &str = "mkfs.ext4 -q -F -b 4096 /dev/nbd0";
const NBD: &str = "/dev/nbd0";
const COPY: &str = "dd if=/bin/sh of=/dev/nbd0 bs=4096 status=none";
const MOUNT: &str = "mount -t ext4 /dev/nbd0 /run/mount";

/// Fault of a round, beside cutting the guest off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// Only that.
    Guest,
    /// Kills the server a moment before.
    Server,
    /// The same, and its disk has been slow.
    SlowServer,
}

/// A directory, a lender, a volume, and a cable to guests.
struct GuestFixture {
    directory: tempfile::TempDir,
    cable: Cable,
    _lender: LenderProcess,
}

impl GuestFixture {
    /// `Err`: what this machine lacks.
    fn new(name: &str) -> Result<GuestFixture, String> {
        can_boot()?;
        let cable = Cable::new()?;
        let directory = tempfile::Builder::new()
            .prefix("netram-guest-")
            .tempdir()
            .unwrap();
        let listen = format!("unix:{}", directory.path().join("lender").display());
        let lender = LenderProcess::start(
            &format!("guest-{name}"),
            &["--listen", &listen, "--insecure", "--domain", "ups-1"],
        );
        let place = GuestFixture {
            directory,
            cable,
            _lender: lender,
        };
        let mut create = netram();
        create.args(["volume", "create", "--size", "64MiB", "--journal-size", "32MiB"]);
        create
            .args(["--insecure", "--lender", &listen])
            .arg(place.volume());
        let ran = finish(&mut create);
        assert_eq!(ran.code, 0, "{}", ran.err);
        Ok(place)
    }

    fn volume(&self) -> PathBuf {
        self.directory.path().join("db")
    }

    fn serve(&self, slow_disk: bool) -> Server {
        Server::of_volume(&self.cable, &self.volume(), slow_disk)
    }

    /// A guest that has the server's export as its device.
    fn boot(&self) -> Result<Guest, String> {
        let mut guest = Guest::boot(Some(&self.cable), self.directory.path())?;
        guest.must(&Cable::client(CONNECTIONS));
        Ok(guest)
    }

    /// Opens the volume as its next server will, and closes it: bytes that its recovery had from the lender.
    fn recover(&self) -> u64 {
        // Not in this process: a child that another test starts would have the volume's lock for a moment.
        let (program, arguments, (name, value)) =
            part::process(&format!("recover {}", self.volume().display()));
        let ran = finish(Command::new(program).args(arguments).env(name, value));
        let from_members = ran.out.lines().find_map(part::recovered);
        from_members.unwrap_or_else(|| panic!("{}{}", ran.out, ran.err))
    }
}

/// Replays the file system's journal, checks it, mounts it and looks at the first `synced` files.
fn check(guest: &mut Guest, synced: u64) {
    guest.must(MOUNT);
    guest.must("umount /run/mount");
    guest.must("fsck.ext4 -f -n /dev/nbd0");
    guest.must(MOUNT);
    guest.must(&part::command(&format!("check /run/mount {synced}")));
}

fn write(guest: &mut Guest, synced: u64) {
    guest.tell(&part::command(&format!("write /run/mount {synced}")));
}

#[test]
fn a_guest_cut_off_in_mid_write_finds_every_synced_file() {
    const NAME: &str = "a_guest_cut_off_in_mid_write_finds_every_synced_file";
    let (place, mut guest, server) = match start("cut") {
        Ok(started) => started,
        Err(missing) => return skipped(NAME, &missing),
    };
    guest.must(MAKE);
    let mut story = GuestScenario {
        place: &place,
        guest,
        server,
        moments: moments(),
        synced: 0,
        from_members: 0,
    };
    let mut rounds = [Round::Guest, Round::Server, Round::SlowServer].repeat(times());
    // The lender is needed in nearly every round of the last kind, not in each.
    rounds.extend([Round::SlowServer; 4]);
    for (index, round) in rounds.iter().enumerate() {
        if index < rounds.len() - 4 || story.from_members == 0 {
            story = story.tell(*round);
        }
    }
    let GuestScenario {
        mut guest,
        server,
        synced,
        from_members,
        ..
    } = story;
    check(&mut guest, synced);
    assert!(synced >= 60, "{synced} files are too few to have tried anything");
    assert!(from_members > 0, "the lender was never needed");
    guest.must("umount /run/mount; nbd-client -d /dev/nbd0");
    server.stop();
    check_on_this_machine(&place, synced);
}

/// A file system that has been through some rounds.
struct GuestScenario<'a> {
    place: &'a GuestFixture,
    guest: Guest,
    server: Server,
    moments: FaultsRandom,
    /// Files that must be there.
    synced: u64,
    /// Bytes that recoveries had from the lender.
    from_members: u64,
}

impl GuestScenario<'_> {
    /// Checks what the round before has left, writes on, and cuts the guest off.
    fn tell(mut self, round: Round) -> Self {
        let guest = &mut self.guest;
        check(guest, self.synced);
        if round == Round::SlowServer {
            // The same file system, on a server that was started again.
            guest.must("umount /run/mount; nbd-client -d /dev/nbd0");
            self.server.stop();
            self.server = self.place.serve(true);
            guest.must(&Cable::client(CONNECTIONS));
            guest.must(MOUNT);
        }
        write(guest, self.synced);
        self.synced = guest.wait_for_synced(20 + self.moments.below(40));
        std::thread::sleep(Duration::from_micros(self.moments.below(30_000)));
        if round == Round::Guest {
            self.synced = self.guest.cut(self.synced);
        } else {
            self.server.kill();
            self.synced = self.guest.cut(self.synced);
            self.from_members += self.place.recover();
            self.server = self.place.serve(false);
        }
        self.guest = self.place.boot().unwrap();
        self
    }
}

/// Starts the first server and guest. The error says why this machine cannot have a guest.
fn start(name: &str) -> Result<(GuestFixture, Guest, Server), String> {
    let place = GuestFixture::new(name)?;
    let server = place.serve(false);
    let guest = place.boot()?;
    Ok((place, guest, server))
}

/// Checks on this machine, by the attached volume, what the guest wrote.
fn check_on_this_machine(place: &GuestFixture, synced: u64) {
    let directory = place.directory.path();
    let disk = |arguments: &[&str]| {
        let mut command = netram();
        command.arg("volume").args(arguments).arg(place.volume());
        finish(command.env("NETRAM_VOLUME_RUN", directory.join("run")))
    };
    let ran = disk(&["attach", "--way", "fuse", "--name", "db"]);
    if ran.code != 0 {
        return skipped("the check on this machine", ran.err.trim());
    }
    let (device, mount) = (directory.join("run/dev/db"), directory.join("mount"));
    fs::create_dir(&mount).unwrap();
    let paths = [&device, &mount].map(|path| path.display().to_string());
    let mounted =
        crate::faults::harness::process::tool("mount", &["-t", "ext4", "-o", "ro", &paths[0], &paths[1]]);
    let checked = std::panic::catch_unwind(|| part::check(&mount, synced));
    let unmounted = crate::faults::harness::process::tool("umount", &[&paths[1]]);
    let detached = disk(&["detach"]);
    mounted.unwrap();
    unmounted.unwrap();
    checked.expect("every synced file is there");
    assert_eq!(detached.code, 0, "{}", detached.err);
}

#[test]
fn a_guest_that_loses_its_server_connects_again_and_finds_every_synced_file_and_a_grown_disk() {
    const NAME: &str =
        "a_guest_that_loses_its_server_connects_again_and_finds_every_synced_file_and_a_grown_disk";
    let (place, mut guest, server) = match start("lost") {
        Ok(started) => started,
        Err(missing) => return skipped(NAME, &missing),
    };
    guest.must(MAKE);
    guest.must(MOUNT);
    write(&mut guest, 0);
    let mut synced = guest.wait_for_synced(30);
    server.kill();
    // `nbd-client` does not tell the kernel to wait for another server, so writes fail.
    let (said, _) = guest.end_of_command();
    assert!(said.contains("failed: "), "{said}");
    synced = said
        .lines()
        .filter_map(part::acknowledged)
        .next_back()
        .map_or(synced, |number| number + 1);
    guest.must("umount /run/mount; nbd-client -d /dev/nbd0");
    let mut grow = netram();
    let grown = finish(
        grow.args(["volume", "grow", "--size", "96MiB"])
            .arg(place.volume()),
    );
    assert_eq!(grown.code, 0, "{}", grown.err);
    let server = place.serve(false);
    guest.must(&Cable::client(CONNECTIONS));
    check(&mut guest, synced);
    assert_eq!(size(&mut guest, NBD), Some(96 * MIB));
    guest.must("resize2fs /dev/nbd0");
    let blocks = guest.must("stat --file-system --format %b /run/mount");
    let blocks = u64::from_str(blocks.trim()).unwrap();
    assert!(blocks * 4096 > 70 * MIB, "{blocks} blocks");
    guest.must(&part::command(&format!("check /run/mount {synced}")));
    guest.must("umount /run/mount; fsck.ext4 -f -n /dev/nbd0");
    guest.must("nbd-client -d /dev/nbd0");
    server.stop();
}

#[test]
fn flushes_and_forced_writes_of_a_guests_ext4_arrive() {
    const NAME: &str = "flushes_and_forced_writes_of_a_guests_ext4_arrive";
    let started = can_boot().and_then(|()| {
        let directory = tempfile::Builder::new()
            .prefix("netram-guest-")
            .tempdir()
            .unwrap();
        let cable = Cable::new()?;
        let guest = Guest::boot(Some(&cable), directory.path())?;
        Ok((directory, cable, guest))
    });
    let (directory, cable, mut guest) = match started {
        Ok(started) => started,
        Err(missing) => return skipped(NAME, &missing),
    };
    let image = directory.path().join("image");
    File::create_new(&image).unwrap().set_len(64 * MIB).unwrap();
    let flushes = || fs::metadata(image.with_extension("flushes")).map_or(0, |file| file.len());
    let server = Server::of_image(&cable, &image);
    guest.must(&Cable::client(CONNECTIONS));
    let queue = guest.must("cat /sys/block/nbd0/queue/fua /sys/block/nbd0/queue/write_cache");
    assert_eq!(queue.lines().collect::<Vec<_>>(), ["1", "write back"]);
    // The kernel has forced writes here, so each is one request with FUA and no flush of its own.
    let before = flushes();
    guest.must(&format!("{COPY} count=8 oflag=direct,dsync"));
    let arrived = flushes() - before;
    assert!(arrived >= 8, "{arrived} of 8 forced writes arrived");
    // These writes are not forced; the flush comes after them.
    let before = flushes();
    guest.must(&format!("{COPY} count=8 oflag=direct conv=fsync"));
    assert!(flushes() > before, "no flush arrived");
    guest.must(MAKE);
    guest.must(MOUNT);
    let before = flushes();
    write(&mut guest, 0);
    let synced = guest.wait_for_synced(40 + moments().below(20));
    // At the first of the two moments everything unflushed is lost.
    server.kill();
    let synced = guest.cut(synced);
    assert!(
        flushes() - before >= synced,
        "{} flushes for {synced} files",
        flushes() - before
    );
    let _server = Server::of_image(&cable, &image);
    let mut guest = Guest::boot(Some(&cable), directory.path()).unwrap();
    guest.must(&Cable::client(CONNECTIONS));
    check(&mut guest, synced);
    guest.must("umount /run/mount");
}

/// Bytes of a guest's device.
fn size(guest: &mut Guest, device: &str) -> Option<u64> {
    let bytes = guest.must(&format!("blockdev --getsize64 {device}"));
    bytes.trim().parse().ok()
}

/// When guests are cut off.
fn moments() -> FaultsRandom {
    let given = std::env::var("NETRAM_GUEST_SEED").ok();
    let seed = given.map_or_else(
        || FaultsRandom::here().next(),
        |seed| seed.parse().expect("a number"),
    );
    let _ = writeln!(std::io::stderr(), "NETRAM_GUEST_SEED={seed}");
    FaultsRandom(seed)
}

fn times() -> usize {
    let given = std::env::var("NETRAM_GUEST_ROUNDS").ok();
    given.map_or(1, |times| times.parse().expect("a number of rounds"))
}

fn skipped(test: &str, missing: &str) {
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}
