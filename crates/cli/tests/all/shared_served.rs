//! `netram shared`: what an operator sees and does of a region that is served: in its directory, and at its
//! address.

use std::fs;
use std::sync::Arc;
use std::time::Instant;

use crate::common::run;
use crate::common::shared::{PATIENCE, SharedFixture, SharedServer};
use netram_proto::id::{Incarnation, JournalId};
use netram_proto::journal::{View, ViewMember};
use netram_proto::port::Durability;
use netram_proto::wire::ChainPoint;
use netram_rvm::RestoreMode;
use netram_shared::channel::{AcceptedSession, AcceptorConfig, Channel, SessionAcceptor, SessionHandler};
use netram_shared::server::ServerReport;
use netram_shared::server::serve::report::{NodeReport, RegionReport};
use netram_shared::{Node, NodeOptions};
use netram_shared_machine::message::JoinRequest;
use netram_shared_machine::{LockId, LockMode, ToNode, ToServer};
use netram_transport::{ClusterKey, NetAddress, Security};
use serde_json::Value;

/// A node that has sent nothing but its request to join.
fn joined(address: &NetAddress, view: View) -> Channel {
    let mut node = Channel::open(address, &Security::Insecure, PATIENCE).unwrap();
    let join: ToServer<Vec<u8>> = ToServer::Join(JoinRequest {
        region: None,
        name: "desk".to_owned(),
        view,
        key: Vec::new(),
        begins: ChainPoint::default(),
        lazy: false,
        link: 0,
    });
    let mut head = Vec::new();
    join.head(&mut head);
    node.queue(&[&head]);
    let began = Instant::now();
    loop {
        node.flush().unwrap();
        if let Some(message) = node.receive().unwrap() {
            assert!(matches!(
                ToNode::decode(message),
                Ok(ToNode::Joined(_) | ToNode::Durable { .. })
            ));
            return node;
        }
        assert!(began.elapsed() < PATIENCE, "nobody is let in");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < 3 * PATIENCE, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[test]
fn a_region_is_served_shown_and_stopped() {
    let place = SharedFixture::new();
    assert_eq!(place.made().code, 0);
    // The node that the test plays sends nothing more.
    let mut server = SharedServer::start(&place, "plan", &["--lease", "60s"]);
    let address = server.address.parse().unwrap();
    let _node = joined(&address, View::first(JournalId(5)));
    let shown = place.json("status", "plan");
    assert_eq!(
        (&shown["served"], &shown["server"]["nodes"][0]["name"]),
        (&true.into(), &"desk".into())
    );
    let told = place.shared("status", "plan", &[]);
    assert!(
        told.out.contains("served at tcp://") && told.out.contains("node 1 is live"),
        "{}",
        told.out
    );
    let afar = run(["shared", "status", &server.address, "--insecure", "--json"]);
    assert_eq!(afar.code, 0, "{}", afar.err);
    let afar: Value = serde_json::from_str(&afar.out).unwrap();
    for name in [
        "id",
        "bytes",
        "address",
        "locks",
        "position",
        "nodes",
        "nodes_gone",
        "losses_accepted",
        "served",
    ] {
        assert_eq!(afar[name], shown[name], "{name}");
    }
    for name in ["addresses", "lease_ms", "nodes"] {
        assert_eq!(afar["server"][name], shown["server"][name], "{name}");
    }
    let people = run(["shared", "status", &server.address, "--insecure"]);
    for word in ["16 locks", "served at tcp://", "node 1 is live"] {
        assert!(people.out.contains(word), "{word}: {}", people.out);
    }
    refuses_what_makes_no_sense(&place, &server);
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
    let shown = place.json("status", "plan");
    assert_eq!(
        (&shown["served"], &shown["server"]),
        (&false.into(), &Value::Null)
    );
    let ended = run(["shared", "status", &server.address, "--insecure"]);
    assert!(
        ended.code == 1 && ended.err.contains("cannot reach"),
        "{}",
        ended.err
    );
    let unserved = place.shared("accept-loss", "plan", &["--node", "1"]);
    assert!(unserved.err.contains("is not being served"), "{}", unserved.err);
    assert_eq!(
        shown["nodes"][0]["standing"], "live",
        "it goes on with the next server"
    );
}

/// Commands that make no sense beside a region that is served are refused with the reason.
fn refuses_what_makes_no_sense(place: &SharedFixture, server: &SharedServer) {
    let lenders = run(["lender", "status", &server.address, "--insecure"]);
    assert!(
        lenders.code == 1 && lenders.out.contains("shared status"),
        "{}",
        lenders.out
    );
    let other = place.shared("serve", "plan", &["--insecure", "--listen", "tcp://127.0.0.1:0"]);
    assert!(other.code == 1 && other.err.contains("serving"), "{}", other.err);
    for (node, sentence) in [
        ("1", "node 1 (desk) is live: there is nothing"),
        ("9", "there is no node 9"),
    ] {
        let refused = place.shared("accept-loss", "plan", &["--node", node]);
        assert!(
            refused.code == 1 && refused.err.contains(sentence),
            "{}",
            refused.err
        );
    }
}

#[test]
fn a_status_that_cannot_be_read_is_an_error_with_a_remedy() {
    let place = SharedFixture::new();
    let key = place.path("key");
    let (right, wrong) = (ClusterKey::generate(), place.path("other"));
    right.save_new(&key).unwrap();
    ClusterKey::generate().save_new(&wrong).unwrap();
    let directory = key.display().to_string();
    for (arguments, code, sentence) in [
        (&["tcp://127.0.0.1:1"][..], 2, "no cluster key is given"),
        (&["http://plan:7440", "--insecure"], 2, "http://plan:7440"),
        (
            &["tcp://10.0.0.9:7440", "--insecure"],
            1,
            "is not on this machine",
        ),
        (
            &["tcp://127.0.0.1:1", "--key-file", &directory],
            1,
            "cannot reach",
        ),
        (&["nowhere"], 1, "netram shared create"),
    ] {
        let refused = run([&["shared", "status"], arguments].concat());
        assert!(
            refused.code == code && refused.err.contains(sentence),
            "{arguments:?}: {} {}",
            refused.code,
            refused.err
        );
    }
    assert_eq!(place.made().code, 0);
    let server = SharedServer::start_with_key(&place, "plan", &key);
    let ask = |key: &std::path::Path| {
        run([
            "shared",
            "status",
            &server.address,
            "--key-file",
            key.to_str().unwrap(),
        ])
    };
    let answered = ask(&key);
    assert!(
        answered.code == 0 && answered.out.contains("16 locks"),
        "{}",
        answered.err
    );
    let refused = ask(&wrong);
    assert!(
        refused.code == 1 && refused.err.contains("cluster key is not ours") && refused.out.is_empty(),
        "{}",
        refused.err
    );
    let refused = run(["shared", "status", &server.address, "--insecure"]);
    assert!(
        refused.code == 1 && refused.err.contains("requires the cluster key"),
        "{}",
        refused.err
    );
    let refused = run(["shared", "accept-loss", &server.address, "--node", "1"]);
    assert!(
        refused.code == 2 && refused.err.contains("directory"),
        "{}",
        refused.err
    );
}

/// A server that answers with these bytes.
struct Liar(Vec<u8>);

impl SessionHandler for Liar {
    fn take(&self, mut arrival: AcceptedSession) {
        arrival.channel.queue(&[&self.0]);
        assert!(arrival.channel.flush().unwrap(), "it is short");
    }
}

/// Asks a server that answers so, as people do. Returns all that a terminal is given.
fn told_by_liar(answer: &Value) -> String {
    let listen = vec!["tcp://127.0.0.1:0".parse().unwrap()];
    let config = AcceptorConfig {
        tells_status: true,
        ..AcceptorConfig::new(listen, Security::Insecure)
    };
    let door = SessionAcceptor::open(config, Arc::new(Liar(serde_json::to_vec(answer).unwrap()))).unwrap();
    let address = door.addresses()[0].to_string();
    let told = run(["shared", "status", &address, "--insecure"]);
    told.out + &told.err
}

#[test]
fn whatever_a_server_says_a_terminal_only_shows_it() {
    let red = "\u{1b}[31m";
    let report = ServerReport {
        region: Some(RegionReport {
            id: red.to_owned(),
            ..RegionReport::default()
        }),
        addresses: vec![red.to_owned()],
        nodes: vec![NodeReport {
            standing: red.to_owned(),
            name: red.to_owned(),
            why: Some(red.to_owned()),
            ..NodeReport::default()
        }],
        missing: vec![red.to_owned()],
        shortened: true,
        ..ServerReport::default()
    };
    for (answer, times) in [
        (serde_json::json!({ "status": report }), 7),
        (serde_json::json!({ "refused": red }), 1),
        (serde_json::json!({ red: 1 }), 1),
    ] {
        let shown = told_by_liar(&answer);
        assert!(
            !shown.contains(|letter: char| letter.is_control() && letter != '\n'),
            "{shown:?}"
        );
        assert_eq!(shown.matches("\\u{1b}[31m").count(), times, "{shown}");
    }
}

#[test]
fn a_lost_lenders_records_are_shown_from_afar_and_given_up_on_the_server() {
    let place = SharedFixture::new();
    assert_eq!(place.made().code, 0);
    let server = SharedServer::start(&place, "plan", &["--lease", "300ms"]);
    let lender = place.path("lender.sock");
    let view = View {
        counting: true,
        members: vec![ViewMember {
            incarnation: Incarnation(7),
            join: None,
            address: format!("unix:{}", lender.display()),
            domain: String::new(),
        }],
        ..View::first(JournalId(5))
    };
    drop(joined(&server.address.parse().unwrap(), view));
    let afar = || run(["shared", "status", &server.address, "--insecure"]).out;
    until("it is stuck", || afar().contains("these must answer"));
    let told = afar();
    for word in [
        "lender.sock",
        "accept-loss --node 1",
        "after record 0 may be lost",
    ] {
        assert!(told.contains(word), "{word}: {told}");
    }
    let json = |flags: &[&str]| -> Value {
        let ran = place.shared(
            "accept-loss",
            "plan",
            &[&["--node", "1", "--json"], flags].concat(),
        );
        assert_eq!(ran.code, 0, "{}", ran.err);
        serde_json::from_str(&ran.out).unwrap()
    };
    let shown = json(&["--show"]);
    assert_eq!(
        (&shown["accepted"], &shown["records"]),
        (&false.into(), &0.into())
    );
    assert!(
        shown["lenders"][0].as_str().unwrap().contains("lender.sock"),
        "{shown}"
    );
    assert_eq!(json(&[])["accepted"], true);
    until("it is gone, and that is written down", || {
        afar().contains("node 1 ended with record 0")
    });
}

#[test]
fn a_region_whose_server_is_lost_is_made_again_with_a_log_as_chosen() {
    let place = SharedFixture::new();
    let made = place.shared("create", "plan", &["--size", "64KiB", "--log-size", "1MiB"]);
    assert_eq!(made.code, 0, "{}", made.err);
    // It must end, and not before the node has written, on a busy machine either.
    let server = SharedServer::start(&place, "plan", &["--lease", "5s"]);
    let node = Node::join(NodeOptions {
        name: "desk".to_owned(),
        server_timeout: PATIENCE,
        ..NodeOptions::new(
            server.address.parse().unwrap(),
            Security::Insecure,
            place.path("node"),
        )
    })
    .unwrap();
    let mut txn = node.begin(RestoreMode::Restore).unwrap();
    txn.acquire(LockId(0), LockMode::Exclusive).unwrap();
    txn.write(0, b"drawn").unwrap();
    txn.commit(Durability::Remote).unwrap();
    drop(server);
    let copy = place.path("copy");
    until("the node has no lease", || node.save_copy(&copy).is_ok());
    let rescue = |size: &str| {
        let copy = copy.to_str().unwrap();
        place.shared("rescue", "again", &[copy, "--log-size", size, "--json"])
    };
    let small = rescue("1KiB");
    assert!(small.code == 1 && !place.path("again").exists(), "{}", small.err);
    let made = rescue("2MiB");
    assert_eq!(made.code, 0, "{}", made.err);
    let log = fs::metadata(place.path("again/log")).unwrap().len();
    assert!((2 << 20..3 << 20).contains(&log), "{log}");
    assert_eq!(place.json("check", "again")["damage"], serde_json::json!([]));
    assert_eq!(fs::read(place.path("again/region")).unwrap()[..5], *b"drawn");
}
