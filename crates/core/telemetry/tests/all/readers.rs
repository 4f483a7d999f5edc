//! Readers of the page, good and bad. None costs the process more than a bounded number of descriptors.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use netram_telemetry::limit::CONNECTIONS_MAX;
use netram_telemetry::{
    MetricFamily, MetricSamples, MetricSource, MetricsAddress, MetricsRegistry, MetricsServer,
    MetricsServerError,
};

/// A bound on failures only.
const PATIENCE: Duration = Duration::from_secs(60);

static LINES: MetricFamily = MetricFamily::gauge("netram_lines", "A line each");

/// A source whose text is longer than what sockets buffer.
struct LongPage;

impl MetricSource for LongPage {
    fn collect(&self, samples: &mut MetricSamples) {
        let padding = "x".repeat(1000);
        for line in 0..20_000 {
            samples.gauge(&LINES, &[("line", &format!("{line} {padding}"))], 1.0);
        }
    }
}

fn serve(address: &str) -> MetricsServer {
    MetricsServer::start(&address.parse().unwrap(), MetricsRegistry::of_process()).unwrap()
}

fn tcp(server: &MetricsServer) -> SocketAddr {
    let MetricsAddress::Tcp(address) = server.address() else {
        panic!("{} is a port", server.address())
    };
    *address
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(mut stream: impl Read + Write, request: &[u8]) -> String {
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n";

/// Sockets of this process that are bound to the page's port or connected to it on its side.
fn open_sockets(address: SocketAddr) -> usize {
    let local = format!("0100007F:{:04X}", address.port());
    let table = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
    let established = table.lines().skip(1).filter(|line| {
        let mut words = line.split_whitespace().skip(1);
        let (own, _, state) = (words.next(), words.next(), words.next());
        // Those in the kernel's queue are established, too, but have no inode yet.
        own == Some(&local) && state == Some("01") && line.split_whitespace().nth(9) != Some("0")
    });
    established.count()
}

#[test]
fn pages_and_refusals_have_their_status_and_their_length() {
    let server = serve("127.0.0.1:0");
    let asked = |request: &[u8]| ask(connect(tcp(&server)), request);
    let page = asked(GET);
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains(&format!("Content-Length: {}", body.len())),
        "{head}"
    );
    assert!(
        head.contains("version=0.0.4") && body.contains("netram_build_info"),
        "{page}"
    );
    let modern = asked(b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n");
    assert!(
        modern.contains("application/openmetrics-text") && modern.ends_with("# EOF\n"),
        "{modern}"
    );
    assert!(asked(b"GET /health HTTP/1.0\r\n\r\n").ends_with("\r\n\r\nok\n"));
    assert!(asked(b"PUT /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(asked(b"GET /secret HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
}

#[test]
fn a_huge_request_is_refused_and_its_end_is_not_awaited() {
    let server = serve("127.0.0.1:0");
    let mut stream = connect(tcp(&server));
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let sent = (0..10_000)
        .take_while(|_| stream.write_all(&[b'x'; 4096]).is_ok())
        .count();
    assert!(sent < 10_000, "40 MB of a request are not read");
    assert!(ask(connect(tcp(&server)), GET).starts_with("HTTP/1.1 200 "));
}

#[test]
fn readers_that_never_read_or_ask_cost_their_places_and_no_more() {
    let source = Arc::new(LongPage);
    let _kept = MetricsRegistry::of_process().add(&source);
    let server = serve("127.0.0.1:0");
    let address = tcp(&server);
    // Half of them ask for a page that fits no buffer and do not read it, the others do not even ask.
    let idle: Vec<TcpStream> = (0..3 * CONNECTIONS_MAX)
        .map(|number| {
            let mut stream = connect(address);
            if number % 2 == 0 {
                stream.write_all(GET).unwrap();
            }
            stream
        })
        .collect();
    assert!(open_sockets(address) <= CONNECTIONS_MAX);
    // They make room, and whoever comes after them is served.
    let answer = ask(connect(address), b"GET /health HTTP/1.1\r\n\r\n");
    assert!(answer.ends_with("ok\n"), "{answer}");
    assert!(open_sockets(address) <= CONNECTIONS_MAX);
    drop(idle);
}

#[test]
fn a_slow_reader_delays_nobody() {
    let source = Arc::new(LongPage);
    let _kept = MetricsRegistry::of_process().add(&source);
    let server = serve("127.0.0.1:0");
    let mut slow = connect(tcp(&server));
    slow.write_all(&GET[..10]).unwrap();
    for _ in 0..20 {
        assert!(ask(connect(tcp(&server)), b"GET /health HTTP/1.1\r\n\r\n").ends_with("ok\n"));
    }
    slow.write_all(&GET[10..]).unwrap();
    let mut page = Vec::new();
    slow.read_to_end(&mut page).unwrap();
    assert!(page.len() > 20_000_000, "{} bytes of the page", page.len());
}

#[test]
fn an_address_in_use_is_named_with_the_remedy() {
    let server = serve("127.0.0.1:0");
    let again = MetricsServer::start(server.address(), MetricsRegistry::of_process());
    let Err(error @ MetricsServerError::InUse(_)) = again else {
        panic!("the address is in use: {again:?}")
    };
    let text = error.to_string();
    assert!(
        text.contains(&server.address().to_string()) && text.contains("another port"),
        "{text}"
    );
    let elsewhere = MetricsServer::start(&"192.0.2.1:0".parse().unwrap(), MetricsRegistry::of_process());
    assert!(
        matches!(elsewhere, Err(MetricsServerError::Bind { .. })),
        "{elsewhere:?}"
    );
}

#[test]
fn a_socket_left_by_a_killed_process_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics");
    let address = format!("unix:{}", path.display());
    // A killed process leaves its socket.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = serve(&address);
    assert!(ask(UnixStream::connect(&path).unwrap(), GET).contains("netram_build_info"));
    let again = MetricsServer::start(&address.parse().unwrap(), MetricsRegistry::of_process());
    assert!(matches!(again, Err(MetricsServerError::InUse(_))), "{again:?}");
    assert!(ask(UnixStream::connect(&path).unwrap(), GET).contains("netram_build_info"));
    drop(server);
    assert!(!path.exists(), "the socket is removed with the page");
}
