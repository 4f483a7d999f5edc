//! `netram volume serve --vhost-user`, as the disk of a guest under QEMU.
//!
//! One test, because booting takes most of its time: a raw disk, a file system whose server is killed and
//! started again, then the guest is cut off with the server, and another guest finds what was synced, some of
//! it only in a lender's memory.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{LenderProcess, finish, netram, program};
use crate::faults::harness::random::FaultsRandom;
use crate::guest::emulated::{INIT, Kernel};
use crate::guest::machine::{Guest, Server};
use crate::guest::{MIB, moments, part, size, skipped};

const DEVICE: &str = "/dev/vdb";
const MAKE: &str = "mkfs.ext4 -q -F /dev/vdb";
const MOUNT: &str = "mount -t ext4 /dev/vdb /run/mount";
/// Bytes of the guest's other disk, which it does not use.
const DISK: u64 = 16 * MIB;

/// A directory with a volume, and its lender.
struct Host {
    directory: tempfile::TempDir,
    kernel: Kernel,
    _lender: LenderProcess,
    moments: FaultsRandom,
}

#[test]
#[ignore = "minutes: make guest"]
fn a_guests_disk_outlives_its_server_and_keeps_synced_files() {
    const NAME: &str = "a_guests_disk_outlives_its_server_and_keeps_synced_files";
    let kernel = match Kernel::find() {
        Ok(kernel) => kernel,
        Err(missing) => return skipped(NAME, &missing),
    };
    let mut host = Host::new(kernel);
    let mut server = host.serve();
    let mut guest = host.boot();
    a_raw_disk_keeps_what_is_written(&mut guest);
    guest.must(MAKE);
    guest.must(MOUNT);
    let mut synced = 0;
    for _ in 0..3 {
        let to = synced + 200;
        guest.tell(&part::command(&format!("write /run/mount {synced} {to}")));
        guest.wait_for_synced(5 + host.moments.below(40));
        server.kill();
        server = host.serve();
        let (said, code) = guest.end_of_command();
        assert!(code == 0 && !said.contains("failed: "), "{said}");
        synced = to;
    }
    // An orderly stop with a guest that works, as for an upgrade.
    let to = synced + 100;
    guest.tell(&part::command(&format!("write /run/mount {synced} {to}")));
    guest.wait_for_synced(5);
    server.stop();
    server = host.serve();
    let (said, code) = guest.end_of_command();
    assert!(code == 0 && !said.contains("failed: "), "{said}");
    synced = to;
    guest.tell(&part::command(&format!("write /run/mount {synced}")));
    let seen = guest.wait_for_synced(20 + host.moments.below(20));
    server.kill();
    synced = guest.cut(seen);
    let server = host.serve();
    let mut guest = host.boot();
    guest.must(MOUNT);
    guest.must("umount /run/mount");
    guest.must(&format!("fsck.ext4 -f -n {DEVICE}"));
    guest.must(MOUNT);
    guest.must(&part::command(&format!("check /run/mount {synced}")));
    guest.must("umount /run/mount");
    server.stop();
}

impl Host {
    fn new(kernel: Kernel) -> Host {
        let directory = tempfile::Builder::new()
            .prefix("netram-guest-")
            .tempdir()
            .unwrap();
        let listen = format!("unix:{}", directory.path().join("lender").display());
        let lender = LenderProcess::start(
            "guest-vhost",
            &["--listen", &listen, "--insecure", "--domain", "ups-1"],
        );
        let volume = directory.path().join("db");
        let mut create = netram();
        create.args(["volume", "create", "--size", "64MiB", "--journal-size", "16MiB"]);
        create.args(["--insecure", "--lender", &listen]).arg(&volume);
        assert_eq!(finish(&mut create).code, 0);
        let disk = directory.path().join("disk");
        File::create_new(disk).unwrap().set_len(DISK).unwrap();
        Host {
            directory,
            kernel,
            _lender: lender,
            moments: moments(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn serve(&self) -> Server {
        let mut command = Command::new("setpriv");
        command.args([
            "--pdeathsig",
            "KILL",
            program(),
            "volume",
            "serve",
            "--vhost-user",
        ]);
        command.arg(self.path("vhost")).arg(self.path("db"));
        Server::start(&mut command)
    }

    fn boot(&self) -> Guest {
        let socket = |path: &Path| format!("socket,id=db,path={},reconnect=1", path.display());
        let more = [
            "-chardev".to_owned(),
            socket(&self.path("vhost")),
            "-device".to_owned(),
            "vhost-user-blk-pci,chardev=db".to_owned(),
        ];
        let booted = self
            .kernel
            .boot_with(self.directory.path(), &self.path("disk"), INIT, "", &more);
        // Nothing is missing, so it boots.
        booted.unwrap()
    }
}

/// Many requests at a time, of all sizes, and what is discarded and zeroed reads as zeros.
fn a_raw_disk_keeps_what_is_written(guest: &mut Guest) {
    assert_eq!(size(guest, DEVICE), Some(64 * MIB));
    assert_eq!(guest.must("cat /sys/block/vdb/serial").trim(), "db");
    let queue = "cd /sys/block/vdb/queue; cat write_cache logical_block_size physical_block_size";
    let said = guest.must(queue);
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said, ["write back", "512", "4096"]);
    guest.must(
        "cd /run && fio --name=raw --filename=/dev/vdb --rw=randwrite --bsrange=4k-1m --size=24m --direct=1 \
         --ioengine=libaio --iodepth=32 --verify=crc32c --verify_fatal=1 --output=/run/fio",
    );
    guest.must("dd if=/bin/bash of=/run/data bs=1M count=1 status=none");
    guest.must("dd if=/run/data of=/dev/vdb oflag=direct bs=1M count=1 status=none");
    guest.must("blkdiscard -o 65536 -l 65536 /dev/vdb");
    guest.must("blkdiscard -z -o 262144 -l 65536 /dev/vdb");
    for hole in [1, 4] {
        guest.must(&format!(
            "dd if=/dev/zero of=/run/data bs=64k count=1 seek={hole} conv=notrunc status=none"
        ));
    }
    guest.must("cmp -n 1048576 /run/data /dev/vdb");
}
