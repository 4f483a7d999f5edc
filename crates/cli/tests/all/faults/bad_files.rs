//! Bad files: damaged, cut, foreign and missing ones, impossible sizes, two clients at once. Each is reported
//! by name with a remedy; nothing acknowledged is lost, nothing panics.

use std::path::{Path, PathBuf};

use crate::faults::harness::process::netram;
use crate::faults::harness::random::FaultsRandom;
use crate::faults::harness::{FaultsClient, FaultsFixture};
use crate::faults::worker::{WorkerMessage, WorkerTask};

/// A closed journal of some records, and no lender.
fn closed_journal(place: &FaultsFixture, at: &Path) -> FaultsClient {
    let mut client = place.journal_in(at, 64 * 1024, &[], 0);
    client.work.commits = Some(40);
    let ended = client.start().end();
    assert_eq!(ended.code, 0, "{:?}", ended.report.messages);
    client.learn(&ended.report);
    client
}

fn flip(path: &Path, offset: usize, random: &mut FaultsRandom) {
    let mut bytes = std::fs::read(path).expect("the file is there");
    bytes[offset] ^= 1 << random.below(8);
    std::fs::write(path, bytes).expect("the file takes bytes");
}

/// Recovers; a refusal must name the file and say something to do about it.
fn well_or_named(client: &mut FaultsClient, what: &str, path: &Path) -> bool {
    let mut copy = client.clone();
    match copy.try_recover() {
        Ok(_) => true,
        Err(text) => {
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .expect("our names are plain");
            let names = ["the segment table", "the log", "both copies of the view"];
            let named = text.contains(name) || names.iter().any(|name| text.contains(name));
            assert!(named, "{what}: `{text}` does not name {name}");
            let remedies = [
                "restore",
                "put ",
                "give ",
                "choose",
                "use ",
                "run `",
                "--accept-loss",
                "name the",
                "name a ",
                "open once with",
            ];
            assert!(
                remedies.iter().any(|remedy| text.contains(remedy)),
                "{what}: `{text}` has no remedy"
            );
            false
        }
    }
}

/// Damages a file in many ways, one at a time. How many were refused.
fn damage(place: &mut FaultsFixture, client: &mut FaultsClient, path: &Path, flips: u64) -> u64 {
    let whole = std::fs::read(path).expect("the file is there");
    let mut refused = 0;
    for round in 0..place.rounds(flips) {
        // The front, where formats keep what matters, and anywhere.
        let bound = if round % 2 == 0 {
            whole.len().min(256)
        } else {
            whole.len()
        };
        let offset = place.random.below(bound as u64) as usize;
        flip(path, offset, &mut place.random);
        let what = format!("{} flipped at {offset}", path.display());
        refused += u64::from(!well_or_named(client, &what, path));
        std::fs::write(path, &whole).expect("the file takes bytes");
    }
    let mut noise = vec![0; whole.len()];
    place.random.fill(&mut noise);
    let half = whole[..whole.len() / 2].to_vec();
    let longer = [&whole[..], &[0; 4096]].concat();
    for (what, bytes) in [
        ("emptied", Vec::new()),
        ("cut", half),
        ("noise", noise),
        ("lengthened", longer),
    ] {
        std::fs::write(path, bytes).expect("the file takes bytes");
        let well = well_or_named(client, &format!("{} {what}", path.display()), path);
        assert!(
            !well || what == "lengthened",
            "{} {what} was taken for good",
            path.display()
        );
        refused += u64::from(!well);
        std::fs::write(path, &whole).expect("the file takes bytes");
    }
    let aside = path.with_extension("aside");
    std::fs::rename(path, &aside).expect("the file moves");
    assert!(!well_or_named(
        client,
        &format!("{} missing", path.display()),
        path
    ));
    std::fs::rename(&aside, path).expect("the file moves back");
    refused
}

fn damage_journal_file(name: &str, flips: u64) {
    let mut place = FaultsFixture::new();
    let at = place.disk().to_path_buf();
    let mut client = closed_journal(&place, &at);
    let pristine = place.disk().join("pristine");
    copy_directory(&client.work.journal, &pristine);
    let path = client.work.journal.join(name);
    // A recovery that goes well writes; each damage is done to the same bytes.
    let mut refused = 0;
    for _ in 0..flips / 8 {
        refused += damage(&mut place, &mut client, &path, 4);
        std::fs::remove_dir_all(&client.work.journal).expect("the journal is ours");
        copy_directory(&pristine, &client.work.journal);
    }
    client.recover();
    eprintln!("{refused} damages of {name} were refused, each by name");
}

fn copy_directory(source: &Path, target: &Path) {
    std::fs::create_dir(target).expect("a new directory");
    for entry in std::fs::read_dir(source)
        .expect("the directory is there")
        .flatten()
    {
        std::fs::copy(entry.path(), target.join(entry.file_name())).expect("a file is copied");
    }
}

#[test]
fn a_damaged_log_is_refused_by_name_or_repaired_from_lenders() {
    damage_journal_file("log", 48);
}

#[test]
fn a_damaged_view_is_refused_by_name_or_its_other_copy_serves() {
    damage_journal_file("view", 32);
}

#[test]
fn a_damaged_data_key_is_refused_by_name() {
    damage_journal_file("data.key", 16);
}

#[test]
fn a_damaged_segment_table_is_refused_by_name_or_its_other_copy_serves() {
    let mut place = FaultsFixture::new();
    let mut client = place.bank(&[], 0);
    client.work.commits = Some(100);
    let ended = client.start().end();
    client.learn(&ended.report);
    let table = place.disk().join("bank.segments");
    // The client makes a missing table again, which then lacks the segment: only the journal's records show
    // it.
    let read = || std::fs::read(&table).expect("the table is there");
    let mut whole = read();
    for round in 0..place.rounds(16) {
        let bound = if round % 2 == 0 { 256 } else { whole.len() as u64 };
        let offset = place.random.below(bound) as usize;
        flip(&table, offset, &mut place.random);
        let damaged = read();
        well_or_named(&mut client, &format!("table flipped at {offset}"), &table);
        // A recovery writes the damaged copy anew, and stamps the segment: an older table would not know that
        // stamp.
        match read() == damaged {
            true => std::fs::write(&table, &whole).expect("the table takes bytes"),
            false => whole = read(),
        }
    }
    for cut in [0, 1, 4096, whole.len() - 1] {
        std::fs::write(&table, &whole[..cut]).expect("the table takes bytes");
        assert!(!well_or_named(
            &mut client,
            &format!("table cut to {cut}"),
            &table
        ));
    }
    std::fs::write(&table, &whole).expect("the table takes bytes");
    client.recover();
}

#[test]
fn a_segment_that_was_cut_or_replaced_or_is_gone_is_refused_by_name() {
    let place = FaultsFixture::new();
    let mut client = place.bank(&[], 0);
    client.work.commits = Some(20);
    // Killed, so that recovery has something to apply to the segment.
    let running = client.start();
    running.until_acks(30);
    client.kill(running);
    let segment = place.disk().join("bank.data");
    let whole = std::fs::read(&segment).expect("the segment is there");
    let aside = place.disk().join("bank.aside");
    std::fs::rename(&segment, &aside).expect("the segment moves");
    std::fs::write(&segment, &whole[..whole.len() / 2]).expect("a file is written");
    assert!(!well_or_named(&mut client, "segment cut", &segment));
    std::fs::write(&segment, &whole).expect("a file is written");
    // A faithful copy has another identity, where the file system keeps one.
    well_or_named(&mut client, "segment replaced", &segment);
    std::fs::remove_file(&segment).expect("the copy is ours");
    let refused = client
        .clone()
        .try_recover()
        .expect_err("a segment with records is missing");
    assert!(refused.contains("bank.data"), "{refused}");
    std::fs::rename(&aside, &segment).expect("the segment moves back");
    client.recover();
}

#[test]
fn files_of_another_journal_are_refused_by_name() {
    let place = FaultsFixture::new();
    let mut directories = Vec::new();
    for name in ["one", "two"] {
        let directory = place.disk().join(name);
        std::fs::create_dir(&directory).expect("a new directory");
        directories.push(directory);
    }
    let mut client = closed_journal(&place, &directories[0]);
    let other = closed_journal(&place, &directories[1]);
    for name in ["log", "view", "data.key"] {
        let path = client.work.journal.join(name);
        let own = std::fs::read(&path).expect("the file is there");
        std::fs::copy(other.work.journal.join(name), &path).expect("a file is copied");
        assert!(!well_or_named(
            &mut client,
            &format!("another journal's {name}"),
            &path
        ));
        std::fs::write(&path, own).expect("the file takes bytes");
    }
    client.recover();
}

#[test]
fn the_check_itself_notices_a_log_that_went_back_in_time() {
    let place = FaultsFixture::new();
    let at = place.disk().to_path_buf();
    let mut client = closed_journal(&place, &at);
    let older = place.disk().join("older");
    copy_directory(&client.work.journal, &older);
    client.learn(&client.start().end().report);
    client.work.journal = older;
    client.work.commits = Some(0);
    let ended = client.start().end();
    assert!(
        matches!(ended.report.messages.last(), Some(WorkerMessage::Wrong { .. })),
        "{:?}",
        ended.report.messages
    );
}

#[test]
fn a_second_client_is_refused_with_the_process_that_has_the_journal() {
    let place = FaultsFixture::new();
    let mut client = place.journal(&[], 0);
    let running = client.start();
    let heard = running.until_acks(1);
    let pid = heard.messages.iter().find_map(|said| match said {
        WorkerMessage::Started { pid } => Some(*pid),
        _ => None,
    });
    let refused = client.clone().try_recover().expect_err("one writer at a time");
    let pid = pid.expect("it has started").to_string();
    assert!(refused.contains("in use") && refused.contains(&pid), "{refused}");
    running.until_acks(10);
    client.kill(running);
    client.recover();
}

#[test]
fn sizes_out_of_bounds_and_existing_directories_are_refused_with_the_bound() {
    let place = FaultsFixture::new();
    let path: PathBuf = place.disk().join("journal");
    let text = path.display().to_string();
    for size in ["0", "1", "2TiB", "16EiB"] {
        let (code, told) = netram(&["journal", "create", &text, "--size", size]);
        assert_ne!(code, 0, "{size}: {told}");
        assert!(!told.contains("panicked") && !path.exists(), "{size}: {told}");
    }
    let mut client = closed_journal(&place, place.disk());
    let (code, told) = netram(&["journal", "create", &text, "--size", "1MiB"]);
    assert_eq!(code, 1, "{told}");
    assert!(told.contains(&text) && told.contains("already exists"), "{told}");
    client.recover();
}

#[test]
fn a_journal_of_records_is_not_taken_for_a_bank() {
    let place = FaultsFixture::new();
    let mut client = closed_journal(&place, place.disk());
    client.work.task = WorkerTask::Bank {
        segment: place.disk().join("bank.data"),
        table: place.disk().join("bank.segments"),
        sparse: false,
    };
    let refused = client.try_recover().expect_err("its records are no transactions");
    assert!(
        refused.contains("does not belong to recoverable memory"),
        "{refused}"
    );
}
