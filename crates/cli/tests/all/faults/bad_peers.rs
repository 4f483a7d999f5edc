//! Bad peers: lenders that cannot be reached, have another key, no room, a memory that rots, and peers that
//! are no lenders. None costs an acknowledged record or a commit; the status or the log says what is wrong.

use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::Path;

use crate::faults::harness::random::FaultsRandom;
use crate::faults::harness::{DISK_NEVER_MS, FaultsClient, FaultsFixture, FaultsLender};
use crate::faults::worker::WorkerMessage;

#[test]
fn with_lenders_out_of_reach_commits_wait_for_the_disk_and_the_status_says_so() {
    let place = FaultsFixture::new();
    let mut client = place.journal(&[], 0);
    client.work.lenders = vec!["unix:/nowhere/lender".to_owned(), "tcp://127.0.0.1:1".to_owned()];
    client.work.members = 2;
    client.work.commits = Some(20);
    let ended = client.start().end();
    assert_eq!(ended.code, 0, "{:?}", ended.report.messages);
    assert_eq!(ended.report.by_disk, 40);
    let blocked = ended.report.standing().and_then(|(blocked, _)| blocked);
    assert!(blocked.is_some_and(|blocked| blocked.contains("TooFewMembers")));
    client.learn(&ended.report);
    client.recover();
}

#[test]
fn a_wrong_key_is_refused_and_the_lender_serves_on() {
    let place = FaultsFixture::new();
    let mut lender = place.lender("a");
    let mut client = place.journal(&[&lender], 1);
    client.work.commits = Some(20);
    let mut stranger = client.with_log(place.memory().join("stranger.log"));
    let wrong = place.memory().join("wrong.key");
    netram_transport::ClusterKey::generate()
        .save_new(&wrong)
        .expect("a key is saved");
    stranger.work.key = Some(wrong);
    let began = std::time::Instant::now();
    let ended = stranger.start().end();
    assert_eq!(
        (ended.code, ended.report.by_rule),
        (0, 0),
        "{:?}",
        ended.report.messages
    );
    // What the disk alone has acknowledged stays acknowledged.
    client.learn(&ended.report);
    // The lender logs the reason with the remedy, at most once a second however often the stranger tries.
    let log = lender.log_text();
    let refusals = log.lines().filter(|line| line.contains("WARN")).count() as u64;
    assert!(log.contains("give both sides the same key file"), "{log}");
    let told = stranger
        .log_text()
        .lines()
        .filter(|line| line.contains("key"))
        .count();
    assert_eq!(
        told,
        1,
        "the client tells the reason once:\n{}",
        stranger.log_text()
    );
    assert!(
        refusals <= began.elapsed().as_secs() + 2,
        "{refusals} warnings:\n{log}"
    );
    assert!(lender.is_alive());
    let ended = client.start().end();
    // Now and then the disk is first.
    assert!(ended.report.by_rule > 0, "{:?}", ended.report.messages);
    client.learn(&ended.report);
    client.recover();
}

#[test]
fn a_lender_without_room_leaves_commits_to_the_disk_and_the_status_says_why() {
    let place = FaultsFixture::new();
    let address = |name: &str| format!("unix:{}", place.memory().join(name).display());
    let small = FaultsLender::start(&place, "small", &address("small"), &[], &["--memory", "2MiB"]);
    let bounded = FaultsLender::start(
        &place,
        "bounded",
        &address("bounded"),
        &[],
        &["--quota", "512KiB"],
    );
    // Another journal has most of the small one's memory.
    let directory = tempfile::tempdir_in(place.disk()).expect("the disk takes directories");
    let mut first = place.journal_in(directory.path(), 16 << 20, &[&small], 1);
    first.work.window_bytes = 1 << 20;
    let serving = first.start();
    serving.until_acks_by_rule(1);
    for (lender, why) in [(&small, "NoRoom"), (&bounded, "OverQuota")] {
        let directory = tempfile::tempdir_in(place.disk()).expect("the disk takes directories");
        let mut client = place.journal_in(directory.path(), 16 << 20, &[lender], 1);
        client.work.window_bytes = 2 << 20;
        client.work.commits = Some(20);
        let ended = client.start().end();
        assert_eq!(
            (ended.code, ended.report.by_disk),
            (0, 40),
            "{:?}",
            ended.report.messages
        );
        let told = ended.report.messages.iter().any(|said| match said {
            WorkerMessage::Standing { refused, .. } => refused.iter().any(|text| text.contains(why)),
            _ => false,
        });
        assert!(told, "{why} is not told: {:?}", ended.report.messages);
        client.learn(&ended.report);
        // A smaller window fits.
        client.work.window_bytes = 128 * 1024;
        let ended = client.start().end();
        // Now and then the disk is first.
        assert!(ended.report.by_rule > 0, "{:?}", ended.report.messages);
        client.learn(&ended.report);
        client.recover();
    }
    first.kill(serving);
    first.recover();
}

#[test]
fn a_lender_whose_memory_rots_is_caught() {
    let mut place = FaultsFixture::new();
    let mut refusals = 0;
    for round in 0..place.rounds(4) {
        let lender = place.lender(&format!("rotten{round}"));
        let directory = tempfile::tempdir_in(place.disk()).expect("the disk takes directories");
        let mut client = place.journal_in(directory.path(), 16 << 20, &[&lender], 1);
        only_lenders_hold(&mut client);
        let running = client.start();
        running.until_acks_by_rule(300);
        client.kill(running);
        rot(lender.store(), &mut place.random);
        match client.try_recover() {
            // The flipped bit was in bytes that are not needed any more.
            Ok(_) => (),
            Err(refused) => {
                assert!(
                    refused.contains("damaged") && refused.contains("LSN"),
                    "{refused}"
                );
                refusals += 1;
            }
        }
    }
    eprintln!("{refusals} recoveries were refused");
}

#[test]
fn where_one_members_memory_rots_another_member_has_it_all() {
    let mut place = FaultsFixture::new();
    for round in 0..place.rounds(3) {
        let lenders = [
            place.lender(&format!("rotten{round}")),
            place.lender(&format!("sound{round}")),
        ];
        let directory = tempfile::tempdir_in(place.disk()).expect("the disk takes directories");
        let mut client = place.journal_in(directory.path(), 16 << 20, &[&lenders[0], &lenders[1]], 2);
        only_lenders_hold(&mut client);
        let running = client.start();
        running.until_acks_by_rule(300);
        client.kill(running);
        rot(lenders[0].store(), &mut place.random);
        client.recover();
    }
}

/// Keeps the client's acknowledged records off the disk while the test lasts.
fn only_lenders_hold(client: &mut FaultsClient) {
    client.work.disk_delay_ms = DISK_NEVER_MS;
    client.work.window_bytes = 4 << 20;
    client.work.patience_ms = 1500;
}

/// Flips a bit of the lent memory, where there is something.
fn rot(store: &Path, random: &mut FaultsRandom) {
    let bytes = std::fs::read(store).expect("the memory is a file");
    let used: Vec<usize> = (bytes.len() / 4..bytes.len())
        .filter(|&at| bytes[at] != 0)
        .collect();
    assert!(
        used.len() > 1000,
        "only {} bytes of memory are in use",
        used.len()
    );
    let at = used[random.below(used.len() as u64) as usize];
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(store)
        .expect("the memory is a file");
    let flipped = [bytes[at] ^ 1 << random.below(8)];
    std::os::unix::fs::FileExt::write_all_at(&file, &flipped, at as u64).expect("memory takes bytes");
}

/// Behaviour of a peer that is not a lender.
#[derive(Clone, Copy, Debug)]
enum Stranger {
    /// Accepts the connection and sends nothing.
    Silent,
    /// Speaks something else.
    Garbage,
    /// Sends the same bytes for ever.
    Flood,
    /// Closes at once.
    Hasty,
}

/// A peer on a socket that behaves as `stranger`, for as long as the test's process lives.
fn stranger(path: &Path, stranger: Stranger) {
    let listener = UnixListener::bind(path).expect("a socket");
    std::thread::spawn(move || {
        let mut held = Vec::new();
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            match stranger {
                Stranger::Silent => held.push(stream),
                Stranger::Garbage => drop(stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
                Stranger::Flood => while stream.write_all(&[0x5a; 4096]).is_ok() {},
                Stranger::Hasty => drop(stream),
            }
        }
    });
}

#[test]
fn a_peer_that_is_no_lender_costs_a_place_and_no_commit() {
    let place = FaultsFixture::new();
    let lender = place.lender("a");
    let mut client = place.journal(&[&lender], 1);
    for kind in [
        Stranger::Silent,
        Stranger::Garbage,
        Stranger::Flood,
        Stranger::Hasty,
    ] {
        let path = place.memory().join(format!("{kind:?}"));
        stranger(&path, kind);
        client.work.lenders.insert(0, format!("unix:{}", path.display()));
    }
    // The one real lender is last in the list; the others are tried forever.
    let running = client.start();
    running.until_acks_by_rule(500);
    let heard = client.kill(running);
    assert_eq!(heard.failure(), None);
    client.recover();
}
