//! Lenders that no settings name are found: by a cluster file, by DNS, by what they announce. Each machine is
//! a network namespace; the name server is Debian's dnsmasq, the witness of mDNS Debian's avahi.

mod services;

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use services::{Avahi, dnsmasq, lacking};

use crate::common::{CommandOutput, clean, finish, lab, netram, program, run};
use crate::faults::harness::network::Network;
use crate::faults::harness::process::{FaultsProcess, until};
use crate::faults::harness::{DISK_NEVER_MS, FaultsClient, FaultsFixture, FaultsLender, skipped};

const CLIENT: usize = 0;
/// For a journal that must find all its members at its only opening, on a busy machine too.
const PATIENT: &str = "mdns = true\nmdns-wait-ms = 8000\n";

/// Machines on one network, with lenders on some.
struct Site {
    // Before the place: lenders end before their memory is removed.
    lenders: Vec<FaultsLender>,
    proxies: Vec<FaultsProcess>,
    place: FaultsFixture,
    // Last: processes end before their machines.
    network: Network,
}

impl Site {
    /// Makes the machines; `None`, aloud, if this machine cannot or lacks a program.
    fn new(test: &str, machines: usize, programs: &[&str]) -> Option<Site> {
        let network = match lacking(programs) {
            Some(missing) => Err(missing),
            None => Network::new(machines),
        };
        match network {
            Ok(network) => Some(Site {
                lenders: Vec::new(),
                proxies: Vec::new(),
                place: FaultsFixture::new(),
                network,
            }),
            Err(missing) => {
                skipped(test, &missing);
                None
            }
        }
    }

    /// Starts a lender on a machine, with the machine's power supply, and with these further flags.
    fn lend(&mut self, machine: usize, more: &[&str]) {
        let address = self.network.address(machine);
        self.lend_at(machine, &address, more);
    }

    fn lend_at(&mut self, machine: usize, address: &str, more: &[&str]) {
        let wrap = self.network.on(machine);
        let wrap: Vec<&str> = wrap.iter().map(String::as_str).collect();
        let lender = FaultsLender::start(&self.place, &format!("m{machine}"), address, &wrap, more);
        self.lenders.push(lender);
    }

    /// Starts a lender whose machine is farther away by `ms`.
    fn lend_afar(&mut self, machine: usize, domain: &str, ms: u32) {
        let near = "tcp://127.0.0.1:7421";
        self.lend_at(machine, near, &["--domain", domain]);
        let role = serde_json::json!({ "Delay": {
            "listen": self.network.address(machine), "target": near, "round_trip_us": ms * 1000,
            "megabits": null, "core": null,
        }});
        let on = self.network.on(machine);
        let lab = lab();
        let mut command = clean(Command::new(&on[0]));
        command
            .args(&on[1..])
            .arg(lab.get_program())
            .args(["part", &role.to_string()]);
        let log = self.place.memory().join("proxy.log");
        let mut proxy = FaultsProcess::start(&mut command, &log);
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(proxy.take_stdout()));
        assert!(
            lines.any(|line| line.is_ok_and(|line| line.starts_with("listening"))),
            "the proxy serves"
        );
        self.proxies.push(proxy);
    }

    /// Runs netram on the client's machine, with the cluster key.
    fn netram(&self, words: &[&str]) -> CommandOutput {
        finish(self.command(&[]).args(words))
    }

    /// The same with `wrap` around it.
    fn command(&self, wrap: &[&str]) -> Command {
        let on = self.network.on(CLIENT);
        let mut command = clean(Command::new(&on[0]));
        command
            .args(&on[1..])
            .args(wrap)
            .arg(program())
            .env("NETRAM_KEY_FILE", self.place.key());
        command
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.place.memory().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// What `netram status` shows of the cluster that this file describes.
    fn status(&self, cluster: &Path) -> (CommandOutput, Value) {
        let shown = self.netram(&["status", "--json", "--cluster", cluster.to_str().unwrap()]);
        let json = serde_json::from_str(&shown.out).unwrap_or_else(|_| panic!("{}{}", shown.out, shown.err));
        (shown, json)
    }

    /// A client with a journal that finds its two members by this file, and whose disk has no vote.
    fn client(&self, cluster: &Path) -> FaultsClient {
        let mut client = self.place.journal(&[], 2);
        client.wrap = self.network.on(CLIENT);
        client.work.auto = Some(cluster.to_owned());
        client.work.disk_delay_ms = DISK_NEVER_MS;
        client.work.window_bytes = 4 << 20;
        client.work.patience_ms = 1500;
        client
    }
}

/// The addresses of a status, in its order.
fn addresses(status: &Value) -> Vec<String> {
    let lenders = status["lenders"].as_array().expect("a list");
    let address = |lender: &Value| lender["address"].as_str().expect("a text").to_owned();
    lenders.iter().map(address).collect()
}

fn row<'a>(status: &'a Value, address: &str) -> &'a Value {
    let lenders = status["lenders"].as_array().expect("a list");
    let found = lenders.iter().find(|lender| lender["address"] == address);
    found.unwrap_or_else(|| panic!("no {address} in {status}"))
}

/// What `netram status` shows once it has seen `count` announcements.
fn until_seen(site: &Site, cluster: &Path, count: usize) -> (CommandOutput, Value) {
    let mut seen = None;
    until("the announcements are seen", || {
        let (shown, status) = site.status(cluster);
        let all = addresses(&status).len() == count;
        seen = Some((shown, status));
        all
    });
    seen.expect("it was asked")
}

/// The same bytes on the wire as the other implementation's, in both directions.
#[test]
fn avahi_and_netram_see_each_others_announcements_and_a_lie_does_no_harm() {
    let test = "avahi_and_netram_see_each_others_announcements_and_a_lie_does_no_harm";
    let programs = ["avahi-daemon", "avahi-browse", "avahi-publish", "dbus-daemon"];
    let Some(mut site) = Site::new(test, 4, &programs) else {
        return;
    };
    let avahi = Avahi::start(&site.network, 3, site.place.memory());
    site.lend(1, &["--announce"]);
    site.lend(2, &["--announce"]);
    let seen = |name: &str| {
        let known = avahi.lenders();
        let is_it = |line: &str| line.starts_with('=') && line.contains(&format!("\"name={name}\""));
        known.lines().find(|line| is_it(line)).map(str::to_owned)
    };
    until("avahi sees both lenders", || {
        seen("m1").is_some() && seen("m2").is_some()
    });
    let line = seen("m1").expect("it was seen");
    for part in [";10.77.0.2;7420;", "\"domain=m1\"", "\"version="] {
        assert!(line.contains(part), "{line}");
    }

    let cluster = site.write("cluster.toml", "mdns = true\nmdns-wait-ms = 3000\n");
    let (shown, _) = until_seen(&site, &cluster, 2);
    assert_eq!(shown.code, 0, "{}{}", shown.out, shown.err);

    // Somebody without the key announces a lender; a program listens there that has another key.
    let stranger = FaultsFixture::new();
    let wrap = site.network.on(3);
    let wrap: Vec<&str> = wrap.iter().map(String::as_str).collect();
    let lie = site.network.address(3);
    let _impostor = FaultsLender::start(&stranger, "m3", &lie, &wrap, &[]);
    let _published = avahi.publish("m1 too", 7420, &["name=m1", "domain=elsewhere"]);
    let (shown, status) = until_seen(&site, &cluster, 3);
    assert_eq!(shown.code, 1, "{}", shown.out);
    let liar = row(&status, &lie);
    let error = liar["error"].as_str().expect("a reason");
    assert!(error.contains("key") && liar["report"].is_null(), "{liar}");
    assert_eq!(addresses(&status).last(), Some(&lie), "the others come first");

    let patient = site.write("patient.toml", PATIENT);
    let mut client = site.client(&patient);
    let running = client.start();
    let heard = running.until_acks_by_rule(50);
    let (_, mut members) = heard.standing().expect("it said its members");
    members.sort();
    assert_eq!(members, [site.network.address(1), site.network.address(2)]);
    client.kill(running);
    let report = client.recover();
    assert!(report.from_members >= 50, "{report:?}");

    // A lender that ends says so: nobody waits for its records to expire.
    site.lenders[0].stop(Signal::TERM);
    until("avahi has forgotten it", || {
        seen("m1").is_none_or(|line| !line.contains(";10.77.0.2;"))
    });
}

/// What discovery finds today must not decide who is asked for yesterday's records.
#[test]
fn members_that_nobody_names_any_more_are_asked_and_named() {
    let test = "members_that_nobody_names_any_more_are_asked_and_named";
    let Some(mut site) = Site::new(test, 4, &[]) else {
        return;
    };
    for machine in [1, 2, 3] {
        site.lend(machine, &[]);
    }
    let named = |machines: &[usize]| {
        let lenders = machines
            .iter()
            .map(|machine| format!("[[lender]]\naddress = \"{}\"\n", site.network.address(*machine)));
        lenders.collect::<String>()
    };
    let cluster = site.write("cluster.toml", &named(&[1, 2]));
    let mut client = site.client(&cluster);
    let running = client.start();
    running.until_acks_by_rule(50);
    let kept = client.work.journal.join("lenders");
    let text = std::fs::read_to_string(&kept).expect("the addresses are kept");
    for machine in [1, 2] {
        assert!(text.contains(&site.network.address(machine)), "{text}");
    }
    client.kill(running);

    // The file names another lender, and the kept addresses are lost, too.
    std::fs::write(&cluster, named(&[3])).unwrap();
    std::fs::remove_file(&kept).unwrap();
    site.network.cut(1);
    site.network.cut(2);
    let refused = client
        .try_recover()
        .expect_err("nobody who has it can be reached");
    for machine in [1, 2] {
        assert!(refused.contains(&site.network.address(machine)), "{refused}");
    }
    site.network.heal(2);
    let report = client.recover();
    assert!(report.from_members >= 50, "{report:?}");
    let text = std::fs::read_to_string(&kept).expect("the addresses are kept");
    for machine in [1, 2, 3] {
        assert!(text.contains(&site.network.address(machine)), "{machine}: {text}");
    }

    // What was found once is used, although the file names it no more and nothing else is in reach.
    site.network.heal(1);
    site.network.cut(3);
    let running = client.start();
    running.until_acks_by_rule(20);
    client.kill(running);
    client.recover();
}

#[test]
fn auto_prefers_other_power_supplies_then_near_lenders() {
    let test = "auto_prefers_other_power_supplies_then_near_lenders";
    let Some(mut site) = Site::new(test, 5, &[]) else {
        return;
    };
    // Differences that a busy machine does not blur.
    site.lend_afar(1, "a", 480);
    site.lend_afar(2, "b", 480);
    site.lend_afar(3, "b", 20);
    site.lend_afar(4, "home", 0);
    let lenders =
        [1, 2, 3, 4].map(|machine| format!("[[lender]]\naddress = \"{}\"\n", site.network.address(machine)));
    let cluster = site.write("cluster.toml", &lenders.concat());
    let words = [
        "status",
        "--domain",
        "home",
        "--cluster",
        cluster.to_str().unwrap(),
    ];
    // On a busy machine a lender that is far away may not answer in time.
    let all_answer = |words: &[&str]| {
        let mut shown = site.netram(words);
        until("all lenders answer in time", || {
            if shown.code != 0 {
                shown = site.netram(words);
            }
            shown.code == 0
        });
        shown
    };
    let shown = all_answer(&[&words[..], &["--json"]].concat());
    let status: Value = serde_json::from_str(&shown.out).expect("JSON");
    let wanted = [3, 1, 2, 4].map(|machine| site.network.address(machine));
    assert_eq!(addresses(&status), wanted, "{status:#}");
    let us = row(&status, &wanted[1])["round_trip_us"].as_u64();
    assert!(us >= Some(480_000), "{us:?}");
    let remarks = status["remarks"].to_string();
    assert!(remarks.contains("this machine's power label `home`"), "{remarks}");
    let table = all_answer(&words);
    assert!(
        table.out.contains("round trip") && table.out.contains(" file "),
        "{}",
        table.out
    );
}

#[test]
fn two_lenders_with_one_name_are_both_shown_and_both_told_of() {
    let test = "two_lenders_with_one_name_are_both_shown_and_both_told_of";
    let Some(mut site) = Site::new(test, 3, &[]) else {
        return;
    };
    site.lend(1, &["--announce", "--name", "twin"]);
    site.lend(2, &["--announce", "--name", "twin"]);
    let cluster = site.write("cluster.toml", "mdns = true\nmdns-wait-ms = 3000\n");
    let (_, status) = until_seen(&site, &cluster, 2);
    let remarks = status["remarks"].to_string();
    for part in [
        "have the name `twin`",
        &site.network.address(1),
        &site.network.address(2),
    ] {
        assert!(remarks.contains(part), "{remarks}");
    }
    let patient = site.write("patient.toml", PATIENT);
    let mut client = site.client(&patient);
    let running = client.start();
    running.until_acks_by_rule(20);
    client.end_unfailed(running);
}

/// Runs `netram status` with another name server than the machine's.
fn with_resolver(site: &Site, server: &str, cluster: &Path) -> CommandOutput {
    let resolv = site.write("resolv.conf", &format!("nameserver {server}\n"));
    let script = "mount --bind \"$1\" /etc/resolv.conf; shift; exec \"$@\"";
    let wrap = [
        "unshare",
        "--mount",
        "sh",
        "-ec",
        script,
        "sh",
        resolv.to_str().unwrap(),
    ];
    finish(
        site.command(&wrap)
            .args(["status", "--json", "--cluster", cluster.to_str().unwrap()]),
    )
}

#[test]
fn srv_records_name_lenders_in_the_order_of_their_priorities() {
    let test = "srv_records_name_lenders_in_the_order_of_their_priorities";
    let Some(mut site) = Site::new(test, 4, &["dnsmasq", "unshare"]) else {
        return;
    };
    for machine in [1, 2, 3] {
        // One power supply: nothing else decides.
        site.lend(machine, &["--domain", "one"]);
    }
    let mut options: Vec<String> = [(1, 30, 9), (2, 10, 0), (3, 20, 5)]
        .iter()
        .flat_map(|(machine, priority, weight)| {
            let name = format!("ram-{machine}.lenders.test");
            let ip = site
                .network
                .address(*machine)
                .replace("tcp://", "")
                .replace(":7420", "");
            [
                format!("--host-record={name},{ip}"),
                format!("--srv-host=_netram._tcp.lenders.test,{name},7420,{priority},{weight}"),
            ]
        })
        .collect();
    options.push("--txt-record=_netram._tcp.empty.test,nothing".to_owned());
    options.push("--srv-host=_netram._tcp.none.test".to_owned());
    // Together they are longer than a datagram: the answer comes over TCP.
    options.extend((0..60).map(|number| {
        format!("--srv-host=_netram._tcp.many.test,a-rather-long-name-{number}.many.test,7420,1,1")
    }));
    let _server = dnsmasq(&site.network, 3, site.place.memory(), &options);
    let server = "10.77.0.4";
    let of = |domain: &str| site.write("cluster.toml", &format!("dns = \"{domain}\"\n"));

    let shown = with_resolver(&site, server, &of("lenders.test"));
    assert_eq!(shown.code, 0, "{}{}", shown.out, shown.err);
    let status: Value = serde_json::from_str(&shown.out).expect("JSON");
    let wanted = [2, 3, 1].map(|machine| format!("tcp://ram-{machine}.lenders.test:7420"));
    assert_eq!(addresses(&status), wanted);
    assert_eq!(row(&status, &wanted[0])["found_by"][0], "DNS");

    for (domain, said) in [
        ("nowhere.test", "DNS has no name _netram._tcp.nowhere.test"),
        ("empty.test", "DNS has no SRV record for _netram._tcp.empty.test"),
        ("none.test", "_netram._tcp.none.test is not offered"),
    ] {
        let shown = with_resolver(&site, server, &of(domain));
        assert_eq!(shown.code, 1, "{domain}: {}", shown.out);
        assert!(shown.out.contains(said), "{domain}: {}", shown.out);
    }
    let many = with_resolver(&site, server, &of("many.test"));
    let status: Value = serde_json::from_str(&many.out).expect("JSON");
    assert_eq!(addresses(&status).len(), 60, "{}", many.out);

    // Nobody has this address: the server is silent. The test's own bound is the harness's.
    let silent = with_resolver(&site, "10.77.0.99", &of("lenders.test"));
    assert_eq!(silent.code, 1);
    for part in [
        "_netram._tcp.lenders.test",
        "10.77.0.99",
        "no name server answered",
    ] {
        assert!(silent.out.contains(part), "{}", silent.out);
    }
}

#[test]
fn a_mistake_in_the_cluster_file_is_named_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = directory.path().join("cluster.toml");
    let key = directory.path().join("key");
    assert_eq!(run(["key", "create", key.to_str().unwrap()]).code, 0);
    std::fs::write(&cluster, "mdns = false\n\n[[lender]]\naddress = \"10.0.0.2\"\n").unwrap();
    let mut status = netram();
    let shown = finish(
        status
            .args(["status", "--key-file", key.to_str().unwrap(), "--cluster"])
            .arg(&cluster),
    );
    assert_eq!(shown.code, 1, "{}", shown.out);
    assert!(
        shown.err.contains("cluster.toml is invalid, line 4"),
        "{}",
        shown.err
    );

    // A journal that is to find its lenders says the same, and is not opened on the disk alone.
    let log = directory.path().join("log");
    let mut create = netram();
    let made = finish(
        create
            .args(["rvm", "create", log.to_str().unwrap(), "--lender", "auto"])
            .args(["--key-file", key.to_str().unwrap()])
            .env("NETRAM_CLUSTER", &cluster),
    );
    assert_ne!(made.code, 0);
    assert!(made.err.contains("line 4"), "{}", made.err);
    assert!(!log.exists(), "nothing was made");
}

#[test]
fn a_lender_that_only_its_own_machine_reaches_has_nothing_to_announce() {
    let shown = run(["lender", "serve", "--insecure", "--announce"]);
    assert_eq!(shown.code, 2, "{}", shown.err);
    assert!(shown.err.contains("nothing to announce"), "{}", shown.err);
}
