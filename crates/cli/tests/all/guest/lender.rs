//! A lender on a machine that is shut down and started again: its kernel is a guest's, with memory that ends
//! with it and a disk that does not.

use std::fs::File;
use std::path::Path;

use crate::faults::harness::FaultsFixture;
use crate::faults::harness::disk::SmallDisk;
use crate::guest::machine::{Cable, GUEST, Guest, can_boot};
use crate::guest::skipped;

const MIB: u64 = 1 << 20;

/// A guest that lends. Returns it once the lender serves.
fn boot(cable: &Cable, directory: &Path, disk: &Path, key: &Path) -> Result<Guest, String> {
    let mut guest = Guest::boot_with(Some(cable), directory, Some(disk))?;
    guest.must("mkdir -p /run/disk");
    guest.must("mount -t ext4 /dev/ubda /run/disk || { mkfs.ext4 -q -F /dev/ubda && mount -t ext4 /dev/ubda /run/disk; }");
    guest.must("mkdir -p -m 700 /run/disk/spill");
    guest.must(&format!(
        "{} lender serve --listen tcp://{GUEST}:7420 --key-file {} --domain guest --memory 16MiB --name guest \
         --store /run/lender.mem --spill /run/disk/spill --grace 0s --keep-free 0 >/run/said 2>/run/log & \
         echo $! >/run/lender; until grep -q ready /run/said; do kill -0 $! || {{ cat /run/log; exit 1; }}; sleep 0.1; done",
        crate::common::program(),
        key.display()
    ));
    Ok(guest)
}

/// Stops the lender and unmounts the disk, as an init system does before the machine goes off.
fn shut_down(mut guest: Guest) {
    guest.must(
        "kill -TERM $(cat /run/lender); while kill -0 $(cat /run/lender) 2>/dev/null; do sleep 0.1; done",
    );
    guest.must("grep -q 'the windows are on the disk' /run/log || { cat /run/log; exit 1; }");
    guest.must("umount /run/disk");
    guest.cut(0);
}

#[test]
fn a_reboot_of_the_lenders_machine_while_its_client_is_down_loses_nothing() {
    let test = "a_reboot_of_the_lenders_machine_while_its_client_is_down_loses_nothing";
    let mut place = FaultsFixture::new();
    let ready = can_boot().and_then(|()| Cable::new()).and_then(|cable| {
        let disk = SmallDisk::new(place.disk(), 48 * MIB)?;
        Ok((cable, disk))
    });
    let (cable, mut disk) = match ready {
        Ok(ready) => ready,
        Err(missing) => return skipped(test, &missing),
    };
    let guests_disk = place.disk().join("guest.img");
    File::create(&guests_disk).unwrap().set_len(128 * MIB).unwrap();
    // The guest sees this machine's disk, and not its memory.
    let key = place.disk().join("guest.key");
    std::fs::copy(place.key(), &key).unwrap();
    let boot = |place: &FaultsFixture| boot(&cable, place.memory(), &guests_disk, &key);
    let guest = match boot(&place) {
        Ok(guest) => guest,
        Err(missing) => return skipped(test, &missing),
    };
    let mut client = place.journal_in(disk.root(), 16 << 20, &[], 1);
    client.work.lenders = vec![format!("tcp://{GUEST}:7420")];
    client.work.disk_delay_ms = 5;
    client.wrap = cable.words();
    let running = client.start();
    running.until_acks(200 + place.random.below(500));
    running.freeze();
    disk.cut();
    client.kill(running);
    disk.power_on();
    shut_down(guest);
    let refused = client.try_recover().unwrap_err();
    assert!(refused.contains("cannot prove"), "{refused}");
    let _guest = boot(&place).unwrap_or_else(|why| panic!("{why}"));
    client.recover();
}
