//! Full disks: the journal's own space is taken in advance, segments of holes need more while they are
//! written.

use crate::faults::harness::disk::SmallDisk;
use crate::faults::harness::process::netram;
use crate::faults::harness::{FaultsFixture, skipped};
use crate::faults::worker::WorkerMessage;

#[test]
fn a_full_disk_during_truncation_stops_commits_until_there_is_space() {
    let mut place = FaultsFixture::new();
    let disk = match SmallDisk::new(place.disk(), 24 << 20) {
        Ok(disk) => disk,
        Err(missing) => {
            return skipped(
                "a_full_disk_during_truncation_stops_commits_until_there_is_space",
                &missing,
            );
        }
    };
    let lenders = [place.lender("a"), place.lender("b")];
    let mut client = place.bank_in(disk.root(), &[&lenders[0], &lenders[1]], 2, true);
    client.recover();
    let filler = disk.fill();
    let running = client.start();
    // Commits go on until the log is full: its space was allocated at the start.
    let heard = running.until("the log is full", |heard| {
        heard
            .messages
            .iter()
            .any(|said| matches!(said, WorkerMessage::Full { .. }))
    });
    assert!(heard.acks > 0, "not one commit found room in the log");
    let full = heard.messages.iter().find_map(|said| match said {
        WorkerMessage::Full { text } => Some(text.clone()),
        _ => None,
    });
    let full = full.expect("it was just heard");
    assert!(
        full.contains("the log is full") && full.contains("ENOSPC"),
        "{full}"
    );
    assert!(full.contains("bank.data"), "{full} does not name the segment");
    // A restart after a crash finds the same full disk, reports it, and loses nothing.
    let running = match place.random.below(2) {
        0 => running,
        _ => {
            client.kill(running);
            let refused = client.try_recover().expect_err("recovery needs the same space");
            assert!(
                refused.contains("ENOSPC") && refused.contains("bank.data"),
                "{refused}"
            );
            std::fs::remove_file(&filler).expect("the filler is ours");
            client.start()
        }
    };
    let _ = std::fs::remove_file(&filler);
    running.until_acks(200);
    let heard = client.kill(running);
    assert_eq!(heard.failure(), None);
    client.recover();
}

#[test]
fn a_journal_on_a_full_disk_goes_on_and_recovers() {
    let place = FaultsFixture::new();
    let disk = match SmallDisk::new(place.disk(), 24 << 20) {
        Ok(disk) => disk,
        Err(missing) => return skipped("a_journal_on_a_full_disk_goes_on_and_recovers", &missing),
    };
    let lender = place.lender("a");
    let mut client = place.wrapping(&[&lender], 1);
    client.work.journal = disk.root().join("journal");
    netram_journal::Journal::create(&client.work.journal, 128 * 1024).expect("there is room");
    disk.fill();
    for _ in 0..place.rounds(3) {
        let running = client.start();
        running.until_acks(500);
        let heard = client.kill(running);
        assert_eq!(heard.failure(), None);
        client.recover();
    }
}

#[test]
fn a_log_that_does_not_fit_the_disk_is_not_half_made() {
    let place = FaultsFixture::new();
    let disk = match SmallDisk::new(place.disk(), 24 << 20) {
        Ok(disk) => disk,
        Err(missing) => return skipped("a_log_that_does_not_fit_the_disk_is_not_half_made", &missing),
    };
    let journal = disk.root().join("journal");
    let path = journal.display().to_string();
    let (code, text) = netram(&["journal", "create", &path, "--size", "64MiB"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains(&path) && text.contains("No space left"), "{text}");
    assert!(!journal.exists(), "half a journal was left");
    let (code, text) = netram(&["journal", "create", &path, "--size", "4MiB"]);
    assert_eq!(code, 0, "{text}");
}
