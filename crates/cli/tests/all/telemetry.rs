//! Metrics of real processes, as Prometheus sees them: `promtool` accepts them, and a lender that is killed
//! fires the alert that ships.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use netram_journal::JournalConfig;
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::{Node, NodeOptions};
use netram_shared_machine::{LockId, LockMode};
use netram_telemetry::limit::TEXT_AGE_MAX;
use netram_telemetry::{MetricFamily, PROCESS_FAMILIES};
use netram_transport::Security;
use serde_json::Value;

use crate::common::mounted::wait_until;
use crate::common::port::reserve_port;
use crate::common::shared::{PATIENCE, SharedFixture, SharedServer};
use crate::common::{LenderProcess, finish, netram, run, skipped, start};

/// A process that is killed when the test is over.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port for metrics, which no other process gets.
pub(crate) fn port() -> String {
    reserve_port().trim_start_matches("tcp://").to_owned()
}

fn get(address: &str, path: &str, accept: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: {accept}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.1.to_owned())
}

fn metrics(address: &str) -> String {
    get(address, "/metrics", "text/plain").unwrap_or_default()
}

/// The page of metrics at `address`; empty while nobody serves it. Earlier texts are no longer given.
pub(crate) fn scraped(address: &str) -> String {
    std::thread::sleep(TEXT_AGE_MAX);
    metrics(address)
}

/// The value of the first line that begins with `name` and has `label` in it.
pub(crate) fn value(text: &str, name: &str, label: &str) -> Option<f64> {
    let line = text
        .lines()
        .find(|line| line.starts_with(name) && line.contains(label))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

pub(crate) fn has_program(name: &str) -> bool {
    let found = Command::new(name).arg("--version").output().is_ok();
    if !found {
        skipped(format_args!("there is no {name}: apt-get install prometheus"));
    }
    found
}

/// Asserts that `promtool check metrics` finds nothing to say.
pub(crate) fn assert_checked(text: &str) {
    let mut command = Command::new("promtool");
    command
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let checked = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert!(checked.status.success() && said.is_empty(), "{said}\n{text}");
}

/// A lender, and a volume that uses it, each with its page of metrics.
struct Watched {
    directory: tempfile::TempDir,
    lender: LenderProcess,
    lender_page: String,
    _server: Killed,
    volume_page: String,
}

impl Watched {
    fn new(name: &str) -> Watched {
        let directory = tempfile::Builder::new()
            .prefix("netram-metrics-")
            .tempdir()
            .unwrap();
        let (lender_page, volume_page) = (port(), port());
        let listen = ["--listen", "tcp://127.0.0.1:0", "--insecure", "--domain", "ups-1"];
        let lender = LenderProcess::start(name, &[&listen[..], &["--metrics", &lender_page]].concat());
        let mut create = netram();
        create
            .current_dir(directory.path())
            .args(["volume", "create", "db", "--size", "1MiB"]);
        create.args([
            "--journal-size",
            "4MiB",
            "--insecure",
            "--lender",
            &lender.address,
        ]);
        let created = finish(&mut create);
        assert_eq!(created.code, 0, "{}", created.err);
        let socket = format!("unix:{}/socket", directory.path().display());
        let mut serve = netram();
        serve
            .current_dir(directory.path())
            .args(["volume", "serve", "db", "--listen", &socket]);
        serve.env("NETRAM_METRICS", &volume_page);
        serve.stdout(Stdio::null()).stderr(Stdio::null());
        let watched = Watched {
            directory,
            lender,
            lender_page,
            _server: Killed(start(&mut serve)),
            volume_page,
        };
        wait_until("the lender is a member", || {
            metrics(&watched.volume_page)
                .lines()
                .any(|line| line.starts_with("netram_journal_members{") && line.ends_with(" 1.0"))
        });
        watched
    }
}

/// Each alert has a row that says what is wrong and what to do, and no row is of an alert that is gone.
#[test]
fn each_alert_has_its_row_in_the_guide() {
    let rules = fs::read_to_string(shipped("netram.rules.yml")).unwrap();
    let alerts = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut alerts: Vec<&str> = alerts.collect();
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/operations/alerts.md");
    let guide = fs::read_to_string(guide).unwrap();
    let rows = guide.lines().filter_map(|line| line.strip_prefix("| `Netram"));
    let mut rows: Vec<String> = rows
        .filter_map(|row| Some(format!("Netram{}", row.split_once('`')?.0)))
        .collect();
    alerts.sort_unstable();
    rows.sort_unstable();
    assert!(!alerts.is_empty());
    assert_eq!(rows, alerts);
}

#[test]
fn every_process_has_metrics_and_promtool_accepts_them() {
    if !has_program("promtool") {
        return;
    }
    let watched = Watched::new("metrics");
    let of_lender = metrics(&watched.lender_page);
    for part in [
        "\nnetram_lender_reserved_bytes{lender=",
        "\nnetram_lender_windows{",
        "\nnetram_build_info{version=",
        "\n# TYPE netram_lender_spill_duration_seconds histogram",
    ] {
        assert!(of_lender.contains(part), "{part}\n{of_lender}");
    }
    let of_volume = metrics(&watched.volume_page);
    for part in [
        "\nnetram_volume_size_bytes{volume=",
        "\nnetram_volume_front_sessions_total{",
        "\nnetram_at_risk_bytes{",
        "\nnetram_commit_duration_seconds_bucket{",
        "\nnetram_volume_requests_in_progress{",
    ] {
        assert!(of_volume.contains(part), "{part}\n{of_volume}");
    }
    assert_checked(&of_lender);
    assert_checked(&of_volume);
    let mut status = netram();
    status.current_dir(watched.directory.path());
    let shown = finish(status.args(["volume", "status", "db", "--metrics"]));
    assert_checked(&shown.out);
    let names = |text: &str| -> BTreeSet<String> {
        let words = text
            .lines()
            .filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next());
        words.map(str::to_owned).collect()
    };
    assert_eq!(names(&shown.out), names(&of_volume), "both are one registry's");
    let open = get(&watched.lender_page, "/metrics", "application/openmetrics-text").unwrap();
    assert!(open.ends_with("# EOF\n"), "{open}");
}

/// A region's server says how its nodes are, and a node how long it waits for locks.
#[test]
fn a_region_and_its_node_have_metrics() {
    let place = SharedFixture::new();
    let made = place.shared("create", "plan", &["--size", "64KiB", "--log-size", "1MiB"]);
    assert_eq!(made.code, 0, "{}", made.err);
    let (server_page, node_page) = (port(), port());
    let server = SharedServer::start(&place, "plan", &["--lease", "60s", "--metrics", &server_page]);
    let options = NodeOptions::new(
        server.address.parse().unwrap(),
        Security::Insecure,
        place.path("node"),
    );
    let node = Node::join(NodeOptions {
        journal: Some(JournalConfig {
            metrics: Some(node_page.parse().unwrap()),
            ..JournalConfig::default()
        }),
        server_timeout: PATIENCE,
        ..options
    })
    .unwrap();
    for number in 0..5_u64 {
        let mut txn = node.begin(RestoreMode::Restore).unwrap();
        txn.acquire(LockId(0), LockMode::Exclusive).unwrap();
        txn.set(0, &number).unwrap();
        txn.commit(Durability::Remote).unwrap();
    }
    let of_server = scraped(&server_page);
    for (name, label, least) in [
        ("netram_region_up{", "", 1.0),
        ("netram_region_nodes{", "state=\"live\"", 1.0),
        ("netram_region_records_total{", "", 5.0),
        ("netram_disk_sync_duration_seconds_count{", "", 1.0),
    ] {
        let found = value(&of_server, name, label);
        assert!(found.is_some_and(|value| value >= least), "{name}: {of_server}");
    }
    let of_node = scraped(&node_page);
    for (name, least) in [
        ("netram_node_lock_wait_duration_seconds_count{", 1.0),
        ("netram_node_live{", 1.0),
        ("netram_journal_records_total{", 5.0),
    ] {
        let found = value(&of_node, name, "");
        assert!(found.is_some_and(|value| value >= least), "{name}: {of_node}");
    }
    if has_program("promtool") {
        assert_checked(&of_server);
        assert_checked(&of_node);
    }
    node.leave().unwrap();
}

#[test]
fn a_port_in_use_is_refused_at_the_start_with_the_remedy() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let serve = [
        "lender",
        "serve",
        "--insecure",
        "--listen",
        "tcp://127.0.0.1:0",
        "--memory",
        "16MiB",
    ];
    let refused = run([&serve[..], &["--metrics", &address]].concat());
    assert_eq!(refused.code, 1, "{}", refused.err);
    for part in [&address, "another process listens there", "choose another port"] {
        assert!(refused.err.contains(part), "{part}: {}", refused.err);
    }
    let wrong = run([&serve[..], &["--metrics", "9464"]].concat());
    assert!(
        wrong.code == 2 && wrong.err.contains("127.0.0.1:9464"),
        "{}",
        wrong.err
    );
}

fn shipped(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("packaging/prometheus").join(name)
}

#[test]
fn the_rules_that_ship_are_valid_and_fire_when_they_should() {
    if !has_program("promtool") {
        return;
    }
    for (verb, file) in [("check", "netram.rules.yml"), ("test", "netram.test.yml")] {
        let told = Command::new("promtool")
            .args([verb, "rules"])
            .arg(shipped(file))
            .output()
            .unwrap();
        assert!(told.status.success(), "{file}: {told:?}");
    }
}

/// A Prometheus that scrapes both pages, with the rules that ship; they wait a second where they wait longer.
fn prometheus(watched: &Watched, address: &str) -> Killed {
    let directory = watched.directory.path();
    let rules = fs::read_to_string(shipped("netram.rules.yml")).unwrap();
    let hurried = rules.replace("for: 1m", "for: 1s");
    assert_ne!(rules, hurried, "some rules wait a minute");
    fs::write(directory.join("netram.rules.yml"), hurried).unwrap();
    let config = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}\n\
         rule_files: [netram.rules.yml]\n\
         scrape_configs:\n  - job_name: netram\n    static_configs:\n      - targets: ['{}', '{}']\n",
        watched.lender_page, watched.volume_page
    );
    fs::write(directory.join("prometheus.yml"), config).unwrap();
    let mut command = Command::new("prometheus");
    command.current_dir(directory).args([
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        &format!("--web.listen-address={address}"),
    ]);
    Killed(start(command.stdout(Stdio::null()).stderr(Stdio::null())))
}

fn asked(address: &str, path: &str) -> Value {
    let answer = get(address, path, "application/json").unwrap_or_default();
    serde_json::from_str(&answer).unwrap_or_default()
}

#[test]
fn a_real_prometheus_scrapes_and_fires_the_alert_of_a_killed_lender() {
    if !has_program("prometheus") {
        return;
    }
    let watched = Watched::new("alert");
    let address = port();
    let _prometheus = prometheus(&watched, &address);
    wait_until("both pages are scraped", || {
        let targets = asked(&address, "/api/v1/targets?state=active");
        let list = targets["data"]["activeTargets"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        list.len() == 2 && list.iter().all(|target| target["health"] == "up")
    });
    let firing = || -> BTreeSet<String> {
        let alerts = asked(&address, "/api/v1/alerts");
        let alerts = alerts["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing
            .filter_map(|alert| alert["labels"]["alertname"].as_str().map(str::to_owned))
            .collect()
    };
    assert!(!firing().contains("NetramLenderDown"));
    let Watched {
        lender, directory, ..
    } = &watched;
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(lender.id().try_into().unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    wait_until("the alerts of a killed lender", || {
        let firing = firing();
        [
            "NetramLenderDown",
            "NetramCommitsWaitForDisk",
            "NetramProcessDown",
        ]
        .iter()
        .all(|alert| firing.contains(*alert))
    });
    assert!(directory.path().exists());
}

fn dashboard() -> PathBuf {
    shipped("").join("../grafana/netram.json")
}

/// Every expression of the dashboard is one that Prometheus can evaluate.
#[test]
fn promtool_accepts_every_expression_of_the_dashboard() {
    if !has_program("promtool") {
        return;
    }
    let shown: Value = serde_json::from_str(&fs::read_to_string(dashboard()).unwrap()).unwrap();
    let panels = shown["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let rules: Vec<Value> = targets
        .enumerate()
        .map(|(index, target)| {
            let expr = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
            let expr = expr.replace("$journal", ".*").replace("$lender", ".*");
            assert!(!expr.contains('$'), "{expr}");
            serde_json::json!({ "record": format!("panel:{index}"), "expr": expr })
        })
        .collect();
    assert!(rules.len() > 20, "{}", rules.len());
    let file = tempfile::NamedTempFile::new().unwrap();
    let groups = serde_json::json!({ "groups": [{ "name": "panels", "rules": rules }] });
    fs::write(file.path(), groups.to_string()).unwrap();
    let told = Command::new("promtool")
        .args(["check", "rules"])
        .arg(file.path())
        .output()
        .unwrap();
    assert!(told.status.success(), "{told:?}");
}

#[test]
fn the_dashboard_is_what_its_script_makes() {
    let root = shipped("").join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    if !target.join("grafana/decode").exists() {
        return skipped("there is no SDK of Grafana: make grafana");
    }
    let told = finish(Command::new(root.join("scripts/grafana.sh")).arg("--check"));
    assert_eq!(told.code, 0, "{}{}", told.out, told.err);
}

/// Every metric of every process.
fn families() -> Vec<&'static MetricFamily> {
    let all: [&[&MetricFamily]; 10] = [
        PROCESS_FAMILIES,
        netram_lender::metrics::LENDER_FAMILIES,
        netram_journal::metrics::JOURNAL_FAMILIES,
        netram_volume::control::metrics::VOLUME_FAMILIES,
        netram_volume::metrics::VOLUME_TIME_FAMILIES,
        netram_mount::metrics::MOUNT_FAMILIES,
        netram_sqlite::metrics::SQLITE_FAMILIES,
        netram_shared::server::serve::metrics::REGION_FAMILIES,
        netram_shared::node::metrics::NODE_FAMILIES,
        netram_far::FAR_FAMILIES,
    ];
    all.concat()
}

/// Names of metrics in `text`.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !(letter.is_ascii_lowercase() || letter == '_'));
    let name = |word: &&str| word.starts_with("netram_") && word.matches('_').count() > 1;
    words.filter(name).collect()
}

#[test]
fn the_guide_and_the_rules_name_only_metrics_that_exist() {
    let families: BTreeSet<&str> = families().iter().map(|family| family.name).collect();
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/operations/monitoring.md");
    for file in [
        guide,
        shipped("netram.rules.yml"),
        shipped("netram.test.yml"),
        dashboard(),
    ] {
        let text = fs::read_to_string(&file).unwrap();
        for name in named(&text) {
            let histogram = ["_bucket", "_count", "_sum"]
                .iter()
                .find_map(|end| name.strip_suffix(end));
            assert!(
                families.contains(histogram.unwrap_or(name)),
                "{}: {name}",
                file.display()
            );
        }
    }
}

#[test]
fn every_metric_has_a_help_text_in_sentences_and_a_conventional_name() {
    let mut names = BTreeSet::new();
    for family in families() {
        let is_counter = family.kind == netram_telemetry::MetricKind::Counter;
        assert_eq!(family.name.ends_with("_total"), is_counter, "{}", family.name);
        assert!(family.help.ends_with(['.', '?']), "{}", family.name);
        assert!(family.help.len() < 320, "{}", family.name);
        assert!(names.insert(family.name), "{} is given twice", family.name);
    }
}
