//! Group commit by itself: threads that commit to one journal, on one core, one lender on another.
//! `cargo run --release --example group -- THREADS POLICY`. Prints commits a second and records a frame.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use netram_journal::{Journal, JournalConfig};
use netram_lender::{Lender, LenderConfig};
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_transport::Security;
use rustix::thread::{CpuSet, sched_setaffinity};

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let threads: u64 = arguments.get(1).map_or(8, |text| text.parse().expect("a number"));
    let wait = arguments
        .get(2)
        .map_or("yield:50", String::as_str)
        .parse()
        .expect("a policy");
    let directory = tempfile::tempdir_in(".").expect("a directory");
    let lender = Lender::start(LenderConfig {
        listen: vec!["tcp://127.0.0.1:0".parse().expect("an address")],
        memory: 64 << 20,
        store: Some(std::path::PathBuf::from("/dev/shm/netram-example-group.mem")),
        pin: vec![1],
        ..LenderConfig::default()
    })
    .expect("a lender");
    let mut core = CpuSet::new();
    core.set(0);
    sched_setaffinity(None, &core).expect("a core");
    let root = directory.path().join("journal");
    Journal::create(&root, 256 << 20).expect("a journal");
    let lenders = lender.addresses().to_vec();
    let config = JournalConfig {
        one_domain: true,
        wait,
        ..JournalConfig::with_lenders(lenders, Security::Insecure, 1)
    };
    let (journal, _) = Journal::open(&root, config).expect("it opens");
    journal.wait_for_members(Duration::from_secs(5)).expect("members");
    let frames = |lender: &Lender| lender.report().counters.appends;
    let before = frames(&lender);
    let (count, end) = (AtomicU64::new(0), Instant::now() + Duration::from_secs(2));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while Instant::now() < end {
                    let ticket = journal
                        .append(RecordKind(16), 128, &mut |into| into.fill(7))
                        .expect("append");
                    journal.wait(ticket, Durability::Remote).expect("wait");
                    let done = count.fetch_add(1, Ordering::Relaxed);
                    if done % 100_000 == 99_999 {
                        journal.trim(journal.state().stable).expect("trim");
                    }
                }
            });
        }
    });
    let (count, frames) = (count.into_inner(), frames(&lender) - before);
    eprintln!(
        "{threads} threads, {wait}: {} commits/s, {:.1} records a frame",
        count / 2,
        count as f64 / frames as f64
    );
    drop(journal);
    lender.stop_and_forget(Duration::ZERO);
}
