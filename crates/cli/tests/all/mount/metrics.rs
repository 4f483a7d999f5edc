//! The metrics of a mount: what its programs wait for.

use std::fs;
use std::io::Write;

use super::*;
use crate::telemetry::{assert_checked, has_program, port, scraped, value};

#[test]
fn a_mount_tells_how_long_the_kernels_requests_and_its_checkpoints_take() {
    if cannot_mount() {
        return;
    }
    let mut mounted = MountFixture::new("metrics", 1, "4MiB");
    assert_eq!(mounted.unmount().code, 0);
    let page = port();
    let settings = mounted.journal().join("netram.toml");
    let text = fs::read_to_string(&settings).unwrap();
    let told = text.replace("[journal]\n", &format!("[journal]\nmetrics = \"{page}\"\n"));
    assert_ne!(text, told);
    fs::write(&settings, told).unwrap();
    mounted.mount();
    let mut log = fs::File::create(mounted.dir().join("log")).unwrap();
    for _ in 0..7 {
        log.write_all(b"a line\n").unwrap();
        log.sync_data().unwrap();
    }
    drop(log);
    mounted.wait_for_checkpoint();
    let text = scraped(&page);
    let syncs = value(
        &text,
        "netram_mount_request_duration_seconds_count{",
        "request=\"sync\"",
    )
    .unwrap();
    assert!(syncs >= 7.0, "{text}");
    for (name, label, at_least) in [
        (
            "netram_mount_request_duration_seconds_count{",
            "request=\"write\"",
            7.0,
        ),
        (
            "netram_mount_request_duration_seconds_count{",
            "request=\"open\"",
            2.0,
        ),
        ("netram_mount_checkpoint_duration_seconds_count{", "", 1.0),
        ("netram_mount_threads{", "", 1.0),
        ("netram_commit_duration_seconds_count{", "by=\"members\"", 1.0),
    ] {
        assert!(
            value(&text, name, label).is_some_and(|value| value >= at_least),
            "{name}: {text}"
        );
    }
    assert_eq!(
        value(&text, "netram_mount_checkpoints_failing{", ""),
        Some(0.0),
        "{text}"
    );
    if has_program("promtool") {
        assert_checked(&text);
    }
    assert_eq!(mounted.unmount().code, 0);
}
