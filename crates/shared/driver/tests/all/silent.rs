//! A link that silently carries nothing any more; TCP would consider it intact for minutes. The node
//! continues over another link before its lease is over, or learns that it is fenced.
//!
//! The test runs itself in a network namespace of its own, in which `nft` drops packets of one connection.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use netram_transport::NetAddress;

use crate::common::skipped;
use crate::common::world::{TestPaths, add, read};

const PLACE: &str = "NETRAM_TEST_PLACE";
const PORT: u16 = 7461;
const LEASE: Duration = Duration::from_secs(2);
/// Packets of a node's connection that are dropped.
const CUTS: [(&str, &[&str]); 3] = [
    ("both ways", &["sport", "dport"]),
    ("to the server", &["sport"]),
    ("from the server", &["dport"]),
];

/// Error of a system tool that is missing, or lacks a permission.
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

#[test]
fn a_node_replaces_a_silent_link_within_its_lease() {
    let unshare = ["--net", "nft", "add", "table", "inet", "cut"];
    if let Some(missing) = missing("unshare", &unshare).or_else(|| missing("ip", &["-V"])) {
        return skipped(missing);
    }
    let directory = tempfile::tempdir_in("/dev/shm").expect("tests need /dev/shm");
    let ran = Command::new("unshare")
        .args(["--net", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "silent::in_a_namespace", "--ignored", "--nocapture"])
        .env(PLACE, directory.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// Not a test of its own: it drops packets of the network that it is in.
#[test]
#[ignore = "runs in a namespace that the other test makes"]
fn in_a_namespace() {
    let Some(directory) = std::env::var_os(PLACE) else {
        return;
    };
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_secs(60));
        std::process::exit(3);
    });
    prepare();
    let place = TestPaths {
        directory: directory.into(),
    };
    let _lender = place.lender("a");
    place.create(CUTS.len(), &["a"]);
    let address: NetAddress = format!("tcp://127.0.0.1:{PORT}").parse().unwrap();
    let _serving = place.serve_as(|config| {
        config.listen = vec![address.clone()];
        config.lease = LEASE;
    });
    let join = |name: &str| place.join_as(name, |options| options.server = address.clone());
    let other = join("other");
    for lock in 0..CUTS.len() as u32 {
        assert_eq!(add(&other, lock, 1).unwrap(), 1);
    }
    let mut known = ports();
    let cut = CUTS.map(|(what, ends)| {
        let node = join(what);
        let new: Vec<u16> = ports().into_iter().filter(|port| !known.contains(port)).collect();
        let [port] = new[..] else {
            panic!("its connection is one of {new:?}")
        };
        known.push(port);
        (what, ends, node, port.to_string())
    });
    for (_, ends, _, port) in &cut {
        for end in *ends {
            tool(
                "nft",
                &["add", "rule", "inet", "cut", "input", "tcp", end, port, "drop"],
            );
        }
    }
    let since = Instant::now();
    std::thread::scope(|scope| {
        for (lock, (what, _, node, _)) in cut.iter().enumerate() {
            let lock = lock as u32;
            scope.spawn(move || {
                // The other node has the token, which only the server can recall.
                match add(node, lock, 1) {
                    Ok(value) => assert_eq!(value, 2),
                    // On a loaded machine its lease may end first: then the node has ended.
                    Err(error) => assert!(node.gone().is_some(), "{what}: {error}"),
                }
                let took = since.elapsed();
                eprintln!("{what}: {took:?}, {:?}", node.gone());
                assert!(took < 3 * LEASE, "{what}: {took:?}");
            });
        }
    });
    // Other nodes see the commits of every node that is still alive.
    for (lock, (_, _, node, _)) in cut.iter().enumerate() {
        if node.gone().is_none() {
            assert_eq!(read(&other, lock as u32), 2);
        }
    }
}

/// Enables loopback, and creates a chain for rules that drop packets.
fn prepare() {
    tool("ip", &["link", "set", "lo", "up"]);
    tool("nft", &["add", "table", "inet", "cut"]);
    tool(
        "nft",
        &[
            "add",
            "chain",
            "inet",
            "cut",
            "input",
            "{ type filter hook input priority 0; }",
        ],
    );
}

/// Local ports of connections to the server.
fn ports() -> Vec<u16> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let far = format!("0100007F:{PORT:04X}");
    let lines = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let open = lines.filter(|line| line[2] == far && line[3] == "01");
    let port = |line: Vec<&str>| u16::from_str_radix(line[1].rsplit_once(':').unwrap().1, 16).unwrap();
    open.map(port).collect()
}

fn tool(tool: &str, arguments: &[&str]) {
    assert_eq!(missing(tool, arguments), None, "{arguments:?}");
}
