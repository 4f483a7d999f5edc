//! Silent name servers, for one family or for both, and addresses that do not answer: none of them may delay
//! a connection to another address by more than a moment.
//!
//! The test runs itself in namespaces of its own, in which it is the name server.

use std::net::{IpAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use netram_transport::both_ends::finish;
use netram_transport::{ClusterKey, ConnectError, Link, Listener, NetAddress, Security, connect};

use crate::common::PATIENCE;

const RESOLVER: &str = "NETRAM_TEST_RESOLVER";
const PORT: u16 = 7420;
/// Far less than the five seconds after which the system's resolver repeats a query.
const SOON: Duration = Duration::from_millis(2500);
const DEAF: &str = "127.0.0.66";

/// The addresses that a name has in each family; `None`: queries for the family are not answered.
#[derive(Clone, Default)]
struct NameAnswers {
    v4: Option<Vec<IpAddr>>,
    v6: Option<Vec<IpAddr>>,
}

/// The error of a system tool that is missing or not permitted; `None` if it works.
fn missing(tool: &str, arguments: &[&str]) -> Option<String> {
    let ran = Command::new(tool).args(arguments).stdin(Stdio::null()).output();
    match ran {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(format!(
            "{tool}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) => Some(format!("{tool}: {error}")),
    }
}

/// Prints the notice directly to stderr, since the harness hides the output of a test that passes.
fn skipped(missing: &str) {
    use std::io::Write;
    let test = thread::current().name().unwrap_or("a test").to_owned();
    // A failure to print cannot be reported anywhere.
    let _ = writeln!(std::io::stderr(), "\nSKIPPED {test}: {missing}");
}

#[test]
fn a_silent_name_server_delays_connecting_by_a_moment_only() {
    let unshare = ["--net", "--mount", "nft", "add", "table", "inet", "cut"];
    let files = ["/etc/resolv.conf", "/etc/nsswitch.conf"];
    let absent = files.iter().find(|file| !std::path::Path::new(file).exists());
    let lacks = missing("unshare", &unshare).or_else(|| missing("ip", &["-V"]));
    let lacks = lacks.or_else(|| Some(format!("{} is missing", absent?)));
    if let Some(lacks) = lacks {
        return skipped(&lacks);
    }
    let directory = tempfile::tempdir().unwrap();
    let (resolv, switch) = (directory.path().join("resolv"), directory.path().join("switch"));
    std::fs::write(&resolv, "nameserver 127.0.0.1\n").unwrap();
    std::fs::write(&switch, "hosts: files dns\n").unwrap();
    let ran = Command::new("unshare")
        .args(["--net", "--mount", "--", "sh", "-ec"])
        .arg(
            "mount --bind \"$1\" /etc/resolv.conf; mount --bind \"$2\" /etc/nsswitch.conf; shift 2; exec \"$@\"",
        )
        .arg("sh")
        .args([&resolv, &switch])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "names::in_namespaces", "--ignored", "--nocapture"])
        .env(RESOLVER, "1")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
}

/// The inner half of the test above: it is the name server of its own network namespace.
#[test]
#[ignore = "runs in namespaces that the other test makes"]
fn in_namespaces() {
    if std::env::var_os(RESOLVER).is_none() {
        return;
    }
    thread::spawn(|| {
        thread::sleep(6 * PATIENCE);
        std::process::exit(3);
    });
    tool("ip", &["link", "set", "lo", "up"]);
    tool("nft", &["add", "table", "inet", "cut"]);
    let chain = "{ type filter hook input priority 0; }";
    tool("nft", &["add", "chain", "inet", "cut", "input", chain]);
    tool(
        "nft",
        &["add", "rule", "inet", "cut", "input", "ip", "daddr", DEAF, "drop"],
    );
    let says = Arc::new(Mutex::new(NameAnswers::default()));
    let (server, answers) = (UdpSocket::bind("127.0.0.1:53").unwrap(), Arc::clone(&says));
    thread::spawn(move || answer(&server, &answers));
    let key = Security::Key(ClusterKey::generate());
    for at in [format!("tcp://127.0.0.1:{PORT}"), format!("tcp://[::1]:{PORT}")] {
        let listener = Listener::bind(&at.parse().unwrap(), key.clone()).unwrap();
        thread::spawn(move || welcome(&listener));
    }
    let [v4, v6, deaf]: [IpAddr; 3] = ["127.0.0.1", "::1", DEAF].map(|text| text.parse().unwrap());
    let says =
        |v4: Option<Vec<IpAddr>>, v6: Option<Vec<IpAddr>>| *says.lock().unwrap() = NameAnswers { v4, v6 };

    let (outcome, took) = reach("none", &key, Duration::from_millis(300));
    assert!(
        matches!(outcome, Err(ConnectError::NameUnanswered { .. })),
        "{outcome:?}"
    );
    assert!(took < SOON, "{took:?}");

    says(Some(vec![v4]), None);
    at_once("four", &key, "127.0.0.1");
    says(None, Some(vec![v6]));
    at_once("six", &key, "[::1]");
    says(Some(vec![deaf, v4]), Some(Vec::new()));
    at_once("deaf", &key, "127.0.0.1");
    says(None, None);
    for known in ["four", "six", "deaf"] {
        at_once(known, &key, if known == "six" { "[::1]" } else { "127.0.0.1" });
    }
    says(Some(Vec::new()), Some(Vec::new()));
    let (outcome, took) = reach("nowhere", &key, PATIENCE);
    assert!(
        matches!(outcome, Err(ConnectError::NameNotFound { .. })),
        "{outcome:?}"
    );
    assert!(took < SOON, "{took:?}");
}

fn at_once(name: &str, key: &Security, place: &str) {
    let (outcome, took) = reach(name, key, PATIENCE);
    let link = outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(link.peer(), format!("tcp://{place}:{PORT}"));
    assert!(took < SOON, "{name}: {took:?}");
}

fn reach(name: &str, key: &Security, patience: Duration) -> (Result<Link, ConnectError>, Duration) {
    let address: NetAddress = format!("tcp://{name}.lender.test:{PORT}").parse().unwrap();
    let since = Instant::now();
    (connect(&address, key, patience), since.elapsed())
}

/// Completes the handshake of every client.
fn welcome(listener: &Listener) {
    let mut all = Vec::new();
    loop {
        if let Some(mut pending) = listener.accept(Instant::now()).unwrap() {
            all.push(finish(&mut pending).ok());
        }
        thread::sleep(Duration::from_micros(100));
    }
}

/// Answers address queries (RFC 1035, RFC 3596) according to `says`.
fn answer(server: &UdpSocket, says: &Mutex<NameAnswers>) {
    let mut question = [0; 512];
    loop {
        let (length, from) = server.recv_from(&mut question).unwrap();
        // The header is followed by one name, and two bytes each for type and class.
        let name = question[12..length].iter().position(|byte| *byte == 0).unwrap() + 1;
        let end = 12 + name + 4;
        let (kind, says) = (question[12 + name + 1], says.lock().unwrap().clone());
        let Some(found) = (if kind == 28 { says.v6 } else { says.v4 }) else {
            continue;
        };
        let mut reply = question[..end].to_vec();
        reply[2..4].copy_from_slice(&[0x81, 0x80]);
        reply[6..12].copy_from_slice(&[0, found.len() as u8, 0, 0, 0, 0]);
        for ip in found {
            reply.extend_from_slice(&[0xc0, 12, 0, kind, 0, 1, 0, 0, 0, 60]);
            match ip {
                IpAddr::V4(ip) => reply.extend_from_slice(&[&[0, 4][..], &ip.octets()].concat()),
                IpAddr::V6(ip) => reply.extend_from_slice(&[&[0, 16][..], &ip.octets()].concat()),
            }
        }
        server.send_to(&reply, from).unwrap();
    }
}

fn tool(tool: &str, arguments: &[&str]) {
    assert_eq!(missing(tool, arguments), None, "{arguments:?}");
}
