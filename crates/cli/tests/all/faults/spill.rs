//! The client's machine loses its power, and then the lender's is shut down: what was acknowledged is on the
//! lender's disk. The paper's own case (TR-190, section 2.1).

use std::path::PathBuf;

use rustix::process::Signal;

use crate::faults::harness::disk::SmallDisk;
use crate::faults::harness::{DISK_NEVER_MS, FaultsClient, FaultsFixture, FaultsLender, skipped};

const DISK_BYTES: u64 = 48 << 20;

/// A lender that writes its windows to a directory of this place when it stops.
fn lender(place: &FaultsFixture, name: &str) -> (FaultsLender, PathBuf) {
    let directory = place.disk().join(format!("{name}-spill"));
    std::fs::create_dir(&directory).unwrap();
    let address = format!("unix:{}", place.memory().join(name).display());
    let spill = directory.display().to_string();
    let lender = FaultsLender::start(place, name, &address, &[], &["--spill", &spill]);
    (lender, directory.join(format!("{name}.spill")))
}

/// Cuts the power under the client while it commits.
pub(super) fn cut(client: &mut FaultsClient, disk: &mut SmallDisk, acks: u64) {
    let running = client.start();
    running.until_acks(acks);
    running.freeze();
    disk.cut();
    client.kill(running);
    disk.power_on();
}

#[test]
fn a_shutdown_of_the_lender_while_its_client_is_down_loses_nothing() {
    let test = "a_shutdown_of_the_lender_while_its_client_is_down_loses_nothing";
    let mut place = FaultsFixture::new();
    let mut disk = match SmallDisk::new(place.disk(), DISK_BYTES) {
        Ok(disk) => disk,
        Err(missing) => return skipped(test, &missing),
    };
    let (mut lender, spill) = lender(&place, "a");
    let mut client = place.journal_in(disk.root(), 16 << 20, &[&lender], 1);
    client.work.disk_delay_ms = DISK_NEVER_MS;
    let mut from_members = 0;
    for round in 0..place.rounds(3) {
        cut(&mut client, &mut disk, 200 + place.random.below(1000));
        let signal = if round % 2 == 0 {
            Signal::TERM
        } else {
            Signal::POWER
        };
        assert_eq!(lender.stop(signal), 0, "{}", lender.log_text());
        lender.lose();
        // Without the file the records are gone, and recovery says so.
        let away = spill.with_extension("away");
        std::fs::rename(&spill, &away).unwrap();
        lender.restart();
        let refused = client.try_recover().unwrap_err();
        assert!(refused.contains("restarted without its memory"), "{refused}");
        lender.lose();
        std::fs::rename(&away, &spill).unwrap();
        lender.restart();
        if round == 1 {
            // Power fails again before the client is back.
            lender.lose();
            lender.restart();
        }
        from_members += client.recover().from_members;
        // In the next rounds some of what is acknowledged is on the disk, some is not yet.
        client.work.disk_delay_ms = 5;
    }
    assert!(from_members > 0, "some records were only in the lender's memory");
}

/// Both lenders are shut down, and one comes back without its disk.
#[test]
fn one_of_two_lenders_that_were_shut_down_is_enough() {
    let test = "one_of_two_lenders_that_were_shut_down_is_enough";
    let mut place = FaultsFixture::new();
    let mut disk = match SmallDisk::new(place.disk(), DISK_BYTES) {
        Ok(disk) => disk,
        Err(missing) => return skipped(test, &missing),
    };
    let (mut one, _) = lender(&place, "a");
    let (mut other, spill) = lender(&place, "b");
    let mut client = place.journal_in(disk.root(), 16 << 20, &[&one, &other], 2);
    client.work.disk_delay_ms = 5;
    cut(&mut client, &mut disk, 200 + place.random.below(1000));
    for lender in [&mut one, &mut other] {
        assert_eq!(lender.stop(Signal::TERM), 0, "{}", lender.log_text());
        lender.lose();
    }
    std::fs::remove_file(spill).unwrap();
    one.restart();
    other.restart();
    client.recover();
}
