//! The failures of LND's Table 1 (`netram-lab bench failures`), each a test of reliability and continued
//! service. Speed is not tested.

use std::io::Write;

use serde_json::Value;

/// Injects one failure. If an acknowledged write is missing, the program ends with an error.
fn outcome(test: &str, failure: &str) -> Option<Value> {
    outcome_within(test, failure, &[])
}

/// The same with settings of the client in the environment.
fn outcome_within(test: &str, failure: &str, settings: &[(&str, &str)]) -> Option<Value> {
    let disk = tempfile::tempdir().unwrap();
    let directory = disk.path().to_str().unwrap();
    let mut command = crate::common::netram();
    command
        .args([
            "bench", "failures", "--quick", "--json", "--only", failure, "--dir", directory,
        ])
        .envs(settings.iter().copied());
    let ran = crate::common::finish(&mut command);
    assert_eq!(ran.code, 0, "{}\n{}", ran.err, ran.out);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    if let Some(missing) = report["skipped"].get(0) {
        let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
        return None;
    }
    let left: Vec<_> = std::fs::read_dir(disk.path()).unwrap().collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    Some(report["rows"][0].clone())
}

/// A directory with every program in the path, except one.
fn all_but(missing: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    for entry in std::env::split_paths(&path).filter_map(|directory| std::fs::read_dir(directory).ok()) {
        for program in entry.flatten().filter(|program| program.file_name() != missing) {
            // The first program of a name in the path is the one that runs.
            let _ = std::os::unix::fs::symlink(program.path(), directory.path().join(program.file_name()));
        }
    }
    directory
}

/// Without `nft` all scenarios were skipped, although only one needs it.
#[test]
fn only_the_scenario_that_cannot_run_here_is_skipped() {
    let disk = tempfile::tempdir().unwrap();
    let mut command = crate::common::netram();
    let programs = all_but("nft");
    command.env("PATH", programs.path());
    command.args([
        "bench",
        "failures",
        "--quick",
        "--json",
        "--only",
        "switch-lost",
        "--dir",
    ]);
    let ran = crate::common::finish(command.arg(disk.path()));
    assert_eq!(ran.code, 0, "{}\n{}", ran.err, ran.out);
    let report: Value = serde_json::from_str(&ran.out).unwrap();
    let skipped = report["skipped"][0].as_str().unwrap();
    if skipped.starts_with("switch-lost: ") {
        assert!(skipped.contains("there is no nft"), "{skipped}");
    } else {
        assert!(!skipped.contains("nft"), "{skipped}");
        crate::common::skipped(skipped);
    }
}

/// Checks that nothing is lost, and that fio kept writing and verifying.
fn goes_on(test: &str, failure: &str) {
    if let Some(row) = outcome(test, failure) {
        assert_eq!(
            (&row["reliable"], &row["continues"]),
            (&"yes".into(), &true.into()),
            "{row}"
        );
    }
}

#[test]
fn a_file_system_does_not_notice_that_a_lender_crashes() {
    goes_on(
        "a_file_system_does_not_notice_that_a_lender_crashes",
        "lender-killed",
    );
}

#[test]
fn a_file_system_goes_on_when_a_lender_stops_answering() {
    goes_on(
        "a_file_system_goes_on_when_a_lender_stops_answering",
        "lender-stopped",
    );
}

#[test]
#[ignore = "minutes: make users"]
fn a_file_system_does_not_notice_that_the_data_lender_crashes() {
    goes_on(
        "a_file_system_does_not_notice_that_the_data_lender_crashes",
        "data-lender-killed",
    );
}

#[test]
#[ignore = "minutes: make users"]
fn a_client_whose_disk_is_gone_has_every_acknowledged_block_from_the_data_lender() {
    let test = "a_client_whose_disk_is_gone_has_every_acknowledged_block_from_the_data_lender";
    let Some(row) = outcome(test, "client-disk-lost") else {
        return;
    };
    assert_eq!(row["reliable"], "yes", "{row}");
    assert!(row["acked"].as_u64().unwrap() > 0, "{row}");
}

#[test]
fn a_file_system_goes_on_when_all_lenders_crash() {
    goes_on("a_file_system_goes_on_when_all_lenders_crash", "lenders-killed");
}

#[test]
fn a_file_system_goes_on_when_the_switch_fails() {
    goes_on("a_file_system_goes_on_when_the_switch_fails", "switch-lost");
}

#[test]
fn a_crashed_client_finds_every_acknowledged_block_again() {
    let test = "a_crashed_client_finds_every_acknowledged_block_again";
    let Some(row) = outcome(test, "client-killed") else {
        return;
    };
    assert_eq!(row["reliable"], "yes", "{row}");
    assert!(row["acked"].as_u64().unwrap() > 0, "{row}");
}

#[test]
fn a_volume_that_lost_everything_is_not_opened_silently() {
    let test = "a_volume_that_lost_everything_is_not_opened_silently";
    // The client waits for lenders that are dead.
    let Some(row) = outcome_within(test, "all-lost", &[("NETRAM_PATIENCE", "3s")]) else {
        return;
    };
    assert!(row["reliable"]["refused"].is_object(), "{row}");
    assert!(row["acked"].as_u64().unwrap() > 0, "{row}");
}
