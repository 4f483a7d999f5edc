//! A journal's metrics: what they say while it commits, loses its lender, and is closed.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use netram_journal::{Journal, JournalConfig};
use netram_proto::port::Durability;
use netram_telemetry::{MetricsAddress, MetricsFormat, MetricsRegistry};

use crate::common::{TestJournal, commit};

/// A bound on failures only.
const PATIENCE: Duration = Duration::from_secs(60);

/// The value of a metric of the journal at `root`, with a label if `also` is not empty.
fn value(text: &str, name: &str, root: &Path, also: &str) -> Option<f64> {
    let of_journal = format!("journal=\"{}\"", root.display());
    let line = text.lines().find(|line| {
        line.starts_with(&format!("{name}{{")) && line.contains(&of_journal) && line.contains(also)
    });
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
}

fn page() -> String {
    MetricsRegistry::of_process().text(MetricsFormat::OpenMetrics)
}

#[test]
fn commits_are_counted_by_who_completed_them_and_a_lost_lender_is_seen() {
    let place = TestJournal::new();
    let root = place.journal();
    let lender = place.lender("a");
    Journal::create(&root, 16 << 20).unwrap();
    let (journal, _) = place.open(JournalConfig {
        // Members answer long before this.
        disk_delay: Duration::from_secs(3600),
        ..place.config(&["a"], 1)
    });
    for _ in 0..10 {
        commit(&journal, b"remote", Durability::Remote);
    }
    let text = page();
    let is = |name: &str, also: &str, wanted: f64| {
        assert_eq!(
            value(&text, name, &root, also),
            Some(wanted),
            "{name} {also}\n{text}"
        );
    };
    is("netram_commit_duration_seconds_count", "by=\"members\"", 10.0);
    is("netram_journal_records_total", "", 10.0);
    is("netram_journal_members", "", 1.0);
    is("netram_journal_degraded", "", 0.0);
    is("netram_journal_lender_up", "a.sock", 1.0);
    is("netram_at_risk_bytes", "lost=\"this machine\"", 0.0);
    let unsynced = value(&text, "netram_journal_unsynced_bytes", &root, "").unwrap();
    assert!(unsynced > 0.0, "{text}");
    // The disk has none of them.
    is("netram_at_risk_bytes", "lost=\"all\"", unsynced);
    commit(&journal, b"both", Durability::Both);
    let text = page();
    let by_both = value(
        &text,
        "netram_commit_duration_seconds_count",
        &root,
        "by=\"both\"",
    );
    assert_eq!(by_both, Some(1.0), "{text}");
    let at_risk = value(&text, "netram_at_risk_bytes", &root, "lost=\"all\"");
    assert_eq!(at_risk, Some(0.0), "{text}");
    assert!(
        value(&text, "netram_disk_sync_duration_seconds_count", &root, "") >= Some(1.0),
        "{text}"
    );
    assert_eq!(
        value(&text, "netram_at_risk_age_seconds", &root, "lost=\"all\""),
        Some(0.0)
    );

    drop(lender);
    lost_lender_is_seen(&journal, &root);
    journal.close().unwrap();
    assert_eq!(value(&page(), "netram_journal_members", &root, ""), None);
}

fn lost_lender_is_seen(journal: &Journal, root: &Path) {
    let deadline = Instant::now() + PATIENCE;
    while value(&page(), "netram_journal_degraded", root, "") != Some(1.0) {
        assert!(Instant::now() < deadline, "{}", page());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(
        value(&page(), "netram_journal_lender_up", root, "a.sock"),
        Some(0.0)
    );
    commit(journal, b"by the disk", Durability::Remote);
    let by_disk = value(
        &page(),
        "netram_commit_duration_seconds_count",
        root,
        "by=\"disk\"",
    );
    assert_eq!(by_disk, Some(1.0), "{}", page());
}

#[test]
fn journals_of_a_process_share_their_page_and_it_ends_with_the_last() {
    let place = TestJournal::new();
    let socket = place.directory.path().join("metrics");
    let config = || JournalConfig {
        metrics: Some(MetricsAddress::Unix(socket.clone())),
        ..JournalConfig::default()
    };
    let open = |name: &str| {
        let root = place.directory.path().join(name);
        Journal::create(&root, 1 << 20).unwrap();
        Journal::open(&root, config()).unwrap().0
    };
    let (first, second) = (open("first"), open("second"));
    let asked = || {
        let mut reader = UnixStream::connect(&socket).unwrap();
        reader.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut page = String::new();
        reader.read_to_string(&mut page).unwrap();
        page
    };
    let page = asked();
    for name in ["first", "second"] {
        let members = value(
            &page,
            "netram_journal_members",
            &place.directory.path().join(name),
            "",
        );
        assert_eq!(members, Some(0.0), "{page}");
    }
    first.close().unwrap();
    assert!(asked().contains("netram_journal_members"));
    second.close().unwrap();
    assert!(!socket.exists());
}

#[test]
fn a_journal_opens_even_if_its_metrics_cannot_be_served() {
    let place = TestJournal::new();
    Journal::create(&place.journal(), 1 << 20).unwrap();
    let config = JournalConfig {
        metrics: Some(MetricsAddress::Unix("/nowhere/metrics".into())),
        ..JournalConfig::default()
    };
    let (journal, _) = Journal::open(&place.journal(), config).unwrap();
    commit(&journal, b"served", Durability::Remote);
    journal.close().unwrap();
}
