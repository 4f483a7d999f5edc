//! Appends by multicast between network namespaces. One lender's network loses every tenth datagram, and
//! another machine sends two of three again later: a duplicate, or out of order for a lender that missed the
//! first. The third stays lost.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::faults::harness::network::Network;
use crate::faults::harness::process::{FaultsProcess, PATIENCE, tool, until};
use crate::faults::harness::{DISK_NEVER_MS, FaultsClient, FaultsFixture, FaultsLender, skipped};

const CLIENT: usize = 0;
/// The machine whose network loses datagrams.
const LOSSY: usize = 1;
const LENDERS: [usize; 3] = [1, 2, 3];
const ECHO: usize = 4;
const GROUP: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(239, 77, 3, 1), 7421);
/// Line of the echo process once it listens.
const ECHOING: &str = "echoing";
/// Tells this test binary to be the machine that sends datagrams again; its own address.
const ECHO_ADDRESS: &str = "NETRAM_ECHO_ADDRESS";

struct Site {
    // Before the place: processes end before their memory and their machines go.
    lenders: Vec<FaultsLender>,
    _echo: FaultsProcess,
    place: FaultsFixture,
    network: Network,
}

impl Site {
    /// Returns `None` if this machine lacks something; the test printed that it is skipped.
    fn new(test: &str) -> Option<Site> {
        let network = match Network::new(5).and_then(|network| lossy(&network).map(|()| network)) {
            Ok(network) => network,
            Err(missing) => {
                skipped(test, &missing);
                return None;
            }
        };
        let place = FaultsFixture::new();
        let echo = echo(&place, &network);
        let group = format!("{GROUP}%eth");
        let lend = |machine: usize| {
            let wrap = network.on(machine);
            let wrap: Vec<&str> = wrap.iter().map(String::as_str).collect();
            let more = ["--multicast", &group];
            FaultsLender::start(
                &place,
                &format!("m{machine}"),
                &network.address(machine),
                &wrap,
                &more,
            )
        };
        Some(Site {
            lenders: LENDERS.map(lend).into(),
            _echo: echo,
            place,
            network,
        })
    }

    fn client(&self) -> FaultsClient {
        let lenders: Vec<&FaultsLender> = self.lenders.iter().collect();
        let mut client = self.place.journal(&lenders, LENDERS.len());
        client.wrap = self.network.on(CLIENT);
        client.work.multicast = Some(format!("{GROUP}%eth"));
        client.work.bytes_max = 8000;
        client
    }

    /// Returns lender `index`'s counters: multicast appends, holes, and duplicate datagrams.
    fn counts(&self, index: usize) -> (u64, u64, u64) {
        let mut line = self.network.on(LENDERS[index]);
        let key = self.place.key().display().to_string();
        let status = [
            crate::common::program(),
            "lender",
            "status",
            "--json",
            "--key-file",
            &key,
        ];
        line.extend(status.map(str::to_owned));
        line.push(self.lenders[index].address.clone());
        let rest: Vec<&str> = line[1..].iter().map(String::as_str).collect();
        let text = tool(&line[0], &rest).expect("the lender answers");
        let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let counters = &json[0]["report"]["counters"];
        let count = |value: &serde_json::Value| value.as_u64().unwrap_or(0);
        (
            count(&counters["datagrams"]),
            count(&counters["datagrams_missing"]),
            count(&counters["datagrams_dropped"]["doubled"]),
        )
    }
}

/// One lender's machine drops every tenth datagram that the client multicasts. Links are not touched.
fn lossy(network: &Network) -> Result<(), String> {
    let rules = "add table ip loss\n\
        add chain ip loss in { type filter hook input priority 0; }\n\
        add rule ip loss in ip saddr 10.77.0.1 ip daddr 224.0.0.0/4 numgen inc mod 10 == 0 drop\n";
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    std::fs::write(file.path(), rules).map_err(|error| error.to_string())?;
    let path = file.path().display().to_string();
    let mut line = network.on(LOSSY);
    line.extend(["nft".to_owned(), "-f".to_owned(), path]);
    let rest: Vec<&str> = line[1..].iter().map(String::as_str).collect();
    tool(&line[0], &rest).map(drop)
}

/// Starts the machine that sends datagrams again.
fn echo(place: &FaultsFixture, network: &Network) -> FaultsProcess {
    let line = network.on(ECHO);
    let mut command = Command::new(&line[0]);
    command
        .args(&line[1..])
        .arg(std::env::current_exe().expect("this test has a path"))
        .args(["--exact", "faults::multicast::echo_process", "--nocapture"])
        .env(ECHO_ADDRESS, format!("10.77.0.{}", ECHO + 1));
    let mut process = FaultsProcess::start(&mut command, &place.memory().join("echo.log"));
    let mut lines = BufReader::new(process.take_stdout()).lines();
    let (said, hears) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let ready = lines.any(|line| line.is_ok_and(|line| line.contains(ECHOING)));
        // The receiver is gone if the test has given up.
        let _ = said.send(ready);
    });
    assert_eq!(hears.recv_timeout(PATIENCE), Ok(true), "the echo did not start");
    process
}

/// Not a test by itself: with the variable set, a machine on the network that hears the group and sends two
/// datagrams of three once more, a little later. It ends with its parent's test, at the latest after some
/// minutes.
#[test]
fn echo_process() {
    let Ok(own) = std::env::var(ECHO_ADDRESS) else {
        return;
    };
    let own: Ipv4Addr = own.parse().expect("an address");
    let hear = UdpSocket::bind(GROUP).expect("the group's port is free here");
    hear.join_multicast_v4(GROUP.ip(), &own)
        .expect("the group can be joined");
    // Its own datagrams are not looped back, or they would go round for ever.
    let say = UdpSocket::bind((own, 0)).expect("a socket");
    say.set_multicast_loop_v4(false).expect("an option");
    let ends = Instant::now() + 3 * PATIENCE;
    hear.set_read_timeout(Some(Duration::from_secs(1)))
        .expect("an option");
    writeln!(std::io::stdout(), "{ECHOING}").expect("the test listens");
    let mut bytes = [0; 9000];
    let parent = rustix::process::getppid();
    let mut heard = 0_u32;
    while Instant::now() < ends && rustix::process::getppid() == parent {
        let Ok(length) = hear.recv(&mut bytes) else {
            continue;
        };
        heard += 1;
        if heard.is_multiple_of(3) {
            continue;
        }
        std::thread::sleep(Duration::from_micros(300));
        // One that the network does not take is one that was lost.
        let _ = say.send_to(&bytes[..length], GROUP);
    }
}

#[test]
fn commits_go_on_by_multicast_with_loss_doubles_and_reordering_and_survive_kills() {
    let test = "commits_go_on_by_multicast_with_loss_doubles_and_reordering_and_survive_kills";
    let Some(site) = Site::new(test) else { return };
    let mut client = site.client();
    // Only lenders have it.
    client.work.disk_delay_ms = DISK_NEVER_MS;
    client.work.window_bytes = 4 << 20;
    for _ in 0..site.place.rounds(2) {
        let running = client.start();
        running.until_acks_by_rule(100);
        let report = client.end_unfailed(running);
        assert!(
            report.from_members >= 50,
            "{report:?}: the disk was not slow at all"
        );
    }
    for index in 0..LENDERS.len() {
        let (datagrams, missing, doubled) = site.counts(index);
        eprintln!("lender {index}: {datagrams} datagrams, {missing} holes told, {doubled} doubled");
        // On a machine so slow that timers serve them, members are left to their links for some time.
        assert!(datagrams > 0, "lender {index} heard nothing");
        assert!(doubled > 0, "nothing was sent twice");
    }
    assert!(
        site.counts(0).1 > 0,
        "every thirtieth datagram was lost for good, and no hole was told"
    );
}

#[test]
fn a_lender_leaves_and_returns_while_appends_are_multicast() {
    let test = "a_lender_leaves_and_returns_while_appends_are_multicast";
    let Some(mut site) = Site::new(test) else { return };
    let mut client = site.client();
    client.work.rule = "any".to_owned();
    let running = client.start();
    running.until_acks_by_rule(50);
    for lost in [false, true] {
        if lost {
            site.lenders[1].lose();
        } else {
            site.lenders[1].kill();
        }
        running.until_acks_by_rule(50);
        site.lenders[1].restart();
        let before = running.heard().acks;
        until("the returned lender hears the multicast", || {
            site.counts(1).0 > 20 && running.heard().acks > before + 50
        });
    }
    let heard = client.kill(running);
    assert_eq!(heard.failure(), None, "a commit failed");
    client.recover();
}
