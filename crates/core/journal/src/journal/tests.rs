//! Journals whose disk fails, and copies of journals in children of `fork`.

use super::*;

#[test]
fn a_journal_whose_view_failed_can_be_closed_with_records_in_the_ring() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("journal");
    Journal::create(&root, 1 << 20).unwrap();
    let config = JournalConfig {
        disk_delay: Duration::from_secs(3600),
        ..JournalConfig::default()
    };
    let (journal, _) = Journal::open(&root, config).unwrap();
    journal
        .append(RecordKind(16), 8, &mut |into| into.fill(7))
        .unwrap();
    // The maintenance thread does this when it cannot store a view; from here on nothing becomes stable.
    journal.shared.poison(IoError::EIO, "view");
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || ended.send(journal.close()));
    let closed = end
        .recv_timeout(Duration::from_secs(60))
        .expect("the closing ends");
    assert_eq!(closed, Err(WaitError::DiskFailed(IoError::EIO)));
}

/// A copy in a child of `fork`: dropping it must leave everything to the parent.
#[test]
fn a_copy_in_a_child_of_fork_appends_nothing_and_releases_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("journal");
    Journal::create(&root, 1 << 20).unwrap();
    let page = directory.path().join("metrics");
    let config = JournalConfig {
        metrics: Some(netram_telemetry::MetricsAddress::Unix(page.clone())),
        ..JournalConfig::default()
    };
    let (mut journal, _) = Journal::open(&root, config).unwrap();
    let ticket = journal
        .append(RecordKind(16), 8, &mut |into| into.fill(7))
        .unwrap();
    let shared = Arc::clone(&journal.shared);
    journal.mark = ForkMark::of_another();
    let refused = journal.append(RecordKind(16), 8, &mut |_| ());
    assert_eq!(refused, Err(AppendError::Closed));
    assert_eq!(journal.wait(ticket, Durability::Disk), Err(WaitError::Closed));
    assert_eq!(journal.trim(ticket.end), Err(LogError::Closed));
    drop(journal);
    let again = Journal::open(&root, JournalConfig::default());
    assert!(
        matches!(again, Err(JournalOpenError::InUse { .. })),
        "the parent holds the lock"
    );
    assert!(
        std::os::unix::net::UnixStream::connect(&page).is_ok(),
        "the parent serves its metrics"
    );
    // The parent's threads still run.
    shared.wait(ticket, Durability::Disk).unwrap();
}
