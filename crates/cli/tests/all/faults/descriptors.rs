//! How many files a service may have open.

use rustix::process::{Resource, getrlimit};

use crate::faults::harness::process::tool;
use crate::faults::harness::{FaultsFixture, FaultsLender, skipped};

/// A mount was dead for good after its 1,007th file, under a soft limit of 1,024 and a hard one of a million.
#[test]
fn a_service_may_open_as_many_files_as_its_hard_limit_says() {
    let test = "a_service_may_open_as_many_files_as_its_hard_limit_says";
    if let Err(missing) = tool("prlimit", &["--version"]) {
        return skipped(test, &missing);
    }
    let hard = getrlimit(Resource::Nofile)
        .maximum
        .unwrap_or(u64::MAX)
        .min(1 << 20);
    let place = FaultsFixture::new();
    let address = format!("unix:{}", place.memory().join("a").display());
    let lender = FaultsLender::start(&place, "a", &address, &["prlimit", "--nofile=256:"], &[]);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", lender.pid())).expect("it runs");
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    let soft = line
        .and_then(|line| line.split_whitespace().nth(3))
        .expect("Linux says so");
    assert_eq!(soft, hard.to_string());
}
