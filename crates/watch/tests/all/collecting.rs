//! Asking real lenders, sockets and pages. Whoever does not answer hides nobody.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use netram_discover::ClusterFile;
use netram_lender::{Lender, LenderConfig};
use netram_telemetry::{MetricsRegistry, MetricsServer};
use netram_transport::{NetAddress, Security};
use netram_watch::source::{CollectorSettings, ViewCollector};
use netram_watch::view::ClusterView;

/// A bound on failures only.
const PATIENCE: Duration = Duration::from_secs(60);

fn settings(lenders: Vec<NetAddress>, pages: &[String]) -> CollectorSettings {
    let nowhere = || {
        Ok(ClusterFile {
            mdns: false,
            ..ClusterFile::none()
        })
    };
    CollectorSettings {
        cluster: Box::new(nowhere),
        lenders,
        security: Security::Insecure,
        pages: pages.iter().map(|page| page.parse().unwrap()).collect(),
        uses: Box::new(Vec::new),
    }
}

fn wait_for(collector: &ViewCollector, what: &str, is_so: impl Fn(&ClusterView) -> bool) -> Arc<ClusterView> {
    let begun = Instant::now();
    loop {
        let (view, _) = collector.view();
        if is_so(&view) {
            return view;
        }
        assert!(begun.elapsed() < PATIENCE, "{what}: {view:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A lender at a port that stays its own.
fn lender(directory: &std::path::Path, listen: &str) -> Lender {
    let config = LenderConfig {
        name: "ram-1".to_owned(),
        domain: "ups-1".to_owned(),
        listen: vec![listen.parse().unwrap()],
        memory: 16 << 20,
        store: Some(directory.join("store")),
        ..LenderConfig::default()
    };
    Lender::start(config).unwrap()
}

#[test]
fn a_lender_is_shown_while_it_answers_when_it_does_not_and_when_it_is_back() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let first = lender(directory.path(), "tcp://127.0.0.1:0");
    let address = first.addresses()[0].clone();
    let collector = ViewCollector::start(settings(vec![address.clone()], &[])).unwrap();
    let is_up = |view: &ClusterView| {
        view.lenders
            .iter()
            .any(|row| row.name == "ram-1" && row.error.is_none())
    };
    let view = wait_for(&collector, "it answers", is_up);
    assert_eq!(
        (view.lenders[0].domain.as_str(), view.lenders[0].lent),
        ("ups-1", 16 << 20)
    );
    first.stop(Duration::ZERO);
    drop(first);
    let view = wait_for(&collector, "it is gone", |view| {
        view.lenders.iter().all(|row| row.error.is_some())
    });
    assert_eq!(view.lenders[0].name, "ram-1", "what was known of it stays");
    let _second = lender(directory.path(), &address.to_string());
    wait_for(&collector, "it is back", is_up);
}

#[test]
fn targets_that_do_not_answer_hide_and_delay_nobody() {
    let silent: Vec<TcpListener> = (0..40)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let page = MetricsServer::start(&"127.0.0.1:0".parse().unwrap(), MetricsRegistry::of_process()).unwrap();
    let mut pages: Vec<String> = silent
        .iter()
        .map(|one| one.local_addr().unwrap().to_string())
        .collect();
    pages.push(page.address().to_string());
    let lenders = silent
        .iter()
        .map(|one| format!("tcp://{}", one.local_addr().unwrap()).parse().unwrap());
    let collector = ViewCollector::start(settings(lenders.collect(), &pages)).unwrap();
    let is_seen = |view: &ClusterView, page: &str| {
        view.processes
            .iter()
            .any(|row| row.page == page && row.error.is_none())
    };
    let own = page.address().to_string();
    let first = wait_for(&collector, "the page that answers", |view| is_seen(view, &own));
    let seen = |view: &ClusterView| view.processes.iter().find(|row| row.page == own).unwrap().seen_ms;
    wait_for(&collector, "it is asked again and again", |view| {
        seen(view) > seen(&first) + 4000
    });
    wait_for(&collector, "all are shown", |view| {
        view.is_complete && view.lenders.len() == 40 && view.processes.len() == 41
    });
}

#[test]
fn ending_waits_for_no_answer() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let page = silent.local_addr().unwrap().to_string();
    let collector = ViewCollector::start(settings(Vec::new(), &[page])).unwrap();
    let (mut asked, _): (TcpStream, _) = silent.accept().unwrap();
    drop(collector);
    let mut request = [0; 3];
    asked.read_exact(&mut request).unwrap();
    assert_eq!(&request, b"GET");
}
