//! A Debian guest whose systemd runs netram's units: a lender, a volume with a file system, a mount, and a
//! program that writes to both. It is shut down as people do, and boots again.
//!
//! Everything that was synced must be there, no unit may have failed or been killed, and the journal must
//! show that what uses netram stopped before it, and it before its lender.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{finish, program};
use crate::guest::emulated::Kernel;
use crate::guest::machine::Guest;
use crate::guest::{MIB, skipped};

/// Debian, as `scripts/guest.sh` unpacks it.
const DEBIAN: &str = "/var/cache/netram/guest-root";
const INIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/guest/systemd.sh");
const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging");
const DISK: u64 = 2048 * MIB;
/// Longest silence of a machine that is emulated while it stops. A unit that hangs is killed after 5 minutes.
const STOP_PATIENCE: Duration = Duration::from_secs(240);

const LENDER: &str = "netram-lender.service";
const MOUNT: &str = "netram-mount@srv-app.service";
const VOLUME: &str = "netram-volume@var-lib-netram-db.service";
const SERVER: &str = "netram-volume-server@var-lib-netram-db.service";
const DATABASE: &str = "guest-database.service";
const FILE_SYSTEM: &str = "srv-db.mount";

/// Settings of the journals: a lender in another power domain than theirs, so that it counts.
const LENT: &str = "--insecure --lender tcp://127.0.0.1:7420 --domain ups-1";

/// The disk and the kernel of a machine that boots several times.
struct Machine {
    kernel: Kernel,
    directory: tempfile::TempDir,
}

impl Machine {
    /// `Err`: what this machine lacks.
    fn new() -> Result<Machine, String> {
        let kernel = Kernel::find()?;
        if !Path::new(DEBIAN).join("lib/systemd/systemd").exists() {
            return Err(format!("there is no Debian in {DEBIAN}; `make guest` fetches it"));
        }
        let directory = tempfile::Builder::new()
            .prefix("netram-guest-")
            .tempdir()
            .unwrap();
        let machine = Machine { kernel, directory };
        File::create_new(machine.disk()).unwrap().set_len(DISK).unwrap();
        let mut make = std::process::Command::new("mkfs.ext4");
        make.args(["-q", "-F", "-d", DEBIAN]).arg(machine.disk());
        let made = finish(&mut make);
        assert_eq!(made.code, 0, "{}", made.err);
        Ok(machine)
    }

    fn disk(&self) -> PathBuf {
        self.directory.path().join("disk")
    }

    /// Boots until systemd has started everything.
    fn boot(&self) -> Guest {
        let words = format!("netram.program={} netram.packaging={PACKAGING}", program());
        let guest = self
            .kernel
            .boot_with(self.directory.path(), &self.disk(), INIT, &words, &[]);
        let mut guest = guest.unwrap();
        let failed = guest.must("systemctl --failed --no-legend --plain");
        assert_eq!(
            failed.trim(),
            "",
            "units have failed: {}",
            journal(&mut guest, "-b 0")
        );
        guest
    }
}

/// Lines of the guest's journal by these flags.
fn journal(guest: &mut Guest, flags: &str) -> String {
    guest.must(&format!("journalctl --no-pager -q -o cat {flags}"))
}

/// Shuts the guest down as its operator would.
fn shut_down(mut guest: Guest) {
    guest.tell("systemctl poweroff");
    guest.until_off(STOP_PATIENCE);
}

#[test]
#[ignore = "minutes: make guest"]
fn a_machine_with_every_unit_is_shut_down_in_order_and_boots_again_with_everything() {
    const NAME: &str = "a_machine_with_every_unit_is_shut_down_in_order_and_boots_again_with_everything";
    let machine = match Machine::new() {
        Ok(machine) => machine,
        Err(missing) => return skipped(NAME, &missing),
    };
    let mut guest = machine.boot();
    set_up(&mut guest);
    guest.must(&format!("systemctl enable --now {DATABASE}"));
    guest.must("until [ $(wc -l </srv/db/rows) -gt 5 ]; do sleep 0.2; done");
    let status = guest.must(&format!(
        "systemctl show -P StatusText {LENDER} {MOUNT} {VOLUME} {SERVER}"
    ));
    for part in ["lending ", "commits wait for lenders", "the device is served"] {
        assert!(status.contains(part), "{status}");
    }
    guest.must(&format!("systemctl reload {LENDER}"));
    shut_down(guest);

    let mut guest = machine.boot();
    stopped_in_order(&mut guest, &[DATABASE, MOUNT, LENDER]);
    stopped_in_order(&mut guest, &[DATABASE, FILE_SYSTEM, VOLUME, LENDER]);
    stopped_in_order(&mut guest, &[FILE_SYSTEM, SERVER, LENDER]);
    nothing_was_killed(&mut guest);
    closed_times(&mut guest, 1);

    // By hand systemd does not know what the file system needs. Without _netdev it would unmount it after
    // every service, and the volume's waits for that.
    guest.must(&format!("systemctl stop {DATABASE} {FILE_SYSTEM}"));
    guest.must("sed -i /srv/d /etc/fstab && systemctl daemon-reload");
    guest.must("mount -o _netdev /dev/netram/db /srv/db");
    guest.must(&format!(
        "systemctl disable {DATABASE}; systemctl start {DATABASE}"
    ));
    shut_down(guest);

    let mut guest = machine.boot();
    stopped_in_order(&mut guest, &[DATABASE, VOLUME, LENDER]);
    nothing_was_killed(&mut guest);
    guest.must("mount -o _netdev /dev/netram/db /srv/db");
    closed_times(&mut guest, 3);
    shut_down(guest);
}

/// Makes a lender, a volume with a file system in /etc/fstab, and a mount, as the guide says.
fn set_up(guest: &mut Guest) {
    guest.must(
        "echo 'NETRAM_LENDER_ARGS=\"--listen tcp://127.0.0.1:7420 --insecure --memory 64MiB --domain ups-2\"' \
         >/etc/default/netram-lender",
    );
    guest.must(&format!("systemctl enable --now {LENDER}"));
    guest.must(&format!(
        "netram volume create --size 64MiB --journal-size 16MiB {LENT} /var/lib/netram/db"
    ));
    guest.must("chown -R netram: /var/lib/netram/db");
    guest.must(&format!("systemctl enable --now {VOLUME}"));
    guest.must("mkfs.ext4 -q -F /dev/netram/db");
    guest.must("mkdir /srv/db /srv/app");
    guest.must(
        "echo UUID=$(blkid -p -s UUID -o value /dev/netram/db) /srv/db ext4 \
         _netdev,nofail,x-systemd.requires=netram-volume@var-lib-netram-db.service 0 2 >>/etc/fstab",
    );
    guest.must(&format!(
        "systemctl daemon-reload && systemctl start {FILE_SYSTEM}"
    ));
    guest.must(&format!(
        "echo 'NETRAM_MOUNT_ARGS=\"{LENT}\"' >/etc/default/netram-mount-srv-app"
    ));
    guest.must(&format!("systemctl enable --now {MOUNT}"));
}

/// These units stopped in this order when the machine was shut down.
fn stopped_in_order(guest: &mut Guest, units: &[&str]) {
    let mut times = Vec::new();
    for unit in units {
        let line = guest.must(&format!(
            "journalctl --no-pager -q -b -1 -o short-monotonic UNIT={unit} MESSAGE_ID=9d1aaa27d60140bd96365438aad20286 | tail -n 1"
        ));
        let time = line.trim_start().trim_start_matches('[').split(']').next();
        let time: f64 =
            time.unwrap().trim().parse().unwrap_or_else(|_| {
                panic!("{unit} did not stop: {line}\n{}", journal(guest, "-b -1 -n 200"))
            });
        times.push(time);
    }
    assert!(
        times.is_sorted(),
        "{units:?} stopped at {times:?}: {}",
        journal(guest, "-b -1 -n 200")
    );
}

/// No unit failed, was killed, or ran into a limit while the machine was shut down.
fn nothing_was_killed(guest: &mut Guest) {
    let said = journal(guest, "-b -1 _PID=1");
    let bad = |line: &&str| {
        [
            "Failed with result",
            "timed out",
            "SIGKILL",
            "Failed unmounting",
            "code=killed",
        ]
        .iter()
        .any(|word| line.contains(word))
    };
    let found: Vec<&str> = said.lines().filter(bad).collect();
    assert!(found.is_empty(), "{found:#?}\n{said}");
}

/// Both files have all rows of each run of the program, which was ended in order this often.
fn closed_times(guest: &mut Guest, times: usize) {
    for directory in ["/srv/app", "/srv/db"] {
        let rows = guest.must(&format!("cat {directory}/rows"));
        let mut expected = 1;
        let mut closed = 0;
        for row in rows.lines().map(str::trim).filter(|row| !row.is_empty()) {
            match row {
                "closed" => (expected, closed) = (1, closed + 1),
                number => {
                    assert_eq!(number, expected.to_string(), "{directory}: {rows}");
                    expected += 1;
                }
            }
        }
        // The program may run again.
        assert_eq!(closed, times, "{directory}: {rows}");
    }
}
