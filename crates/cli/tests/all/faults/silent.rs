//! The client's machine loses its power and stays away; then the lender's machine loses its own, without
//! notice. What was acknowledged is in the window's file, though nobody had time to write it then.

use std::path::{Path, PathBuf};

use crate::faults::harness::disk::SmallDisk;
use crate::faults::harness::process::{netram, until};
use crate::faults::harness::{DISK_NEVER_MS, FaultsFixture, FaultsLender, skipped};
use crate::faults::spill::cut;

const DISK_BYTES: u64 = 48 << 20;

/// A lender with 1 MiB, which writes those of clients that are away for a second.
fn lender(place: &FaultsFixture, name: &str) -> (FaultsLender, PathBuf) {
    let directory = place.disk().join(format!("{name}-spill"));
    std::fs::create_dir(&directory).unwrap();
    let address = format!("unix:{}", place.memory().join(name).display());
    let spill = directory.display().to_string();
    let options = [
        "--spill",
        &spill,
        "--spill-after",
        "1s",
        "--memory",
        "1MiB",
        "--quota",
        "1MiB",
        "--deposits",
        "0",
    ];
    (
        FaultsLender::start(place, name, &address, &[], &options),
        directory,
    )
}

fn windows(directory: &Path) -> usize {
    let names = std::fs::read_dir(directory).unwrap();
    let is_window = |path: &PathBuf| path.extension().is_some_and(|end| end == "window");
    names
        .filter(|name| is_window(&name.as_ref().unwrap().path()))
        .count()
}

/// What `netram lender list --abandoned` says of the lender to its operator.
fn abandoned(lender: &FaultsLender) -> String {
    let operator = netram_lender::operator_path(lender.store());
    let address = format!("unix:{}", operator.display());
    let (code, said) = netram(&[
        "lender",
        "list",
        "--abandoned",
        "--away",
        "1s",
        "--insecure",
        &address,
    ]);
    assert_eq!(code, 0, "{said}");
    said
}

#[test]
fn a_lender_that_loses_power_while_its_client_is_away_loses_nothing() {
    let test = "a_lender_that_loses_power_while_its_client_is_away_loses_nothing";
    let mut place = FaultsFixture::new();
    let mut disk = match SmallDisk::new(place.disk(), DISK_BYTES) {
        Ok(disk) => disk,
        Err(missing) => return skipped(test, &missing),
    };
    let (mut lender, directory) = lender(&place, "a");
    let mut client = place.journal_in(disk.root(), 16 << 20, &[&lender], 1);
    client.work.disk_delay_ms = DISK_NEVER_MS;
    let mut from_members = 0;
    for _ in 0..place.rounds(3) {
        cut(&mut client, &mut disk, 200 + place.random.below(1000));
        until("the window is on the lender's disk", || windows(&directory) == 1);
        let said = abandoned(&lender);
        assert!(
            said.contains("also on disk") && said.contains("/journal "),
            "{said}"
        );
        lender.kill();
        lender.lose();
        lender.restart();
        from_members += client.recover().from_members;
        until("the file is removed", || windows(&directory) == 0);
        client.work.disk_delay_ms = 5;
    }
    assert!(from_members > 0, "some records were only in the lender's memory");
}

#[test]
fn a_client_that_returns_gets_the_memory_back_that_others_had_meanwhile() {
    let test = "a_client_that_returns_gets_the_memory_back_that_others_had_meanwhile";
    let mut place = FaultsFixture::new();
    let mut disk = match SmallDisk::new(place.disk(), DISK_BYTES) {
        Ok(disk) => disk,
        Err(missing) => return skipped(test, &missing),
    };
    let (lender, directory) = lender(&place, "a");
    let mut client = place.journal_in(disk.root(), 16 << 20, &[&lender], 1);
    (client.work.disk_delay_ms, client.work.patience_ms) = (DISK_NEVER_MS, 60_000);
    cut(&mut client, &mut disk, 200 + place.random.below(1000));
    until("the window is on the lender's disk", || windows(&directory) == 1);
    let mut other = place.journal_in(place.disk(), 16 << 20, &[&lender], 1);
    other.work.window_bytes = 896 * 1024;
    let running = other.start();
    // It is asked to come again until a shard has released what it needs.
    running.until_acks_by_rule(1);
    let said = abandoned(&lender);
    assert!(
        said.contains("on disk") && !said.contains("also on disk"),
        "{said}"
    );
    other.kill(running);
    // The second client is away, too: its memory goes to the first.
    let recovered = client.recover();
    assert!(
        recovered.from_members > 0,
        "some records were only in the lender's file"
    );
    other.recover();
}
