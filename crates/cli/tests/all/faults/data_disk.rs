//! A data lender whose disk is full: its copies fail, and nothing else does.

use netram_volume::{BlockDevice, Volume, VolumeSettings};

use crate::faults::harness::disk::SmallDisk;
use crate::faults::harness::lender::FaultsLender;
use crate::faults::harness::process::until;
use crate::faults::harness::{FaultsFixture, skipped};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 2048;

fn write(volume: &Volume, version: u8) {
    let pending = (0..BLOCKS).map(|block| {
        let bytes = [version ^ block as u8; BLOCK];
        volume
            .write(block * BLOCK as u64, &bytes)
            .expect("it takes writes")
    });
    volume
        .wait(pending.max().expect("there are blocks"))
        .expect("they complete");
}

/// The data lender's log had room, so it acknowledged flushes until the log was full, and then reported no
/// reason.
#[test]
fn a_full_disk_at_the_data_lender_stops_no_write_and_room_brings_the_copy_back() {
    let place = FaultsFixture::new();
    let disk = match SmallDisk::new(place.disk(), 24 << 20) {
        Ok(disk) => disk,
        Err(missing) => {
            return skipped(
                "a_full_disk_at_the_data_lender_stops_no_write_and_room_brings_the_copy_back",
                &missing,
            );
        }
    };
    let kept = disk.root().join("kept");
    let address = format!("unix:{}", place.memory().join("keeper").display());
    let more = ["--data", kept.to_str().expect("a path of ours")];
    let mut lender = FaultsLender::start(&place, "keeper", &address, &[], &more);
    let path = place.disk().join("volume");
    let id = Volume::create(&path, BLOCKS * BLOCK as u64, 2 << 20).expect("a volume");
    let mut settings = VolumeSettings {
        data_lender: Some(address.parse().expect("an address")),
        ..VolumeSettings::default()
    };
    settings.journal.key_file = Some(place.key());
    settings.policy.bytes = 256 * 1024;
    let (volume, _) = Volume::open_with(&path, &settings).expect("it opens");
    let in_service = || volume.data_lender().is_some_and(|copy| copy.in_service);
    until("the copy is in service", in_service);
    let filler = disk.fill();
    for version in 1..4 {
        write(&volume, version);
    }
    volume.drain().expect("its own disk has room");
    until("the client says that the data lender's disk is full", || {
        let copy = volume.data_lender().unwrap_or_default();
        let full = |trouble: &String| trouble.contains("the data lender's disk is full");
        !copy.in_service && copy.trouble.as_ref().is_some_and(full)
    });
    write(&volume, 4);
    std::fs::remove_file(filler).expect("the filler is ours");
    until("the copy has everything again", || {
        let tail = volume.status().journal.log.tail.0;
        let copy = volume.data_lender().unwrap_or_default();
        copy.in_service && copy.flushed == tail && copy.dirty_blocks == 0
    });
    volume.close().expect("it closes");
    lender.kill();
    let taking = VolumeSettings {
        take_over: true,
        client_is_off: true,
        ..VolumeSettings::default()
    };
    let (taken, _) = Volume::open_with(&kept.join(id.to_string()), &taking).expect("the copy is a volume");
    let mut bytes = [0; BLOCK];
    for block in 0..BLOCKS {
        taken.read(block * BLOCK as u64, &mut bytes).expect("it is sound");
        assert_eq!(bytes, [4 ^ block as u8; BLOCK], "block {block}");
    }
}
