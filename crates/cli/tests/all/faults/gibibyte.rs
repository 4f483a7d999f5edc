//! How fast a gibibyte of windows leaves a lender: to another one, beside the link's own speed, and to the
//! disk when the battery is low, beside the disk's own.
//!
//! `cargo test -p netram-cli --test all gibibyte -- --ignored --nocapture --test-threads=1`;
//! `NETRAM_LINK_MBIT` sets the link's speed.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use netram_journal::{Journal, JournalConfig};
use netram_proto::journal::LinkPhase;
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_transport::{ClusterKey, Security};
use rustix::fs::OFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use super::harness::network::Network;
use super::harness::process::{PATIENCE, netram, until};
use super::harness::{DISK_NEVER_MS, FaultsFixture, FaultsLender, skipped};
use crate::ups::nut::Nut;

const JOURNALS: usize = 16;
const RECORDS: usize = 64;
const RECORD: usize = 1 << 20;
const BYTES: u64 = (JOURNALS * RECORDS * RECORD) as u64;
const WINDOW: u64 = 80 << 20;
/// The client's machine on the network; lenders are on 0 and 1.
const CLIENT: usize = 2;
const FLOOR_PORT: u16 = 7421;

const OPTIONS: [&str; 6] = ["--memory", "2GiB", "--quota", "80MiB", "--deposits", "0"];

/// Moves this thread, and those that it starts, onto a machine of the network.
fn enter(network: &Network, machine: usize) {
    let namespace = File::open(network.namespace(machine)).unwrap();
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
}

/// Sends as many bytes from the client's machine to the second lender's over one connection.
fn floor(network: &Network) -> Duration {
    std::thread::scope(|threads| {
        let server = threads.spawn(|| {
            enter(network, 1);
            let listener = TcpListener::bind(("0.0.0.0", FLOOR_PORT)).unwrap();
            let (mut peer, _) = listener.accept().unwrap();
            let mut into = vec![0; RECORD];
            while peer.read(&mut into).unwrap() > 0 {}
            peer.write_all(&[1]).unwrap();
        });
        let client = threads.spawn(|| {
            enter(network, CLIENT);
            let mut peer = None;
            until("the other end listens", || {
                peer = TcpStream::connect((network.host(1), FLOOR_PORT)).ok();
                peer.is_some()
            });
            let (mut peer, bytes) = (peer.unwrap(), vec![7; RECORD]);
            let began = Instant::now();
            for _ in 0..JOURNALS * RECORDS {
                peer.write_all(&bytes).unwrap();
            }
            peer.shutdown(std::net::Shutdown::Write).unwrap();
            peer.read_exact(&mut [0]).unwrap();
            began.elapsed()
        });
        server.join().unwrap();
        client.join().unwrap()
    })
}

/// Settings of a journal with one of these lenders as its member, of which its disk gets nothing.
fn config(place: &FaultsFixture, lenders: &[String]) -> JournalConfig {
    let lenders = lenders.iter().map(|address| address.parse().unwrap());
    let key = ClusterKey::load(&place.key()).unwrap();
    JournalConfig {
        one_domain: true,
        window_bytes: WINDOW,
        disk_delay: Duration::from_millis(DISK_NEVER_MS),
        ..JournalConfig::with_lenders(lenders.collect(), Security::Key(key), 1)
    }
}

/// Journals of one machine, each with a window full of what its disk does not have.
fn filled(place: &FaultsFixture, config: &JournalConfig) -> Vec<Journal> {
    let open = |number| {
        let root = place.disk().join(format!("journal-{number}"));
        Journal::create(&root, WINDOW).unwrap();
        let (journal, _) = Journal::open(&root, config.clone()).unwrap();
        journal.wait_for_members(PATIENCE).unwrap();
        for _ in 0..RECORDS {
            let ticket = journal.append(RecordKind(16), RECORD, &mut |into| into.fill(7));
            journal.wait(ticket.unwrap(), Durability::Remote).unwrap();
        }
        journal
    };
    (0..JOURNALS).map(open).collect()
}

/// Bytes of all windows that a lender holds.
fn held(lender: &FaultsLender) -> u64 {
    let operator = netram_lender::operator_path(lender.store());
    let operator = format!("unix:{}", operator.display());
    let (_, said) = netram(&["lender", "status", "--insecure", &operator, "--json"]);
    let said: Value = serde_json::from_str(&said).expect("it is JSON");
    let journals = said[0]["report"]["journals"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let used = journals
        .iter()
        .filter_map(|journal| journal["used_bytes"].as_u64());
    used.sum()
}

#[test]
#[ignore = "it measures, with a gibibyte"]
fn a_gibibyte_is_drained() {
    let test = "a_gibibyte_is_drained";
    let mbit = std::env::var("NETRAM_LINK_MBIT").unwrap_or_else(|_| "2500".to_owned());
    let network = match Network::new(3) {
        Ok(network) => network,
        Err(missing) => return skipped(test, &missing),
    };
    for machine in 0..3 {
        network.shape(machine, &mbit);
    }
    let place = FaultsFixture::new();
    let start = |name: &str, machine: usize| {
        let wrap = network.on(machine);
        let wrap: Vec<&str> = wrap.iter().map(String::as_str).collect();
        FaultsLender::start(&place, name, &network.address(machine), &wrap, &OPTIONS)
    };
    let drained = start("a", 0);
    let config = config(&place, &[0, 1].map(|machine| network.address(machine)));
    let link = floor(&network);
    std::thread::scope(|threads| {
        let client = threads.spawn(|| {
            enter(&network, CLIENT);
            filled(&place, &config)
        });
        let journals = client.join().unwrap();
        assert!(held(&drained) >= BYTES, "{}", held(&drained));
        let spare = start("b", 1);
        until("all journals know the spare", || {
            let knows = |journal: &Journal| journal.status().writer.lenders[1].link == LinkPhase::Ready;
            journals.iter().all(knows)
        });
        let began = Instant::now();
        drained.drain_to_the_end();
        let took = began.elapsed();
        assert!(held(&spare) >= BYTES, "{}", held(&spare));
        let speed = |time: Duration| BYTES as f64 / time.as_secs_f64() / 1e6;
        eprintln!(
            "{BYTES} bytes over {mbit} Mbit/s: link {:.0} MB/s, drain {:.0} MB/s: {:.2} of the link",
            speed(link),
            speed(took),
            link.as_secs_f64() / took.as_secs_f64()
        );
    });
}

/// Writes as many bytes to a file, past the page cache, and syncs it.
fn disk_floor(file: &Path) -> Duration {
    const ALIGNMENT: usize = 4096;
    let memory = vec![7; 4 * RECORD + ALIGNMENT];
    let bytes = &memory[memory.as_ptr().align_offset(ALIGNMENT)..][..4 * RECORD];
    let mut open = File::options();
    open.write(true).create_new(true);
    open.custom_flags(OFlags::DIRECT.bits() as i32);
    let began = Instant::now();
    let mut into = open.open(file).unwrap();
    for _ in 0..JOURNALS * RECORDS / 4 {
        into.write_all(bytes).unwrap();
    }
    into.sync_all().unwrap();
    let took = began.elapsed();
    std::fs::remove_file(file).unwrap();
    took
}

#[test]
#[ignore = "it measures, with a gibibyte"]
fn a_gibibyte_is_on_the_disk_soon_after_a_low_battery() {
    let Some(nut) = Nut::start("OL") else { return };
    let place = FaultsFixture::new();
    let spill = place.disk().join("spill");
    std::fs::create_dir(&spill).unwrap();
    let (ups, spill) = (nut.name().to_string(), spill.display().to_string());
    let options = [&OPTIONS[..], &["--ups", &ups, "--spill", &spill]].concat();
    let address = format!("unix:{}", place.memory().join("a").display());
    let mut lender = FaultsLender::start(&place, "a", &address, &[], &options);
    let journals = filled(&place, &config(&place, &[address]));
    assert!(held(&lender) >= BYTES, "{}", held(&lender));
    let disk = disk_floor(&place.disk().join("floor"));
    let began = Instant::now();
    nut.say("OB LB");
    until("the lender ends", || !lender.is_alive());
    let took = began.elapsed();
    let log = lender.log_text();
    let line = |words| log.lines().find(|line| line.contains(words)).unwrap_or_default();
    // Their times leave out what the driver and upsd take.
    eprintln!(
        "{}\n{}",
        line("the battery is low"),
        line("the windows are on the disk")
    );
    eprintln!(
        "{BYTES} bytes: the disk needs {disk:?}; {took:?} after upsd could know of a low battery they are there"
    );
    drop(journals);
}
