//! `netram volume attach` by the kernel's own NBD client: in a guest, for few machines have that driver
//! loaded.

use crate::faults::harness::random::FaultsRandom;
use crate::guest::machine::{Guest, can_boot};
use crate::guest::part;
use crate::guest::{MAKE, MIB, MOUNT, NBD, check, moments, size, skipped, times};

#[test]
fn a_file_system_on_a_volume_attached_by_the_kernels_nbd_does_not_notice_its_servers_deaths() {
    const NAME: &str =
        "a_file_system_on_a_volume_attached_by_the_kernels_nbd_does_not_notice_its_servers_deaths";
    let directory = tempfile::Builder::new()
        .prefix("netram-guest-")
        .tempdir()
        .unwrap();
    let mut guest = match can_boot().and_then(|()| Guest::boot(None, directory.path())) {
        Ok(guest) => guest,
        Err(missing) => return skipped(NAME, &missing),
    };
    let netram = format!(
        "NETRAM_VOLUME_RUN=/run/netram {} volume",
        crate::common::program()
    );
    guest.must(&format!(
        "{netram} create /run/db --size 48MiB --journal-size 16MiB"
    ));
    let attached = guest.must(&format!("{netram} attach /run/db"));
    assert!(attached.contains("(/dev/nbd0)"), "{attached}");
    guest.must(MAKE);
    guest.must(MOUNT);
    let (mut synced, mut moments) = (0, moments());
    for _ in 0..2 * times() {
        synced = kill_server_under_writer(&mut guest, &netram, synced, &mut moments);
    }
    // It grows under its file system.
    guest.must(&format!("{netram} grow /run/db --size 64MiB"));
    assert_eq!(size(&mut guest, NBD), Some(64 * MIB));
    guest.must("resize2fs /dev/nbd0");
    // Without its supervisor it is served while it is in use.
    let server = server_in(&mut guest, &netram);
    let supervisor = process_in(&mut guest, &netram, "supervisor");
    guest.must(&format!("kill -9 {supervisor}"));
    guest.must(&part::command(&format!(
        "write /run/mount {synced} {}",
        synced + 10
    )));
    synced += 10;
    guest.must("umount /run/mount");
    guest.must(&format!("while kill -0 {server}; do sleep 0.1; done 2>/run/gone"));
    let attached = guest.must(&format!("{netram} attach /run/db"));
    assert!(attached.contains("(/dev/nbd0)"), "{attached}");
    check(&mut guest, synced);
    let refused = guest.run(&format!("{netram} detach db"));
    assert!(refused.0.contains("mounted at /run/mount"), "{refused:?}");
    guest.must("umount /run/mount");
    check(&mut guest, synced);
    guest.must("umount /run/mount");
    guest.must(&format!("{netram} detach db"));
    assert_eq!(size(&mut guest, NBD), Some(0));
    end_by_force(&mut guest, &netram, synced);
    // By the other way, and nothing was between the two.
    let attached = guest.must(&format!("{netram} attach /run/db --way fuse --read-only"));
    assert!(attached.contains("(/dev/loop"), "{attached}");
    guest.must("mount -o ro -t ext4 /run/netram/dev/db /run/mount");
    guest.must(&part::command(&format!("check /run/mount {synced}")));
}

/// Kills the server while files are synced, and sees that more of them are: how many are now.
fn kill_server_under_writer(guest: &mut Guest, netram: &str, synced: u64, moments: &mut FaultsRandom) -> u64 {
    let server = server_in(guest, netram);
    let writing = part::command(&format!("write /run/mount {synced}"));
    let moment = 200 + moments.below(400);
    // The stopped server never answers the requests that it has taken; others arrive while there is none.
    guest.tell(&format!(
        "{writing} & echo $! >/run/writer; sleep 0.{moment}; kill -9 {server}"
    ));
    guest.end_of_command();
    let synced = guest.wait_for_synced(50);
    let stopping = "kill -9 $(cat /run/writer); while kill -0 $(cat /run/writer); do sleep 0.1; done";
    let (said, _) = guest.run(&format!("({stopping}) 2>/run/gone"));
    assert!(!said.contains("failed: "), "{said}");
    let taken_over = (0..600).any(|_| {
        guest.must("sleep 0.1");
        server_in(guest, netram) != server
    });
    assert!(taken_over, "nobody serves in place of the one that was killed");
    said.lines()
        .filter_map(part::acknowledged)
        .next_back()
        .map_or(synced, |number| number + 1)
}

/// Kills server and supervisor, in two ways; what is synced stays.
fn end_by_force(guest: &mut Guest, netram: &str, synced: u64) {
    // A device that is detached by force gives errors at once: no request waits for a server that will not
    // come.
    guest.must(&format!("{netram} attach /run/db"));
    guest.must(MOUNT);
    guest.must("dd if=/bin/sh of=/run/mount/unsynced bs=64k count=4 status=none");
    guest.must(&format!("{netram} detach --force db"));
    guest.must("! dd if=/bin/sh of=/run/mount/too-late bs=64k count=1 conv=fsync status=none");
    guest.must("umount /run/mount");
    assert_eq!(size(guest, NBD), Some(0));
    guest.must(&format!("{netram} attach /run/db"));
    check(guest, synced);
    guest.must("umount /run/mount");
    // The same for a device whose supervisor was killed with its server, at the next command.
    let (server, supervisor) = (server_in(guest, netram), process_in(guest, netram, "supervisor"));
    // An idle server may have ended by itself before.
    guest.must(&format!(
        "kill -9 {supervisor}; kill -9 {server} 2>/dev/null; true"
    ));
    guest.must(&format!("{netram} detach db"));
}

/// The process that serves the volume `/run/db`.
fn server_in(guest: &mut Guest, netram: &str) -> u64 {
    process_in(guest, netram, "server")
}

fn process_in(guest: &mut Guest, netram: &str, part: &str) -> u64 {
    let listed = guest.must(&format!("{netram} list --json"));
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    listed[0]["attached"][part]["id"].as_u64().unwrap()
}
