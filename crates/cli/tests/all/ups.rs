//! Lenders and clients on a UPS: Debian's `upsd`, with a driver that says what the test lets it say.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netram_journal::owner::JournalOwner;
use netram_journal::{Journal, JournalConfig, JournalPaths, JournalSettings};
use netram_proto::port::{CommitVotes, Durability, RecordKind, RecordLog};
use netram_transport::Security;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::mounted::{MountFixture, cannot_mount, wait_until};
use crate::common::{LenderProcess, netram, run};
use crate::lifecycle::{Client, ID, with_a_record};

#[allow(dead_code, reason = "the tests of netram-ups need more of it")]
#[path = "../../../core/ups/tests/all/nut.rs"]
pub(crate) mod nut;

use nut::{Nut, PASSWORD};

/// A lender in the power domain `domain`, whose machine `nut` feeds.
fn powered(directory: &Path, domain: &str, nut: &Nut, more: &[&str]) -> LenderProcess {
    let listen = format!("unix:{}/{domain}", directory.display());
    let ups = nut.name().to_string();
    let usual = [
        "--listen",
        &listen,
        "--insecure",
        "--domain",
        domain,
        "--ups",
        &ups,
    ];
    LenderProcess::start(domain, &[&usual[..], more].concat())
}

/// The lender's report of its power.
fn power(lender: &LenderProcess) -> String {
    let power = lender.status()["power"].clone();
    power["state"].as_str().unwrap_or_default().to_owned()
}

fn commit(journal: &Journal) -> CommitVotes {
    let ticket = journal.append(RecordKind(16), 3, &mut |into| into.copy_from_slice(b"abc"));
    journal.wait(ticket.unwrap(), Durability::Remote).unwrap()
}

/// Whether the lenders at these indices, and no others, are members, and acknowledge commits.
fn are_members(journal: &Journal, indices: &[usize]) -> bool {
    let votes = commit(journal);
    let lenders = journal.status().writer.lenders;
    let mut members = (0..lenders.len()).filter(|index| lenders[*index].member);
    indices.iter().all(|index| members.next() == Some(*index)) && members.next().is_none() && votes.rule
}

/// TR-190 keeps the second copy on another power supply. A view that stays on a battery has no copy once it
/// is empty.
#[test]
fn a_view_leaves_a_lender_on_battery_for_another_power_domain_and_may_return_with_the_mains() {
    let (Some(one), Some(two)) = (Nut::start("OL"), Nut::start("OL")) else {
        return;
    };
    let nuts = [one, two];
    let directory = tempfile::tempdir().unwrap();
    let lenders = [
        powered(directory.path(), "ups-1", &nuts[0], &[]),
        powered(directory.path(), "ups-2", &nuts[1], &[]),
    ];
    for lender in &lenders {
        wait_until("the first status", || power(lender) == "mains");
    }
    let root = directory.path().join("journal");
    Journal::create(&root, 4 << 20).unwrap();
    let addresses = lenders.iter().map(|lender| lender.address.parse().unwrap());
    let config = JournalConfig {
        domain: "mains".to_owned(),
        // No vote of the disk hides that members do not count.
        disk_delay: Duration::from_secs(3600),
        ..JournalConfig::with_lenders(addresses.collect(), Security::Insecure, 1)
    };
    let (journal, _) = Journal::open(&root, config).unwrap();
    // The first that answers.
    let mut first = 0;
    wait_until("a member", || {
        first = usize::from(are_members(&journal, &[1]));
        are_members(&journal, &[first])
    });
    let other = 1 - first;

    nuts[first].say("OB DISCHRG");
    wait_until("a view without the lender on battery", || {
        are_members(&journal, &[other])
    });
    assert_eq!(power(&lenders[first]), "on-battery");
    let shown = run(["lender", "status", "--insecure", &lenders[first].address]);
    assert!(shown.out.contains("power: on battery for "), "{}", shown.out);
    let named = format!("UPS {}", nuts[first].name());
    assert!(shown.out.contains(&named), "{}", shown.out);

    nuts[first].say("OL CHRG");
    wait_until("the mains", || power(&lenders[first]) == "mains");
    nuts[other].say("OB");
    wait_until("a view on the lender that has its mains again", || {
        are_members(&journal, &[first])
    });
    journal.close().unwrap();
}

/// The UPS of TR-190 gives the time to save what only memory has: here that of a client which is down.
#[test]
fn a_low_battery_ends_the_lender_its_windows_on_disk_and_it_stays_logged_in_until_then() {
    let Some(nut) = Nut::start("OL") else { return };
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let [password, spill] = ["password", "spill"].map(|name| directory.path().join(name));
    std::fs::write(&password, PASSWORD).unwrap();
    std::fs::create_dir(&spill).unwrap();
    for (path, mode) in [(&password, 0o600), (&spill, 0o700)] {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    let [password, spill] = [&password, &spill].map(|path| path.to_str().unwrap());
    let login = ["--ups-user", "lender", "--ups-password-file", password];
    let more = [&login[..], &["--ups-grace", "100ms", "--spill", spill]].concat();
    let mut lender = powered(directory.path(), "ups-low", &nut, &more);
    drop(Client::new(&lender.address, &JournalOwner::none(ID)));
    wait_until("the first status", || power(&lender) == "mains");
    let logins = || nut.command_as_primary("GET NUMLOGINS rack");
    assert_eq!(logins(), "NUMLOGINS rack 1");
    nut.say("OB");
    wait_until("the battery", || power(&lender) == "on-battery");
    nut.say("OB LB");
    let mut code = None;
    wait_until("the lender's end", || {
        code = lender.ended();
        code.is_some()
    });
    assert_eq!(code, Some(Some(0)));
    wait_until("the logout", || logins() == "NUMLOGINS rack 0");
    // Its memory goes with the power.
    drop(lender);
    nut.say("OL");
    let lender = powered(directory.path(), "ups-low", &nut, &more);
    let journal = lender.status()["journals"][0].clone();
    assert_eq!(journal["id"], format!("{:032x}", ID.0));
    assert!(journal["used_bytes"].as_u64() > Some(0), "{journal}");
}

/// An init sends SIGPWR, and then SIGTERM to everything: that is no second signal, which would end the lender
/// at once and with its windows.
#[test]
fn sigpwr_ends_a_lender_in_good_order_although_sigterm_follows() {
    let directory = tempfile::tempdir().unwrap();
    let listen = format!("unix:{}/lender", directory.path().display());
    let usual = ["--listen", &listen, "--insecure", "--ups-grace", "2s"];
    let mut lender = LenderProcess::start("sigpwr", &usual);
    let (journal, _) = with_a_record(&directory.path().join("journal"), &listen);
    let pid = Pid::from_raw(lender.id().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::POWER).unwrap();
    wait_until("the low battery", || {
        // Once it has ended, there is nobody to ask.
        lender.ended().is_some() || power(&lender) == "low-battery"
    });
    if lender.ended().is_none() {
        assert_eq!(lender.stop(Signal::TERM), Some(0));
    }
    assert_eq!(lender.ended(), Some(Some(0)));
    drop(journal);
}

#[test]
fn a_ups_that_cannot_be_watched_is_said_and_the_lender_lends() {
    let directory = tempfile::tempdir().unwrap();
    let listen = format!("unix:{}/lender", directory.path().display());
    let lender = LenderProcess::start(
        "no-upsd",
        &["--listen", &listen, "--insecure", "--ups", "rack@127.0.0.1:1"],
    );
    wait_until("the reason", || {
        let report = lender.status()["power"].clone();
        report["why"].as_str().is_some_and(|why| why.contains("refused"))
    });
    assert_eq!(power(&lender), "unknown");
    let shown = run(["lender", "status", "--insecure", &lender.address]);
    assert!(shown.out.contains("power: unknown for "), "{}", shown.out);
    for (bad, named) in [
        (&["--ups", "no name@host"][..], "no name of a UPS"),
        (&["--ups-user", "lender"], "need --ups"),
        (&["--ups", "rack", "--ups-user", "lender"], "belong together"),
        (
            &[
                "--ups",
                "rack",
                "--ups-user",
                "u",
                "--ups-password-file",
                "/nonexistent",
            ],
            "/nonexistent",
        ),
    ] {
        let refused = run(["lender", "serve", "--insecure"].iter().chain(bad).copied());
        assert_ne!(refused.code, 0);
        assert!(refused.err.contains(named), "{bad:?}: {}", refused.err);
    }
}

/// A program needs no flag: its journal's settings name the UPS, whatever opens the journal.
#[test]
fn a_journal_whose_settings_name_a_ups_commits_to_the_disk_on_battery() {
    let Some(nut) = Nut::start("OL") else { return };
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("journal");
    let password = directory.path().join("password");
    std::fs::write(&password, PASSWORD).unwrap();
    std::fs::set_permissions(&password, Permissions::from_mode(0o600)).unwrap();
    let listen = format!("unix:{}/lender", directory.path().display());
    let lender = LenderProcess::start("settings-ups", &["--listen", &listen, "--insecure"]);
    Journal::create(&root, 4 << 20).unwrap();
    let text = format!(
        "[journal]\nlenders = [\"{listen}\"]\ninsecure = true\none-domain = true\nups = \"{}\"\n\
         ups-user = \"lender\"\nups-password-file = \"../password\"\n",
        nut.name()
    );
    std::fs::write(root.join("netram.toml"), &text).unwrap();
    let settings = || JournalSettings::of(&JournalPaths::at(&root)).unwrap();
    let config = JournalConfig {
        disk_delay: Duration::from_secs(3600),
        ..settings().journal_config().unwrap()
    };
    let (journal, _) = Journal::open(&root, config).unwrap();
    let logins = || nut.command_as_primary("GET NUMLOGINS rack");
    wait_until("the login", || logins() == "NUMLOGINS rack 1");
    wait_until("a commit that lenders end", || !commit(&journal).disk);
    nut.say("OB");
    wait_until("a commit that waits for the disk", || commit(&journal).disk);
    for _ in 0..10 {
        assert!(commit(&journal).disk);
    }
    let said = run(["explain", root.to_str().unwrap()]);
    assert!(said.out.contains("This machine is on battery"), "{}", said.out);
    nut.say("OL");
    wait_until("a commit that lenders end again", || !commit(&journal).disk);
    journal.close().unwrap();
    wait_until("the logout", || logins() == "NUMLOGINS rack 0");
    std::fs::remove_file(&password).unwrap();
    let refused = settings().journal_config().unwrap_err().to_string();
    assert!(refused.contains("password file"), "{refused}");
    drop(lender);
}

/// Length of one synced write.
fn synced(file: &Path) -> Duration {
    let mut file = File::options().append(true).create(true).open(file).unwrap();
    file.write_all(b"a line\n").unwrap();
    let begun = Instant::now();
    file.sync_all().unwrap();
    begun.elapsed()
}

/// A client on battery has what it acknowledged on its disk: each sync of the disk takes a second here, so a
/// sync that takes less did not wait for it.
#[test]
fn on_battery_a_mounts_syncs_wait_for_the_disk_until_the_mains_are_back() {
    const SYNC: Duration = Duration::from_secs(1);
    if cannot_mount() {
        return;
    }
    let Some(nut) = Nut::start("OL") else { return };
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let mut mounted = MountFixture::with(directory, None, "battery", 0, "4MiB");
    let listen = format!("unix:{}/lender", mounted.directory.path().display());
    mounted.lenders.push(LenderProcess::start(
        "battery",
        &["--listen", &listen, "--insecure"],
    ));
    let ups = nut.name().to_string();
    let words = [
        "--insecure",
        "--one-domain",
        "--members",
        "1",
        "--lender",
        &listen,
        "--ups",
        &ups,
        "--journal-size",
        "4MiB",
        "--modelled-sync-us",
        "1000000",
    ];
    mounted.mount_with(&words.map(str::to_owned));
    let file: PathBuf = mounted.dir().join("file");
    wait_until("a sync that lenders end", || synced(&file) < SYNC / 2);
    nut.say("OB");
    wait_until("a sync that waits for the disk", || synced(&file) >= SYNC);
    for _ in 0..3 {
        let took = synced(&file);
        assert!(took >= SYNC, "{took:?}: it did not wait for the disk");
    }
    nut.say("OL");
    wait_until("a sync that lenders end again", || synced(&file) < SYNC / 2);
    assert_eq!(mounted.unmount().code, 0);
}

/// The options reach the process that serves an attached volume (as JSON), and a wrong one is refused before
/// anything is attached.
#[test]
fn commands_that_have_a_journal_open_take_a_ups() {
    for words in [["mount", "attach"], ["volume", "attach"], ["volume", "serve"]] {
        let help = netram().args(words).arg("--help").output().unwrap();
        let help = String::from_utf8(help.stdout).unwrap();
        for flag in ["--ups <UPS>", "--ups-user <USER>", "--ups-password-file <FILE>"] {
            assert!(help.contains(flag), "{words:?}: {flag}");
        }
    }
}
