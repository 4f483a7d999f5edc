//! fio, which writes with checksums and verifies what it reads: what it had finished, and what was under way.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::common::start;
use crate::users::file_system::FileSystem;
use crate::users::process::{PATIENCE, end, until};
use crate::users::rounds::Rounds;
use crate::users::testbed::UsersTestbed;

const BLOCK_BYTES: u64 = 4096;
/// Bytes that the job would write if it were not cut off.
const CUT_BYTES: u64 = 96 << 20;
/// Writes after which fio is surely under way, and not only its file made.
const BEGUN: u64 = 50;
const ROUND: Duration = Duration::from_secs(2);
/// Time from an order to the crash in its midst.
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn fio_verifies_what_it_wrote_before_and_while_the_server_was_killed() {
    let test = "fio_verifies_what_it_wrote_before_and_while_the_server_was_killed";
    let Some(mut site) = UsersTestbed::new(test, FileSystem::Ext4, &["fio"]) else {
        return;
    };
    let mut rounds = Rounds::new(2);
    let mut acked = 0;
    while rounds.another() {
        let seed = rounds.random.next();
        let whole = Job::Whole { seed };
        whole.run(&site.mounted(), &[]).unwrap();
        let cut = cut_off(&mut site, &mut rounds, seed, &mut |site, rounds| {
            rounds.let_it_run(ROUND);
            site.crash();
        });
        site.recover();
        whole.run(&site.mounted(), &["--verify_only"]).unwrap();
        // fio takes a job of no bytes for one of the file's size.
        if cut > 0 {
            let cut = Job::Cut { seed, bytes: cut };
            cut.run(&site.mounted(), &["--verify_only"]).unwrap();
        }
        acked += cut;
    }
    eprintln!(
        "{} kills, {acked} bytes acknowledged while it was killed",
        rounds.done()
    );
    assert!(acked > 0, "nothing was under way at any kill");
    site.close();
}

/// Lenders join the open volume and leave it, its rule changes, and its server is killed in the midst of it.
#[test]
fn fio_verifies_what_it_wrote_while_lenders_joined_and_left() {
    let test = "fio_verifies_what_it_wrote_while_lenders_joined_and_left";
    let Some(mut site) = UsersTestbed::new(test, FileSystem::Ext4, &["fio"]) else {
        return;
    };
    let mut rounds = Rounds::new(2);
    let mut acked = 0;
    while rounds.another() {
        site.wait_for_members();
        let seed = rounds.random.next();
        let cut = cut_off(&mut site, &mut rounds, seed, &mut |site, rounds| {
            site.exchange_lenders();
            site.begin_change(rounds.random.below(2) == 0);
            rounds.let_it_run(SHORT);
            site.crash();
        });
        site.recover();
        if cut > 0 {
            let cut = Job::Cut { seed, bytes: cut };
            cut.run(&site.mounted(), &["--verify_only"]).unwrap();
        }
        acked += cut;
    }
    eprintln!("{} kills, {acked} bytes acknowledged", rounds.done());
    assert!(acked > 0, "nothing was under way at any kill");
    site.close();
}

pub(crate) enum Job {
    /// Blocks of many sizes at random places, synced at the end.
    Whole { seed: u64 },
    /// Synchronous blocks one after another: the number of acknowledged ones says which these are.
    Cut { seed: u64, bytes: u64 },
}

impl Job {
    fn command(&self, directory: &Path) -> Command {
        let mut command = Command::new("fio");
        command
            .current_dir(directory)
            .args(["--output-format=json", "--verify=crc32c", "--verify_fatal=1"]);
        match self {
            Job::Whole { .. } => command
                .args(["--name=whole", "--filename=whole", "--rw=randwrite", "--size=24M"])
                .args([
                    "--bsrange=4k-64k",
                    "--iodepth=4",
                    "--ioengine=libaio",
                    "--direct=1",
                ])
                .args(["--end_fsync=1", "--do_verify=1"]),
            Job::Cut { bytes, .. } => command
                .args([
                    "--name=cut",
                    "--filename=cut",
                    "--rw=write",
                    "--bs=4k",
                    "--ioengine=psync",
                ])
                .args(["--sync=dsync", "--direct=1"])
                .arg(format!("--size={bytes}")),
        };
        // Blocks of an earlier round do not pass for this one's.
        let (Job::Whole { seed } | Job::Cut { seed, .. }) = self;
        command.arg(format!("--randseed={}", seed >> 1));
        command
    }

    pub(crate) fn run(&self, directory: &Path, more: &[&str]) -> Result<(), String> {
        end(self.command(directory).args(more), PATIENCE).map(drop)
    }
}

/// Writes while `crash` kills the server: bytes that were acknowledged.
fn cut_off(
    site: &mut UsersTestbed,
    rounds: &mut Rounds,
    seed: u64,
    crash: &mut dyn FnMut(&mut UsersTestbed, &mut Rounds),
) -> u64 {
    let bytes = CUT_BYTES;
    let job = Job::Cut { seed, bytes };
    let mut command = job.command(&site.mounted());
    command.arg("--do_verify=0");
    let before = site.writes();
    let running = start(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null()),
    );
    // On a busy machine it takes its time to begin.
    until("fio writes", || site.writes() > before + BEGUN);
    crash(site, rounds);
    let output = running.wait_with_output().unwrap();
    // It complains in front of its report.
    let text = String::from_utf8_lossy(&output.stdout);
    let report = text.find('{').map_or("", |at| &text[at..]);
    let report: Value = serde_json::from_str(report).unwrap_or_else(|error| panic!("{error}: {text}"));
    let written = &report["jobs"][0]["write"]["io_bytes"];
    let blocks = written.as_u64().unwrap_or_else(|| panic!("{text}")) / BLOCK_BYTES;
    // The last may have been reported as done by a journal that was just failing.
    blocks.saturating_sub(1) * BLOCK_BYTES
}
