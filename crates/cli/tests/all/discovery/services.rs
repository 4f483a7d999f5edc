//! Debian's avahi and dnsmasq, each on a machine of the test's network.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::faults::harness::network::Network;
use crate::faults::harness::process::{FaultsProcess, until};

/// The programs of `packages` that this machine lacks; `None`: it has all.
pub(super) fn lacking(programs: &[&str]) -> Option<String> {
    let is_there = |program: &str| {
        let found = Command::new("sh")
            .args(["-c", &format!("PATH=$PATH:/usr/sbin:/sbin command -v {program}")])
            .stdin(Stdio::null())
            .output();
        found.is_ok_and(|found| found.status.success())
    };
    let missing: Vec<&str> = programs
        .iter()
        .copied()
        .filter(|program| !is_there(program))
        .collect();
    (!missing.is_empty()).then(|| {
        format!(
            "no {} (packages avahi-daemon, avahi-utils, dbus, dnsmasq-base)",
            missing.join(", ")
        )
    })
}

/// An avahi daemon with a bus of its own.
pub(super) struct Avahi {
    bus: PathBuf,
    on: Vec<String>,
    log: PathBuf,
    // Before the bus, which it needs to the end.
    _avahi: FaultsProcess,
    _dbus: FaultsProcess,
}

const BUS: &str = r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path=BUS</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="method_call"/>
<allow send_type="signal"/><allow send_requested_reply="true"/><allow receive_type="method_call"/>
<allow receive_type="signal"/><allow receive_type="method_return"/><allow receive_type="error"/></policy>
</busconfig>
"#;

impl Avahi {
    /// Starts avahi on a machine; its files are in `directory`.
    pub(super) fn start(network: &Network, machine: usize, directory: &Path) -> Avahi {
        let [bus, bus_config, config, log] =
            ["bus", "bus.conf", "avahi.conf", "avahi.log"].map(|name| directory.join(name));
        std::fs::write(&bus_config, BUS.replace("BUS", &bus.display().to_string())).unwrap();
        std::fs::write(
            &config,
            "[server]\nhost-name=witness\nuse-ipv4=yes\nuse-ipv6=no\n[publish]\npublish-workstation=no\n[rlimits]\n",
        )
        .unwrap();
        let on = network.on(machine);
        let dbus = FaultsProcess::start(
            Command::new("dbus-daemon")
                .arg(format!("--config-file={}", bus_config.display()))
                .args(["--nofork", "--nopidfile"]),
            &log,
        );
        until("the bus has a socket", || bus.exists());
        let mut command = Command::new(&on[0]);
        // Its process id and its socket are in /run, its services in /etc: the machine's own must stay.
        let script = "mount -t tmpfs none /run && mount -t tmpfs none /etc/avahi/services && \
                      exec avahi-daemon --no-drop-root --no-rlimits --no-chroot -f \"$1\"";
        command
            .args(&on[1..])
            .args(["unshare", "--mount", "sh", "-c", script, "sh"])
            .arg(&config)
            .env("DBUS_SYSTEM_BUS_ADDRESS", address(&bus));
        let avahi = Avahi {
            _avahi: FaultsProcess::start(&mut command, &log),
            _dbus: dbus,
            bus,
            on,
            log,
        };
        until("avahi serves", || {
            std::fs::read_to_string(&avahi.log).is_ok_and(|log| log.contains("Server startup complete"))
        });
        avahi
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(&self.on[0]);
        command
            .args(&self.on[1..])
            .arg(program)
            .env("DBUS_SYSTEM_BUS_ADDRESS", address(&self.bus));
        command
    }

    /// The lenders that avahi knows, a line each, with addresses and texts.
    pub(super) fn lenders(&self) -> String {
        let mut command = self.command("avahi-browse");
        let run = command
            .args(["-rptk", "_netram._tcp"])
            .stdin(Stdio::null())
            .output();
        String::from_utf8_lossy(&run.expect("avahi-browse starts").stdout).into_owned()
    }

    /// Announces a lender on avahi's own machine until the result is dropped.
    pub(super) fn publish(&self, name: &str, port: u16, texts: &[&str]) -> FaultsProcess {
        let mut command = self.command("avahi-publish");
        command
            .args(["-s", name, "_netram._tcp", &port.to_string()])
            .args(texts);
        FaultsProcess::start(&mut command, &self.log)
    }
}

fn address(bus: &Path) -> String {
    format!("unix:path={}", bus.display())
}

/// Starts dnsmasq on a machine, with these options.
pub(super) fn dnsmasq(
    network: &Network,
    machine: usize,
    directory: &Path,
    options: &[String],
) -> FaultsProcess {
    let on = network.on(machine);
    let log = directory.join("dnsmasq.log");
    let mut command = Command::new(&on[0]);
    command
        .args(&on[1..])
        .args([
            "dnsmasq",
            "--keep-in-foreground",
            "--no-resolv",
            "--no-hosts",
            "--user=root",
        ])
        .args([
            "--conf-file=/dev/null",
            "--pid-file=",
            "--log-facility=-",
            "--local=/test/",
        ])
        .args(options);
    let server = FaultsProcess::start(&mut command, &log);
    until("dnsmasq serves", || {
        std::fs::read_to_string(&log).is_ok_and(|log| log.contains("started"))
    });
    server
}
