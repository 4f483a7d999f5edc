//! `netram volume attach` by the kernel's ublk, in a guest under QEMU, because User-mode Linux has no such
//! driver.
//!
//! One test, because booting takes most of its time: a raw device, a file system whose server and supervisor
//! are killed, then the whole machine is cut off, and another boot finds what was synced, some of it only in
//! a lender's memory.

use std::fs::File;

use crate::common::{LenderProcess, finish, netram};
use crate::faults::harness::random::FaultsRandom;
use crate::guest::emulated::{HOST, Kernel};
use crate::guest::machine::Guest;
use crate::guest::part;
use crate::guest::{MIB, moments, size, skipped};

const DEVICE: &str = "/dev/ublkb0";
const MAKE: &str = "mkfs.ext4 -q -F -b 4096 /dev/ublkb0";
const MOUNT: &str = "mount -t ext4 /dev/ublkb0 /run/mount";
const DISK: u64 = 512 * MIB;

/// A guest, and the command line of its volume.
struct Story {
    guest: Guest,
    netram: String,
    moments: FaultsRandom,
    /// Files that must be there.
    synced: u64,
}

#[test]
#[ignore = "minutes: make guest"]
fn a_volume_attached_by_ublk_keeps_synced_files_whatever_is_killed() {
    const NAME: &str = "a_volume_attached_by_ublk_keeps_synced_files_whatever_is_killed";
    let directory = tempfile::Builder::new()
        .prefix("netram-guest-")
        .tempdir()
        .unwrap();
    // In time for the guest, which does not look again at directories that it knows.
    let key = directory.path().join("key").display().to_string();
    assert_eq!(finish(netram().args(["key", "create", &key])).code, 0);
    let disk = directory.path().join("disk");
    File::create_new(&disk).unwrap().set_len(DISK).unwrap();
    let kernel = match Kernel::find() {
        Ok(kernel) => kernel,
        Err(missing) => return skipped(NAME, &missing),
    };
    // Nothing is missing, so it boots.
    let guest = kernel.boot(directory.path(), &disk).unwrap();
    let lender = LenderProcess::start(
        "guest-ublk",
        &[
            "--listen",
            "tcp://127.0.0.1:0",
            "--key-file",
            &key,
            "--domain",
            "ups-1",
        ],
    );
    let mut story = Story {
        guest,
        netram: format!(
            "NETRAM_VOLUME_RUN=/run/netram {} volume",
            crate::common::program()
        ),
        moments: moments(),
        synced: 0,
    };
    let port = lender.address.rsplit(':').next().unwrap();
    story.large_discards_go_well();
    story.netram(&format!(
        "create /run/disk/db --size 48MiB --journal-size 16MiB --key-file {key} --lender tcp://{HOST}:{port}"
    ));
    // No driver is named.
    let attached = story.netram("attach /run/disk/db");
    assert!(attached.contains(&format!("({DEVICE})")), "{attached}");
    story.guest.must(&format!(
        "until {} show /run/disk/db --metrics | grep -q 'lender_member.* 1$'; do sleep 0.2; done",
        story.netram
    ));
    story.a_raw_device_keeps_what_is_written();
    story.forced_writes_and_flushes_arrive();
    story.guest.must(MAKE);
    story.guest.must(MOUNT);
    for _ in 0..2 {
        story.kill_server_under_writer();
    }
    story.kill_supervisor();
    story.detach();
    story.end_by_force();
    let mut story = story.cut(&kernel, directory.path(), &disk);
    story.check();
    story.guest.must("umount /run/mount");
    story.netram("detach db");
}

impl Story {
    fn netram(&mut self, command: &str) -> String {
        let line = format!("{} {command}", self.netram);
        self.guest.must(&line)
    }

    /// As large as the kernel makes them.
    fn large_discards_go_well(&mut self) {
        self.netram("create /run/disk/big --size 5GiB --journal-size 16MiB");
        self.netram("attach /run/disk/big");
        self.guest.must(&format!("blkdiscard {DEVICE}"));
        self.guest.must(&format!("blkdiscard -z {DEVICE}"));
        self.netram("detach big");
        self.netram("delete /run/disk/big --yes");
    }

    /// Many requests at a time, of all sizes, and what is discarded and zeroed reads as zeros.
    fn a_raw_device_keeps_what_is_written(&mut self) {
        let guest = &mut self.guest;
        assert_eq!(size(guest, DEVICE), Some(48 * MIB));
        let queue = "cd /sys/block/ublkb0/queue; cat fua write_cache logical_block_size discard_granularity";
        let queue = guest.must(queue);
        let said: Vec<&str> = queue.lines().collect();
        assert_eq!(said, ["1", "write back", "4096", "4096"]);
        guest.must(
            "cd /run && fio --name=raw --filename=/dev/ublkb0 --rw=randwrite --bsrange=4k-1m --size=24m --direct=1 \
             --ioengine=libaio --iodepth=32 --verify=crc32c --verify_fatal=1 --output=/run/fio",
        );
        guest.must("dd if=/bin/bash of=/run/data bs=1M count=1 status=none");
        guest.must("dd if=/run/data of=/dev/ublkb0 oflag=direct bs=1M count=1 status=none");
        guest.must("blkdiscard -o 65536 -l 65536 /dev/ublkb0");
        guest.must("blkdiscard -z -o 262144 -l 65536 /dev/ublkb0");
        for hole in [65536, 262_144] {
            guest.must(&format!(
                "dd if=/dev/zero of=/run/data bs=64k count=1 seek={} conv=notrunc status=none",
                hole >> 16
            ));
        }
        guest.must("cmp -n 1048576 /run/data /dev/ublkb0");
    }

    fn forced_writes_and_flushes_arrive(&mut self) {
        let copy = "dd if=/bin/sh of=/dev/ublkb0 bs=4096 count=8 status=none";
        let before = self.flushes();
        self.guest.must(&format!("{copy} oflag=direct,dsync"));
        let arrived = self.flushes() - before;
        assert!(arrived >= 8, "{arrived} of 8 forced writes arrived");
        let before = self.flushes();
        self.guest.must(&format!("{copy} oflag=direct conv=fsync"));
        assert!(self.flushes() > before, "no flush arrived");
    }

    /// Kills the server while files are synced, and sees that more of them are.
    fn kill_server_under_writer(&mut self) {
        let server = self.process("server");
        let writing = part::command(&format!("write /run/mount {}", self.synced));
        let moment = 200 + self.moments.below(700);
        self.guest.tell(&format!(
            "{writing} & echo $! >/run/writer; sleep {}.{:03}; kill -9 {server}",
            1 + moment / 1000,
            moment % 1000
        ));
        self.guest.end_of_command();
        let synced = self.guest.wait_for_synced(20);
        let stopping = "kill -9 $(cat /run/writer); while kill -0 $(cat /run/writer); do sleep 0.1; done";
        let (said, _) = self.guest.run(&format!("({stopping}) 2>/run/gone"));
        assert!(!said.contains("failed: "), "{said}");
        assert_ne!(self.process("server"), server);
        self.synced = said
            .lines()
            .filter_map(part::acknowledged)
            .next_back()
            .map_or(synced, |number| number + 1);
    }

    /// Without its supervisor the device is served while it is in use, and no longer.
    fn kill_supervisor(&mut self) {
        let (server, supervisor) = (self.process("server"), self.process("supervisor"));
        self.guest.must(&format!("kill -9 {supervisor}"));
        let (from, to) = (self.synced, self.synced + 5);
        let writing = part::command(&format!("write /run/mount {from} {to}"));
        self.guest.must(&writing);
        self.synced = to;
        self.guest.must("umount /run/mount");
        let gone = format!("while kill -0 {server}; do sleep 0.1; done 2>/run/gone");
        self.guest.must(&gone);
        self.guest.must(&format!("! [ -e {DEVICE} ]"));
        self.netram("attach /run/disk/db");
        self.check();
    }

    /// Refused while it is mounted; afterwards device and processes are gone.
    fn detach(&mut self) {
        let line = format!("{} detach db", self.netram);
        let refused = self.guest.run(&line);
        assert!(refused.0.contains("mounted at /run/mount"), "{refused:?}");
        // Growing needs a kernel that can do it; this one cannot, and the error says so.
        let line = format!("{} grow /run/disk/db --size 64MiB", self.netram);
        let (said, _) = self.guest.run(&line);
        let grown = size(&mut self.guest, DEVICE) == Some(64 * MIB);
        assert!(grown || said.contains("detach and attach the volume"), "{said}");
        self.guest.must("umount /run/mount");
        self.netram("detach db");
        self.guest.must("! [ -e /dev/ublkb0 ] && ! [ -e /dev/ublkc0 ]");
        self.netram("attach /run/disk/db");
        assert_eq!(size(&mut self.guest, DEVICE), Some(64 * MIB));
    }

    /// A device that is detached by force gives errors at once; so does one without server and supervisor, at
    /// the next command.
    fn end_by_force(&mut self) {
        self.guest.must(MOUNT);
        self.netram("detach --force db");
        let writing = "dd if=/bin/sh of=/run/mount/late bs=64k count=1 conv=fsync status=none";
        self.guest.must(&format!("! {writing}"));
        self.guest.must("umount /run/mount");
        self.guest.must("! [ -e /dev/ublkb0 ]");
        self.netram("attach /run/disk/db");
        self.check();
        let (server, supervisor) = (self.process("server"), self.process("supervisor"));
        self.guest.must(&format!("kill -9 {supervisor} {server}"));
        let writing = "dd if=/bin/sh of=/run/mount/waits bs=64k count=1 conv=fsync status=none";
        let waits = format!("{writing} & echo $! >/run/writer; sleep 3; kill -0 $!");
        self.guest.must(&waits);
        let line = format!("{} detach db", self.netram);
        let (said, _) = self.guest.run(&line);
        assert!(said.contains("mounted at /run/mount"), "{said}");
        let waiting = "while kill -0 $(cat /run/writer); do sleep 0.1; done 2>/run/gone";
        self.guest.must(waiting);
        self.guest.must("umount /run/mount");
    }

    /// Cuts the machine off while files are synced; another guest goes on with its disk.
    fn cut(mut self, kernel: &Kernel, directory: &std::path::Path, disk: &std::path::Path) -> Story {
        self.netram("attach /run/disk/db");
        self.check();
        let writing = part::command(&format!("write /run/mount {}", self.synced));
        self.guest.tell(&writing);
        let synced = self.guest.wait_for_synced(20 + self.moments.below(20));
        let synced = self.guest.cut(synced);
        let guest = kernel.boot(directory, disk).unwrap();
        let mut story = Story {
            guest,
            synced,
            ..self
        };
        story.netram("attach /run/disk/db");
        story
    }

    /// Replays the file system's journal, checks it, mounts it and looks at the synced files.
    fn check(&mut self) {
        let guest = &mut self.guest;
        guest.must(MOUNT);
        guest.must("umount /run/mount");
        guest.must("fsck.ext4 -f -n /dev/ublkb0");
        guest.must(MOUNT);
        let check = part::command(&format!("check /run/mount {}", self.synced));
        guest.must(&check);
    }

    /// Flushes that the volume has seen.
    fn flushes(&mut self) -> u64 {
        let shown = self.netram("show /run/disk/db --metrics");
        let line = shown
            .lines()
            .find(|line| line.contains("flushes") && !line.starts_with('#'));
        let value = line.and_then(|line| line.rsplit(' ').next());
        value
            .and_then(|value| value.parse().ok())
            .unwrap_or_else(|| panic!("{shown}"))
    }

    fn process(&mut self, part: &str) -> u64 {
        let listed = self.netram("list --json");
        let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
        listed[0]["attached"][part]["id"].as_u64().unwrap()
    }
}
