//! stress-ng's stressors of file systems, which verify what they do; once to their end, and once cut off.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::users::file_system::FileSystem;
use crate::users::process::{PATIENCE, UserProcess, end};
use crate::users::rounds::Rounds;
use crate::users::testbed::UsersTestbed;

const STRESSORS: [&str; 11] = [
    "--hdd",
    "--rename",
    "--dir",
    "--dentry",
    "--symlink",
    "--link",
    "--fallocate",
    "--seek",
    "--iomix",
    "--copy-file",
    "--sync-file",
];
/// Their own defaults are of the size of a disk.
const SIZES: [&str; 5] = [
    "--hdd-bytes=8m",
    "--fallocate-bytes=8m",
    "--iomix-bytes=8m",
    // The least that it takes.
    "--copy-file-bytes=128m",
    "--sync-file-bytes=8m",
];
/// Long enough for each to come to its end, and longer than any kill waits.
const WHOLE: &str = "5s";
const CUT: &str = "60s";
const ROUND: Duration = Duration::from_secs(4);

#[test]
#[ignore = "minutes: make users"]
fn stress_ng_finds_nothing_wrong_with_ext4_which_is_clean_after_a_kill() {
    stresses(
        "stress_ng_finds_nothing_wrong_with_ext4_which_is_clean_after_a_kill",
        FileSystem::Ext4,
    );
}

#[test]
#[ignore = "minutes: make users"]
fn stress_ng_finds_nothing_wrong_with_xfs_which_is_clean_after_a_kill() {
    stresses(
        "stress_ng_finds_nothing_wrong_with_xfs_which_is_clean_after_a_kill",
        FileSystem::Xfs,
    );
}

#[test]
#[ignore = "minutes: make users"]
fn stress_ng_finds_nothing_wrong_with_btrfs_which_is_clean_after_a_kill() {
    stresses(
        "stress_ng_finds_nothing_wrong_with_btrfs_which_is_clean_after_a_kill",
        FileSystem::Btrfs,
    );
}

fn stresses(test: &str, file_system: FileSystem) {
    let Some(site) = UsersTestbed::new(test, file_system, &["stress-ng"]) else {
        return;
    };
    let mut rounds = Rounds::new(1);
    while rounds.another() {
        end(&mut stressors(&site.mounted(), WHOLE), PATIENCE).unwrap();
        let mut command = stressors(&site.mounted(), CUT);
        let running = UserProcess::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        rounds.let_it_run(ROUND);
        site.crash();
        running.kill();
        site.recover();
    }
    eprintln!("{} kills", rounds.done());
    site.close();
}

/// Returns the command that runs all of them at once.
fn stressors(directory: &Path, span: &str) -> Command {
    let mut command = Command::new("stress-ng");
    command
        .args(["--verify", "--timeout", span, "--temp-path"])
        .arg(directory);
    for stressor in STRESSORS {
        command.args([stressor, "1"]);
    }
    command.args(SIZES);
    command
}
