//! `netram init`: a cluster on one machine, made by one command, as a user meets it first.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::mounted::wait_until;
use crate::common::port::reserve_port;
use crate::common::{CommandOutput, finish, netram, skipped};
use crate::root::{TwoHomes, USER, as_user, cannot_be_two};

/// A home in which nothing is, and ports for its lenders. The lenders end with it.
struct FreshHome {
    directory: tempfile::TempDir,
    ports: [u16; 2],
}

impl FreshHome {
    fn new() -> FreshHome {
        FreshHome {
            // Not in /tmp, which may be memory.
            directory: tempfile::tempdir_in("/var/tmp").unwrap(),
            ports: [(); 2].map(|()| port()),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Puts a command into this home. Root's files are in /etc, unless variables say otherwise.
    fn settle(&self, command: &mut Command) {
        command
            .env("HOME", self.directory.path())
            .env_remove("XDG_CONFIG_HOME")
            .env("NETRAM_STATE_DIR", self.path("state"))
            .env("NETRAM_CLUSTER", self.path("config/cluster.toml"))
            .env("NETRAM_KEY_FILE", self.path("config/key"));
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = netram();
        self.settle(&mut command);
        command.args(words);
        command
    }

    fn run(&self, words: &[&str]) -> CommandOutput {
        finish(&mut self.command(words))
    }

    /// The arguments that make the cluster.
    fn arguments(&self) -> [String; 6] {
        let ports = format!("{},{}", self.ports[0], self.ports[1]);
        ["init", "--background", "--memory", "32MiB", "--ports", &ports].map(str::to_owned)
    }

    fn init(&self) -> CommandOutput {
        self.run(&self.arguments().each_ref().map(String::as_str))
    }

    /// Runs a line in a shell, as if it had been pasted.
    fn pasted(&self, line: &str) -> CommandOutput {
        let mut command = crate::common::clean(Command::new("sh"));
        self.settle(&mut command);
        finish(command.args(["-c", line]).current_dir("/"))
    }

    fn does(&self, words: &[&str]) -> Value {
        let ran = self.run(&[words, &["--json"]].concat());
        assert_eq!(ran.code, 0, "{words:?}: {}{}", ran.out, ran.err);
        serde_json::from_str(&ran.out).unwrap()
    }

    /// Process numbers of the lenders that answer.
    fn processes(&self) -> Vec<i32> {
        let cluster: Value = serde_json::from_str(&self.run(&["status", "--json"]).out).unwrap();
        let lenders = cluster["lenders"].as_array().unwrap().iter();
        let ids = lenders.filter_map(|lender| lender["report"]["pid"].as_i64());
        ids.map(|id| i32::try_from(id).unwrap()).collect()
    }

    fn stores(&self) -> [PathBuf; 2] {
        let user = rustix::process::geteuid().as_raw();
        self.ports
            .map(|port| format!("/dev/shm/netram-{user}-local-{port}.mem").into())
    }
}

impl Drop for FreshHome {
    fn drop(&mut self) {
        let _ = self.run(&[
            "mount",
            "detach",
            self.path("state/trial/files").to_str().unwrap(),
        ]);
        let _ = self.run(&["init", "--background", "--stop"]);
        for store in self.stores() {
            let _ = fs::remove_file(store);
        }
    }
}

fn port() -> u16 {
    reserve_port().rsplit(':').next().unwrap().parse().unwrap()
}

/// The commands that the output says to try.
fn to_try(out: &str) -> Vec<String> {
    let lines = out.lines().skip_while(|line| *line != "Try:").skip(2);
    lines
        .map_while(|line| Some(line.strip_prefix("  ")?.to_owned()))
        .collect()
}

fn runs(id: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

fn states(report: &Value) -> Vec<&str> {
    let lenders = report["lenders"].as_array().unwrap().iter();
    lenders.map(|lender| lender["state"].as_str().unwrap()).collect()
}

#[test]
fn a_cluster_of_one_command_survives_a_killed_lender_and_is_removed_whole() {
    let home = FreshHome::new();
    let made = home.init();
    assert_eq!(made.code, 0, "{}{}", made.out, made.err);
    let commands = to_try(&made.out);
    assert_eq!(commands.len(), 3, "{}", made.out);
    for line in &commands {
        let ran = home.pasted(line);
        assert_eq!(ran.code, 0, "{line}\n{}{}", ran.out, ran.err);
    }
    let files = ["key", "cluster.toml"].map(|name| fs::read(home.path("config").join(name)).unwrap());

    let processes = home.processes();
    assert_eq!(processes.len(), 2);
    kill_process(Pid::from_raw(processes[0]).unwrap(), Signal::KILL).unwrap();
    wait_until("the lender is gone", || !runs(processes[0]));
    let trial = if rustix::process::geteuid().is_root() {
        "state/trial/files"
    } else {
        "netram-trial/files"
    };
    let has_mounted = commands[1].contains("mount attach");
    match has_mounted {
        true => {
            let ran = home.pasted(&format!(
                "cd {} && echo on > second && sync second",
                home.path(trial).display()
            ));
            assert_eq!(ran.code, 0, "{}", ran.err);
            let refused = home.run(&["init", "--background", "--remove"]);
            assert!(
                refused.code == 1 && !refused.out.contains("removed"),
                "{}",
                refused.err
            );
        }
        false => skipped("nothing can be mounted here: no commit was tried with a killed lender"),
    }
    let again = home.does(&["init", "--background"]);
    let mut found = states(&again);
    found.sort_unstable();
    assert_eq!(found, ["running", "started"]);
    assert_eq!(again["made"].as_array().unwrap().len(), 0);
    assert_eq!(
        states(&home.does(&["init", "--background"])),
        ["running", "running"]
    );
    let kept = ["key", "cluster.toml"].map(|name| fs::read(home.path("config").join(name)).unwrap());
    assert!(kept == files, "a second init changed a file");

    let processes = home.processes();
    if has_mounted {
        let ran = home.run(&["mount", "detach", home.path(trial).to_str().unwrap()]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    } else {
        let journal = home.path(trial).with_file_name("journal");
        let ran = home.run(&["journal", "delete", journal.to_str().unwrap(), "--yes", "--force"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
    }
    let removed = home.does(&["init", "--background", "--remove"]);
    assert_eq!(states(&removed), ["stopped", "stopped"]);
    assert_eq!(removed["removed"].as_array().unwrap().len(), 3, "{removed}");
    assert!(!processes.into_iter().any(runs));
    assert!(home.stores().iter().all(|store| !store.exists()));
    let left = fs::read_dir(home.path("config"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["key"]);
}

/// Whatever stands in the way is named before a file is made or a lender started.
#[test]
fn a_cluster_that_cannot_be_made_leaves_nothing() {
    let home = FreshHome::new();
    let refuses = |command: &mut Command, code: i32, word: &str| {
        let ran = finish(command);
        assert!(
            ran.code == code && ran.err.contains(word),
            "{word}: {} {}",
            ran.code,
            ran.err
        );
        assert!(!home.path("config").exists(), "{word}");
        assert!(home.stores().iter().all(|store| !store.exists()), "{word}");
    };
    let arguments = home.arguments();
    let words = arguments.each_ref().map(String::as_str);
    let listener = TcpListener::bind(("127.0.0.1", home.ports[1])).unwrap();
    refuses(&mut home.command(&words), 1, &format!("port {}", home.ports[1]));
    drop(listener);
    let much = home.arguments().map(|word| {
        if word == "32MiB" {
            "99999GiB".to_owned()
        } else {
            word
        }
    });
    refuses(
        &mut home.command(&much.each_ref().map(String::as_str)),
        1,
        "/dev/shm",
    );
    refuses(
        home.command(&words).env("NETRAM_LENDERS", "tcp://127.0.0.1:1"),
        2,
        "NETRAM_LENDERS",
    );
    refuses(&mut home.command(&["init", "--ports", "7,7"]), 2, "--ports");
    // A file where a directory should be, which stops root, too.
    let blocked = home.path("blocked");
    fs::write(&blocked, "").unwrap();
    let cluster = blocked.join("cluster.toml");
    refuses(home.command(&words).env("NETRAM_CLUSTER", &cluster), 1, "blocked");
    let other = home.path("other.toml");
    fs::write(&other, "[[lender]]\naddress = 'tcp://127.0.0.1:1'\n").unwrap();
    refuses(
        home.command(&words).env("NETRAM_CLUSTER", &other),
        1,
        "in a cluster already",
    );
    let wrong = home.path("wrong.key");
    fs::write(&wrong, "no key\n").unwrap();
    let ran = finish(home.command(&words).env("NETRAM_KEY_FILE", &wrong));
    assert!(ran.code == 1 && ran.err.contains("wrong.key"), "{}", ran.err);
    assert!(!home.path("config/cluster.toml").exists() && fs::read(&wrong).unwrap() == b"no key\n");
}

#[test]
fn lenders_with_another_key_than_the_environments_are_named() {
    let home = FreshHome::new();
    assert_eq!(home.init().code, 0);
    let other = home.path("other.key");
    let made = home.run(&["key", "create", other.to_str().unwrap()]);
    assert_eq!(made.code, 0, "{}", made.err);
    let ran = finish(
        home.command(&["init", "--background"])
            .env("NETRAM_KEY_FILE", &other),
    );
    assert!(
        ran.code == 1 && ran.err.contains("has another key than"),
        "{}",
        ran.err
    );
    let ran = home.run(&["init", "--background", "--memory", "64MiB"]);
    assert!(
        ran.code == 2 && ran.err.contains(".toml has what each lender lends"),
        "{}",
        ran.err
    );
    assert_eq!(
        states(&home.does(&["init", "--background"])),
        ["running", "running"]
    );
    for expected in ["stopped", "down"] {
        assert_eq!(
            states(&home.does(&["init", "--background", "--stop"])),
            [expected; 2]
        );
    }
    assert_eq!(
        states(&home.does(&["init", "--background"])),
        ["started", "started"]
    );
}

/// A user who has never seen netram: no variable is set, and everything is in the home.
#[test]
fn a_users_fresh_home_gets_a_cluster() {
    if cannot_be_two() {
        return;
    }
    let homes = TwoHomes::new();
    let script = format!(
        "unset NETRAM_STATE_DIR; \"$NETRAM\" init --memory 32MiB --ports {},{} --json
        \"$NETRAM\" status > table; \"$NETRAM\" init --remove --json > removed",
        port(),
        port()
    );
    if Path::new("/etc/netram/cluster.toml").exists() || Path::new("/etc/netram/key").exists() {
        return skipped("this machine is in a cluster");
    }
    let ran = finish(&mut as_user(&script, &homes.user));
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let made: Value = serde_json::from_str(&ran.out).unwrap();
    let at = |name: &str| homes.user.join(name).display().to_string();
    assert_eq!(made["key"], at(".config/netram/key"));
    assert_eq!(made["cluster"], at(".config/netram/cluster.toml"));
    assert_eq!(
        (made["service"].as_str(), states(&made)),
        (Some("background"), vec!["started", "started"])
    );
    assert_eq!(made["next"].as_array().unwrap().len(), 3);
    let removed: Value = serde_json::from_slice(&fs::read(homes.user.join("removed")).unwrap()).unwrap();
    assert_eq!(states(&removed), ["stopped", "stopped"]);
}

/// Systemd's part, as far as `netram init` has to do with it: the unit is known, and starts with its user and
/// its environment file.
const SYSTEMCTL: &str = r#"#!/bin/sh -eu
echo "$@" >> "$WORK/told"
case "$1" in
cat) test "$2" = netram-lender@.service ;;
enable)
    name=${3#netram-lender@}; name=${name%.service}
    . "/etc/default/netram-lender@$name"
    setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups "$NETRAM" lender serve $NETRAM_LENDER_ARGS \
        > "$WORK/$name.log" 2>&1 &
    echo $! > "$WORK/$name.pid" ;;
disable)
    name=${3#netram-lender@}; name=${name%.service}
    id=$(cat "$WORK/$name.pid"); kill "$id"
    while test -e "/proc/$id/exe" && ! grep -q '^State:.*Z' "/proc/$id/status"; do sleep 0.05; done ;;
esac
"#;

/// Root's files and units, in a namespace of mounts with its own /etc.
#[test]
fn root_gets_units_and_a_key_that_their_user_can_read() {
    if cannot_be_two() {
        return;
    }
    let homes = TwoHomes::new();
    let work = &homes.user;
    let bin = work.join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("systemctl"), SYSTEMCTL).unwrap();
    fs::set_permissions(bin.join("systemctl"), fs::Permissions::from_mode(0o755)).unwrap();
    let script = r#"
        cp -a /etc "$WORK/etc"
        mount --bind "$WORK/etc" /etc
        mount -t tmpfs none /run
        mkdir -p /etc/default /run/systemd/system
        echo "netram:x:$USER_ID:$USER_ID::/:/bin/false" >> /etc/passwd
        "$NETRAM" init --memory 32MiB --ports "$PORTS" --json > "$WORK/made"
        stat -c '%a %u' /etc/netram/key > "$WORK/key"
        "$NETRAM" status > /dev/null
        "$NETRAM" init --json > "$WORK/again"
        "$NETRAM" init --remove --json > "$WORK/removed"
        find /etc -path "*netram*" -type f > "$WORK/left""#;
    let mut command = crate::common::clean(Command::new("unshare"));
    command.args(["-m", "sh", "-euc", script]);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    command
        .env("PATH", path)
        .env("WORK", work)
        .env("NETRAM", crate::common::program());
    command
        .env("PORTS", format!("{},{}", port(), port()))
        .env("USER_ID", USER.to_string());
    command.env("NETRAM_STATE_DIR", work.join("state"));
    let ran = finish(&mut command);
    let read = |name: &str| fs::read_to_string(work.join(name)).unwrap_or_default();
    assert_eq!(ran.code, 0, "{}{}", ran.err, read("told"));
    let report = |name: &str| -> Value { serde_json::from_str(&read(name)).unwrap() };
    let made = report("made");
    assert_eq!(
        (made["service"].as_str(), made["key"].as_str()),
        (Some("systemd"), Some("/etc/netram/key"))
    );
    assert_eq!(made["made"].as_array().unwrap().len(), 6, "{made}");
    assert_eq!(read("key"), format!("600 {USER}\n"));
    assert_eq!(states(&made), ["started", "started"]);
    assert_eq!(states(&report("again")), ["running", "running"]);
    assert_eq!(states(&report("removed")), ["stopped", "stopped"]);
    assert_eq!(read("left"), "/etc/netram/key\n");
}
