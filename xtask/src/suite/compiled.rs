//! Checks that cargo makes beside the tests, one command as a test each: most tests wait for processes and
//! disks, so a core is free. A command of its own after the tests would keep all of them waiting.

use std::ffi::OsString;
use std::path::Path;

use super::{Kind, Test};

/// Name that stands for the crate and its program.
pub(super) const PROGRAM: &str = "cargo";

/// The programs in the documents. With what the simulator plants, every crate would be compiled anew.
const DOCUMENTS: &str = "test --workspace --exclude=netram-sim --doc --quiet";

/// The demo's parts have other features than the workspace: nothing else here compiles them. One job takes no
/// more than its share of the machine.
const DEMO: &str =
    "check --quiet --jobs=1 --profile=test --package=netram-cli --package=netram-lab --no-default-features";

/// These commands as tests.
pub(super) fn tests(root: &Path) -> [Test; 2] {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let test = |name: &str, line: &str, kind| Test {
        program: PROGRAM.to_string(),
        name: name.to_string(),
        kind,
        executable: cargo.clone().into(),
        arguments: line.split(' ').map(String::from).collect(),
        directory: root.to_path_buf(),
    };
    [
        test("documents' programs", DOCUMENTS, Kind::Checked),
        test("demo's parts", DEMO, Kind::Cargo),
    ]
}
