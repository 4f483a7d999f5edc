//! `netram dashboard`, as a browser shows it.

mod browser;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use netram_proto::port::{Durability, RecordKind, RecordLog};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use self::browser::Browser;
use crate::common::{LenderProcess, netram, run, start};
use crate::lifecycle::with_a_record;

/// A dashboard that is killed when the test is over.
struct Dashboard {
    process: Child,
    address: String,
}

impl Dashboard {
    fn start(arguments: &[&str], lenders: &str) -> Dashboard {
        let mut command = netram();
        command.args(["dashboard", "--insecure"]).args(arguments);
        if !arguments.contains(&"--listen") {
            command.args(["--listen", "127.0.0.1:0"]);
        }
        // No other lender is found: a cluster file that names only these.
        command.env("NETRAM_LENDERS", lenders).stdout(Stdio::piped());
        let mut process = start(&mut command);
        let mut said = String::new();
        BufReader::new(process.stdout.take().unwrap())
            .read_line(&mut said)
            .unwrap();
        let address = said.trim().strip_prefix("the dashboard is at ");
        Dashboard {
            address: address.unwrap_or_else(|| panic!("{said}")).to_owned(),
            process,
        }
    }

    fn signal(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.process), signal).unwrap();
        self.process.wait().unwrap().code()
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// JavaScript: text of the row of a table that has this text in its head.
fn row(text: &str) -> String {
    let text = json!(text);
    format!(
        "([...document.querySelectorAll('tbody tr')].find((row) => row.querySelector('th')?.innerText.includes({text}))?.innerText || '')"
    )
}

#[test]
fn a_lender_that_is_killed_and_comes_back_is_seen_at_once() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let cluster = directory.path().join("cluster.toml");
    let serve = |listen: &str| {
        let arguments = ["--listen", listen, "--insecure", "--domain", "ups-9"];
        LenderProcess::start("shown", &arguments)
    };
    let mut lender = serve("tcp://127.0.0.1:0");
    let address = lender.address.clone();
    let name = format!("test-{}-shown", std::process::id());
    std::fs::write(&cluster, format!("[[lender]]\naddress = \"{address}\"\n")).unwrap();
    let path = directory.path().join("journal");
    let (journal, _) = with_a_record(&path, &address);
    let dashboard = Dashboard::start(&["--cluster", cluster.to_str().unwrap()], "");
    browser.resize(1280, 900, false);
    browser.open(&dashboard.address);
    let journal_row = row(&path.display().to_string());
    browser.wait_for(&format!("{journal_row}.includes('80 B')"));
    // Latencies are those of commits that come while somebody looks.
    let ticket = journal.append(RecordKind(16), 3, &mut |into| into.copy_from_slice(b"abc"));
    journal.wait(ticket.unwrap(), Durability::Remote).unwrap();
    browser.wait_for(&format!("{}.includes('lending')", row(&name)));
    for (title, text) in [
        ("risk", "domain ups-9"),
        ("latency", "99.9 %"),
        ("events", "members are"),
        ("lenders", "ups-9"),
    ] {
        browser.wait_for(&format!(
            "document.getElementById('{title}-body').innerText.includes('{text}')"
        ));
    }
    let titles = "[...document.querySelectorAll('h2')].map((title) => title.innerText).join('|')";
    assert_eq!(
        browser.value(titles),
        "What needs a person|At risk|Journals and volumes|Lenders by domain|Latency of the last hour|Events"
    );
    lender.stop(Signal::KILL);
    browser.wait_for(&format!("{}.includes('no answer')", row(&name)));
    // The only copy is in this machine's memory, which needs a person at once.
    browser.wait_for(&format!(
        "document.getElementById('person-body').innerText.includes({})",
        json!(path.display().to_string())
    ));
    browser.wait_for(&format!(
        "document.getElementById('person-body').innerText.includes('netram lender status {address}')"
    ));
    browser.wait_for("document.getElementById('events-body').innerText.includes('it does not answer')");
    browser.picture("lender-dead.png", true);
    let _again = serve(&address);
    browser.wait_for(&format!("{}.includes('lending')", row(&name)));
    browser.wait_for(&format!("{journal_row}.includes('1 of 1')"));
    browser.wait_for("document.getElementById('events-body').innerText.includes('it answers again')");
    browser.assert_no_problem();
    drop(journal);
}

/// A large cluster in which little is wrong, with names that are no names.
fn large_cluster() -> Value {
    let lender = |number: usize| {
        json!({
            "address": format!("tcp://10.0.{}.{}:7420", number / 250, number % 250), "name": format!("ram-{number}"),
            "domain": format!("ups-{}", number % 8), "state": "lending", "lent": 1_u64 << 36, "offered": 1_u64 << 36,
            "used": (number as u64 * 7919 % 60) << 30, "free": 1_u64 << 33, "journals": number % 90, "journals_max": 1024,
            "error": (number == 17).then_some("nothing listens there: start the lender"), "seen_ms": 1_790_000_000_000_u64,
            "worry": u8::from(number == 17) * 2,
        })
    };
    let journal = |number: usize| {
        let name = match number {
            4711 => "/srv/<img src=x onerror=\"document.title='broken'\">".to_owned(),
            number => format!("/srv/volumes/vm-{number}"),
        };
        let is_bad = number == 4711;
        json!({
            "host": format!("node{}:9465", number % 50), "path": format!("{name}/journal"), "name": name, "kind": "volume",
            "members": 2 - u8::from(is_bad), "members_wanted": 2, "settled": !is_bad, "unsynced": 4096 * (number % 9), "capacity": 1 << 26, "used": 1 << 20,
            "copies": "2 of 2 members", "blocked": is_bad.then_some("only 1 of the 2 members needed are present"),
            "lenders": [{"address": "tcp://10.0.0.1:7420", "domain": "ups-1", "member": true}, {"address": "tcp://10.0.0.17:7420", "domain": "ups-1", "member": true, "why_not": is_bad.then_some("nothing listens there: start the lender")}],
            "risks": [{"lost": "this machine", "bytes": if is_bad { 8192 } else { 0 }, "age_ms": if is_bad { 45_000 } else { 0 }}, {"lost": "domain ups-1", "bytes": 0, "age_ms": 0}, {"lost": "all", "bytes": 4096 * (number % 9), "age_ms": number % 9}],
            "hour": {"commits": 40_000 + number, "quantiles": [0.000_024, 0.000_096, 0.001_536]}, "worry": u8::from(is_bad) * 4,
            "seen_ms": 1_790_000_000_000_u64,
        })
    };
    let needed = |alert: &str,
                  severity: &str,
                  subject: &str,
                  sentence: &str,
                  command: Option<&str>,
                  for_s: u64,
                  due: bool| {
        json!({"alert": alert, "severity": severity, "subject": subject, "others": 0, "sentence": sentence, "command": command, "for_s": for_s, "due": due})
    };
    let curve: Vec<Value> = (0..180)
        .map(|step| {
            let wave = 1.0 + f64::from(step % 23) / 9.0;
            match step {
                60..66 => Value::Null,
                _ => json!([
                    24e-6 * wave.sqrt().floor(),
                    96e-6 * wave,
                    if step > 150 { 0.02 } else { 0.0015 * wave }
                ]),
            }
        })
        .collect();
    let event = |number: u64| json!({"unix_ms": 1_790_000_000_000_u64 - number * 61_000, "subject": format!("/srv/volumes/vm-{number}"), "what": "the lender tcp://10.0.0.17:7420 was lost"});
    json!({
        "now": {"mono_ms": 0, "unix_ms": 1_790_000_000_000_u64}, "is_complete": true,
        "lenders": (0..200).map(lender).collect::<Vec<_>>(), "journals": (0..5000).map(journal).collect::<Vec<_>>(),
        "person": [
            needed("AtRisk", "page", "node11:9465:/srv/<img>/journal", "Keep the machine of node11:9465 running until the disk of /srv/<img>/journal has everything: only its memory has the newest commits.", None, 45, true),
            needed("LenderDown", "warning", "tcp://10.0.0.17:7420", "Look after the lender ram-17: nothing listens there: start the lender", Some("netram lender status tcp://10.0.0.17:7420"), 320, true),
            needed("OnBattery", "warning", "tcp://10.0.0.3:7420", "Bring the mains of ram-3 back: it is on battery, and its clients move away.", None, 3, false),
        ],
        "events": (0..80).map(event).collect::<Vec<_>>(),
        "hour": {"commits": 198_234_110, "quantiles": [0.000_024, 0.000_192, 0.001_536]}, "curve": curve,
    })
}

fn shown(directory: &Path, view: &Value) -> Dashboard {
    let file = directory.join("view.json");
    std::fs::write(&file, view.to_string()).unwrap();
    Dashboard::start(&["--view", file.to_str().unwrap()], "")
}

#[test]
fn a_large_cluster_is_searched_by_keyboard_read_on_a_phone_and_shown_in_the_dark() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let dashboard = shown(directory.path(), &large_cluster());
    browser.resize(1280, 900, false);
    browser.prefer("light");
    browser.open(&dashboard.address);
    browser.wait_for_text("page 1 of 100");
    // Text from outside is shown as it is, the worst first.
    let first = browser.value("document.querySelector('#journals-body tbody tr').innerText");
    assert!(first.as_str().unwrap().contains("<img src=x onerror="), "{first}");
    assert_eq!(browser.value("document.images.length"), 0);
    // Domains without trouble are closed, and open on demand.
    let rows = "document.querySelectorAll('#lenders-body tbody tr:not(.domain)').length";
    assert_eq!(browser.value(rows), 25);
    browser.value("document.querySelector('#lenders-body .domain .name[aria-expanded=false]').click()");
    assert_eq!(browser.value(rows), 50);
    browser.value("document.querySelector('#lenders-body .domain .name').click()");
    browser.picture("large-light.png", false);
    browser.picture("large-light-whole.png", true);

    keyboard(&mut browser);

    browser.prefer("dark");
    let ground = "getComputedStyle(document.body).backgroundColor";
    let dark = browser.value(ground);
    browser.picture("large-dark-whole.png", true);
    browser.prefer("light");
    assert_ne!(browser.value(ground), dark);
    // The switch wins over the system.
    browser.value("document.getElementById('theme').click(); document.getElementById('theme').click()");
    assert_eq!(browser.value(ground), dark);
    browser.value("document.getElementById('theme').click()");

    browser.resize(360, 740, true);
    assert_eq!(
        browser.value("document.documentElement.scrollWidth"),
        360,
        "nothing is cut off"
    );
    let low = "[...document.querySelectorAll('button:not(.name)')].filter((button) => button.offsetHeight < 32).length";
    assert_eq!(browser.value(low), 0, "fingers are wide");
    browser.picture("phone.png", false);
    browser.picture("phone-whole.png", true);
    browser.assert_no_problem();
}

fn keyboard(browser: &mut Browser) {
    browser.press("Tab");
    browser.wait_for("document.activeElement.className === 'skip' && document.activeElement.getBoundingClientRect().left >= 0");
    browser.press("Enter");
    browser.wait_for("document.activeElement.id === 'person'");
    browser.press("/");
    browser.wait_for("document.activeElement.id === 'search'");
    browser.write("vm-4999");
    browser.wait_for_text("1 journal of 5,000 found");
    // To the only row, which tells more.
    browser.press("Tab");
    browser.wait_for("document.activeElement.className === 'name'");
    assert_ne!(
        browser.value("getComputedStyle(document.activeElement).outlineStyle"),
        "none"
    );
    browser.press("Enter");
    browser.wait_for("document.activeElement.getAttribute('aria-expanded') === 'true'");
    browser.wait_for_text("log 1.0 MiB of 64.0 MiB");
    // Several updates later the focus is where it was.
    browser.value("new Promise((done) => { const read = readAt; const look = setInterval(() => { if (readAt > read) { clearInterval(look); done(); } }, 50); })");
    assert_eq!(browser.value("document.activeElement.className"), "name");
    browser.picture("keyboard.png", false);
    browser.value("document.getElementById('search').value = ''; document.getElementById('search').dispatchEvent(new Event('input'))");
    browser.wait_for_text("page 1 of 100");
    browser.value(
        "[...document.querySelectorAll('button')].find((button) => button.innerText === 'Next').click()",
    );
    browser.wait_for_text("page 2 of 100");
    browser.value(
        "[...document.querySelectorAll('button')].find((button) => button.innerText === 'Previous').click()",
    );
    browser.wait_for_text("page 1 of 100");
}

#[test]
fn a_browser_is_asked_for_the_token_and_told_when_the_dashboard_is_gone() {
    let Some(mut browser) = Browser::start() else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, "0123456789abcdef0123\n").unwrap();
    let made = std::process::Command::new("chmod")
        .arg("600")
        .arg(&token)
        .status()
        .unwrap();
    assert!(made.success());
    let view = directory.path().join("view.json");
    std::fs::write(&view, r#"{"is_complete": true}"#).unwrap();
    let arguments = [
        "--view",
        view.to_str().unwrap(),
        "--token-file",
        token.to_str().unwrap(),
        "--listen",
        "0.0.0.0:0",
    ];
    let mut dashboard = Dashboard::start(&arguments, "");
    let address = dashboard.address.replace("0.0.0.0", "127.0.0.1");
    browser.resize(1280, 900, false);
    browser.open(&address);
    browser.wait_for_text("This dashboard needs its token.");
    browser.wait_for("document.activeElement.id === 'token'");
    browser.write("wrong");
    browser.press("Enter");
    browser.wait_for_text("The token is wrong.");
    browser.picture("token.png", false);
    browser.value("document.getElementById('token').value = ''; document.getElementById('token').focus()");
    browser.write("0123456789abcdef0123");
    browser.press("Enter");
    browser.wait_for_text("Nothing needs a person.");
    assert_eq!(browser.value("location.pathname + location.search"), "/");
    assert_eq!(browser.value("document.cookie"), "", "no script reads the cookie");
    browser.picture("empty.png", true);
    assert_eq!(dashboard.signal(Signal::TERM), Some(0));
    browser.wait_for_text("The dashboard does not answer");
    browser.wait_for_text("systemctl status netram-dashboard");
    browser.wait_for("!document.getElementById('verdict').innerText.includes('well')");
    browser.picture("gone.png", false);
}

#[test]
fn an_address_for_all_needs_a_token_and_a_wrong_file_or_page_is_named() {
    for (arguments, code, said) in [
        (&["--listen", "0.0.0.0:0"][..], 2, "needs a token"),
        (&["--listen", "somewhere"], 2, "IP:PORT"),
        (&["--scrape", "https://a:1"], 2, "HOST:PORT"),
        (&["--token-file", "/nowhere"], 1, "cannot read the token file"),
        (&["--cluster", "/nowhere"], 1, "/nowhere"),
    ] {
        let refused = run(["dashboard", "--insecure"]
            .into_iter()
            .chain(arguments.iter().copied()));
        assert_eq!(refused.code, code, "{arguments:?}: {}", refused.err);
        assert!(refused.err.contains(said), "{arguments:?}: {}", refused.err);
    }
}
