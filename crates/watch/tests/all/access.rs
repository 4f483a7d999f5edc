//! Access to the pages, over real connections.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use netram_telemetry::MetricsAddress;
use netram_watch::site::{DashboardError, DashboardServer, SiteToken};
use netram_watch::source::ViewCollector;
use netram_watch::view::{ClusterView, LenderRow};

/// A bound on failures only.
const PATIENCE: Duration = Duration::from_secs(60);
const TOKEN: &str = "correct-horse-battery";

fn serve(token: Option<&str>) -> (DashboardServer, SocketAddr) {
    let view = ClusterView {
        lenders: vec![LenderRow {
            address: "tcp://10.0.0.1:7420".to_owned(),
            name: "</script><script>alert(1)</script>".to_owned(),
            ..LenderRow::default()
        }],
        ..ClusterView::default()
    };
    let token = token.map(|token| SiteToken::new(token).unwrap());
    let address = "127.0.0.1:0".parse().unwrap();
    let server = DashboardServer::start(&address, token, ViewCollector::fixed(view)).unwrap();
    let MetricsAddress::Tcp(address) = *server.address() else {
        panic!("{} is a port", server.address())
    };
    (server, address)
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{request}\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(address: SocketAddr, path: &str, header: &str) -> String {
    ask(
        address,
        &format!("GET {path} HTTP/1.1\r\nHost: localhost:1\r\n{header}"),
    )
}

fn header<'a>(answer: &'a str, name: &str) -> &'a str {
    let mut lines = answer.lines().filter_map(|line| line.split_once(": "));
    lines
        .find(|(other, _)| *other == name)
        .map_or("", |(_, value)| value)
}

#[test]
fn the_page_is_whole_and_forbids_everything_from_elsewhere() {
    let (_server, address) = serve(None);
    let page = get(address, "/", "");
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    let policy = header(&page, "Content-Security-Policy");
    assert!(
        policy.starts_with("default-src 'none'; script-src 'nonce-"),
        "{policy}"
    );
    for word in ["{{", "src=", "@import", "innerHTML", "eval("] {
        assert!(!page.contains(word), "{word}");
    }
    assert_ne!(
        header(&get(address, "/", ""), "Content-Security-Policy"),
        policy,
        "a nonce is used once"
    );
    let state = get(address, "/state.json?search=tcp&page=9", "");
    assert!(
        state.contains("\"lenders_matched\":1") && state.contains("application/json"),
        "{state}"
    );
    assert!(get(address, "/metrics", "").contains("netram_build_info"));
    assert!(get(address, "/other", "").starts_with("HTTP/1.1 404 "));
    let put = ask(address, "POST /state.json HTTP/1.1\r\nHost: localhost");
    assert!(put.starts_with("HTTP/1.1 405 "), "{put}");
}

#[test]
fn a_name_that_leads_here_from_elsewhere_is_refused_with_the_remedy() {
    let (_server, address) = serve(None);
    for path in ["/", "/state.json", "/metrics"] {
        let refused = ask(
            address,
            &format!("GET {path} HTTP/1.1\r\nHost: rebound.example:7480"),
        );
        assert!(
            refused.starts_with("HTTP/1.1 403 ") && refused.contains("--token-file"),
            "{refused}"
        );
    }
}

#[test]
fn without_the_token_nothing_is_seen_and_with_it_everything_is() {
    let (_server, address) = serve(Some(TOKEN));
    for path in ["/", "/state.json", "/metrics", "/other", "/login"] {
        let asked = get(address, path, "");
        assert!(
            asked.starts_with("HTTP/1.1 401 ") && asked.contains("needs its token"),
            "{path}: {asked}"
        );
        assert!(!asked.contains("10.0.0.1"), "{asked}");
    }
    assert!(
        get(address, "/health", "").ends_with("ok\n"),
        "whether it runs is no secret"
    );
    let wrong = get(address, "/login", "Authorization: Bearer wrong");
    assert!(
        wrong.starts_with("HTTP/1.1 401 ") && wrong.contains("token is wrong"),
        "{wrong}"
    );
    let right = format!("Authorization: Bearer {TOKEN}");
    assert!(get(address, "/state.json", &right).contains("10.0.0.1"));
    let once = get(address, &format!("/?token={TOKEN}"), "");
    assert!(
        once.starts_with("HTTP/1.1 303 ") && header(&once, "Location") == "/",
        "{once}"
    );
    let cookie = header(&once, "Set-Cookie").split(';').next().unwrap();
    assert!(!cookie.contains(TOKEN));
    assert!(get(address, "/state.json", &format!("Cookie: {cookie}")).contains("10.0.0.1"));
    // Guessing ends soon, and whoever has a cookie does not notice.
    let guesses = (0..40).map(|_| get(address, "/login", "Authorization: Bearer wrong"));
    let answers: Vec<String> = guesses.collect();
    let last = &answers[39];
    assert!(last.starts_with("HTTP/1.1 429 "), "{last}");
    assert!(get(address, "/state.json", &format!("Cookie: {cookie}")).contains("10.0.0.1"));
}

#[test]
fn an_address_for_other_machines_needs_a_token() {
    let address: MetricsAddress = "0.0.0.0:0".parse().unwrap();
    let start = |token| DashboardServer::start(&address, token, ViewCollector::fixed(ClusterView::default()));
    let refused = start(None).unwrap_err();
    assert!(matches!(refused, DashboardError::NeedsToken(_)), "{refused}");
    assert!(refused.to_string().contains("--token-file"), "{refused}");
    let server = start(SiteToken::new(TOKEN)).unwrap();
    let again = DashboardServer::start(
        server.address(),
        SiteToken::new(TOKEN),
        ViewCollector::fixed(ClusterView::default()),
    );
    assert!(matches!(again, Err(DashboardError::InUse(_))), "{again:?}");
}

#[test]
fn a_reader_that_never_reads_delays_nobody() {
    let (_server, address) = serve(None);
    let mut idle = TcpStream::connect(address).unwrap();
    idle.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n").unwrap();
    for _ in 0..20 {
        assert!(get(address, "/state.json", "").starts_with("HTTP/1.1 200 "));
    }
    drop(idle);
}
