//! The metrics of a process that commits to a database.

use super::*;
use crate::telemetry::{assert_checked, has_program, port, scraped, value};

#[test]
fn a_process_tells_how_long_its_commits_wait_and_where_they_are_safe() {
    if no_shell() {
        return;
    }
    let site = SqliteTestbed::new("metrics", 1);
    let made = site.shell("pragma journal_mode=wal;\ncreate table t(n integer primary key, b blob);\n");
    assert_eq!(made.code, 0, "{}", made.err);
    let page = port();
    let said = site.directory.path().join("said");
    let pragmas = "pragma journal_mode=wal;\npragma wal_autocheckpoint=0;";
    let set = [("NETRAM_METRICS", Path::new(&page))];
    let mut writer = site.writing_with(pragmas, ".shell sleep 0.002\n", 0, 1, &said, &set);
    let name = "netram_sqlite_sync_duration_seconds_count{";
    wait_until("commits are timed", || {
        let text = scraped(&page);
        value(&text, name, "file=\"wal\",by=\"netram\"").is_some_and(|count| count > 50.0)
    });
    let text = scraped(&page);
    assert_eq!(
        value(&text, "netram_sqlite_journal_open{", ""),
        Some(1.0),
        "{text}"
    );
    assert_eq!(
        value(&text, "netram_sqlite_syncs_failed_total{", ""),
        Some(0.0),
        "{text}"
    );
    if has_program("promtool") {
        assert_checked(&text);
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    assert!(site.check(&said) > 0);
}
