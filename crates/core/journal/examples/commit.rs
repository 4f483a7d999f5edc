//! One thread's commits, for a profiler: `cargo run --release --example commit -- [members] [microseconds of
//! disk delay] [key|insecure] [tcp|unix]`. Lenders are processes of their own, on core 1; the client spins on
//! core 0. `netram-lab bench commit` is the measurement; this is the loop alone.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use netram_journal::{Journal, JournalConfig};
use netram_lender::{Lender, LenderConfig};
use netram_proto::port::{Durability, RecordKind, RecordLog};
use netram_transport::{ClusterKey, Security, WaitPolicy};
use rustix::thread::{CpuSet, sched_setaffinity};

const COMMITS: usize = 200_000;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.get(1).is_some_and(|first| first == "lend") {
        return lend(&arguments);
    }
    let members: usize = arguments
        .get(1)
        .map_or(1, |text| text.parse().expect("a number of members"));
    let delay: u64 = arguments
        .get(2)
        .map_or(1000, |text| text.parse().expect("microseconds"));
    let key = arguments.get(3).is_none_or(|text| text == "key");
    let tcp = arguments.get(4).is_none_or(|text| text == "tcp");
    let directory = tempfile::tempdir_in(".").expect("a directory");
    let key_file = directory.path().join("key");
    let security = if key {
        let key = ClusterKey::generate();
        key.save_new(&key_file).expect("a key file");
        Security::Key(key)
    } else {
        Security::Insecure
    };
    let mut lenders = Vec::new();
    let mut children = Vec::new();
    for index in 0..members {
        let address = if tcp {
            format!("tcp://127.0.0.1:{}", 17_700 + index)
        } else {
            format!(
                "unix:{}",
                directory.path().join(format!("{index}.sock")).display()
            )
        };
        let store = directory
            .path()
            .join("..")
            .join(format!("/dev/shm/netram-example-{index}.mem"));
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "lend",
                &address,
                key_file.to_str().expect("text"),
                store.to_str().expect("text"),
            ])
            .args([if members > 1 { "yield:50" } else { "spin" }, "1"])
            .stdin(Stdio::piped())
            .spawn();
        children.push(child.expect("a lender"));
        lenders.push(address.parse().expect("an address"));
    }
    pin(0);
    let root = directory.path().join("journal");
    Journal::create(&root, 64 << 20).expect("a journal");
    let wait = WaitPolicy::Spin;
    let config = JournalConfig {
        one_domain: true,
        wait,
        disk_delay: Duration::from_micros(delay),
        ..JournalConfig::with_lenders(lenders, security, members)
    };
    let (journal, _) = Journal::open(&root, config).expect("it opens");
    if members > 0 {
        journal.wait_for_members(Duration::from_secs(5)).expect("members");
    }
    commit(&journal);
    drop(journal);
    children.into_iter().for_each(end);
}

/// Commits, and prints percentiles of the commit time.
fn commit(journal: &Journal) {
    let mut times: Vec<Duration> = Vec::with_capacity(COMMITS);
    for _ in 0..COMMITS {
        let began = Instant::now();
        let ticket = journal
            .append(RecordKind(16), 128, &mut |into| into.fill(7))
            .expect("append");
        journal.wait(ticket, Durability::Remote).expect("wait");
        times.push(began.elapsed());
        if journal.state().tail.since(journal.state().head) > 32 << 20 {
            journal.trim(journal.state().stable).expect("trim");
        }
    }
    times.sort_unstable();
    let at = |part: f64| times[(COMMITS as f64 * part) as usize].as_nanos();
    eprintln!(
        "p50 {} ns, p99 {} ns, p99.9 {} ns, syncs {}",
        at(0.5),
        at(0.99),
        at(0.999),
        journal.status().syncs
    );
}

fn lend(arguments: &[String]) {
    pin(arguments[6].parse().expect("a core"));
    let security = match ClusterKey::load(arguments[3].as_ref()) {
        Ok(key) => Security::Key(key),
        Err(_) => Security::Insecure,
    };
    let lender = Lender::start(LenderConfig {
        name: "example".into(),
        listen: vec![arguments[2].parse().expect("an address")],
        security,
        memory: 64 << 20,
        store: Some(arguments[4].clone().into()),
        wait: arguments[5].parse().expect("a wait policy"),
        ..LenderConfig::default()
    });
    let lender = lender.expect("a lender");
    // The parent's end closes our standard input, even if it was killed.
    let _ = std::io::read_to_string(std::io::stdin());
    lender.stop_and_forget(Duration::ZERO);
}

fn end(mut child: Child) {
    drop(child.stdin.take());
    let _ = child.wait();
}

fn pin(core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    let _ = sched_setaffinity(None, &set);
}
