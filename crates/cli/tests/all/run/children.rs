//! Children of a program: those that become other programs, and those that stay.

use super::{Site, compiled, output, text};

#[test]
fn children_that_become_other_programs_work_and_one_that_stays_ends_with_a_sentence() {
    let Some(site) = Site::new("children", 1, "64MiB") else {
        return;
    };
    let (_folder, heap) = compiled("heap", &[]);
    let ran = output(site.run("2MiB", &[], &heap).arg("children"));
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(text(&ran.stdout), "signal 11\n");
    let said = text(&ran.stderr);
    assert!(
        said.contains("a child of the program has none of its far memory"),
        "{said}"
    );
}

#[test]
fn programs_that_it_starts_have_far_memory_only_if_that_is_asked_for() {
    let Some(site) = Site::new("grandchildren", 1, "64MiB") else {
        return;
    };
    let (_folder, heap) = compiled("heap", &[]);
    let moved = |options: &[&str]| {
        let mut command = site.run("2MiB", options, "sh".as_ref());
        // Not by exec: the shell is to be its parent, and ends after it.
        let ran = output(command.arg("-c").arg(format!(
            "{} works; cat {} >&2; exit 0",
            heap.display(),
            site.report().display()
        )));
        assert!(ran.status.success(), "{ran:?}");
        let said = text(&ran.stderr);
        let report = said.lines().find(|line| line.starts_with('{'));
        let told: serde_json::Value = serde_json::from_str(report.unwrap()).unwrap();
        told["fetched"].as_u64().unwrap()
    };
    assert_eq!(moved(&[]), 0);
    assert!(moved(&["--children"]) > 0);
}
