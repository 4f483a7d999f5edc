//! Power cuts: the file system under a running client loses everything that was not synced.

use std::time::Duration;

use crate::faults::harness::disk::SmallDisk;
use crate::faults::harness::{FaultsClient, FaultsFixture, skipped};

const DISK_BYTES: u64 = 48 << 20;

/// Cuts the power under the client at random moments; what was acknowledged must be there with the lenders'
/// help.
fn cut_again_and_again(place: &mut FaultsFixture, disk: &mut SmallDisk, client: &mut FaultsClient) {
    for _ in 0..place.rounds(5) {
        let running = client.start();
        running.until_acks(1 + place.random.below(2000));
        // A power cut stops the processor, too. Under a running client the kernel itself may report a sync as
        // done that the cut prevented (seen with plain writes, on Linux 6.18).
        running.freeze();
        disk.cut();
        if place.random.below(2) == 0 {
            // The disk has failed and the client lives: it must not believe in what it writes now.
            running.thaw();
            std::thread::sleep(Duration::from_millis(place.random.below(30)));
        }
        client.kill(running);
        disk.power_on();
        client.recover();
    }
}

#[test]
fn a_power_cut_under_a_journal_loses_nothing_acknowledged() {
    let mut place = FaultsFixture::new();
    let mut disk = match SmallDisk::new(place.disk(), DISK_BYTES) {
        Ok(disk) => disk,
        Err(missing) => return skipped("a_power_cut_under_a_journal_loses_nothing_acknowledged", &missing),
    };
    let lenders = [place.lender("a"), place.lender("b")];
    let mut client = place.journal_in(disk.root(), 16 << 20, &[&lenders[0], &lenders[1]], 2);
    // Some of what is acknowledged is on the disk, some is not yet.
    client.work.disk_delay_ms = 5;
    cut_again_and_again(&mut place, &mut disk, &mut client);
}

#[test]
fn a_power_cut_under_a_bank_leaves_whole_transactions() {
    let mut place = FaultsFixture::new();
    let mut disk = match SmallDisk::new(place.disk(), DISK_BYTES) {
        Ok(disk) => disk,
        Err(missing) => return skipped("a_power_cut_under_a_bank_leaves_whole_transactions", &missing),
    };
    let lender = place.lender("a");
    let mut client = place.bank_in(disk.root(), &[&lender], 1, true);
    client.recover();
    cut_again_and_again(&mut place, &mut disk, &mut client);
}

#[test]
fn a_power_cut_without_lenders_loses_nothing_the_disk_acknowledged() {
    let mut place = FaultsFixture::new();
    let mut disk = match SmallDisk::new(place.disk(), DISK_BYTES) {
        Ok(disk) => disk,
        Err(missing) => {
            return skipped(
                "a_power_cut_without_lenders_loses_nothing_the_disk_acknowledged",
                &missing,
            );
        }
    };
    let mut client = place.bank_in(disk.root(), &[], 0, false);
    client.recover();
    cut_again_and_again(&mut place, &mut disk, &mut client);
}
