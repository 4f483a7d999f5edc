//! A shared region in a test's own directory, and its server.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::{CommandOutput, netram, run, start};

/// Longer than any step takes on a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A test's directory.
pub struct SharedFixture(tempfile::TempDir);

impl SharedFixture {
    pub fn new() -> SharedFixture {
        SharedFixture(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `netram shared COMMAND REGION ...`.
    pub fn shared(&self, command: &str, region: &str, rest: &[&str]) -> CommandOutput {
        let path = self.path(region);
        run([&["shared", command, path.to_str().unwrap()], rest].concat())
    }

    pub fn json(&self, command: &str, region: &str) -> Value {
        let ran = self.shared(command, region, &["--json"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        serde_json::from_str(&ran.out).unwrap()
    }

    /// Creates a region with 16 locks.
    pub fn made(&self) -> CommandOutput {
        let sizes = ["--size", "64KiB", "--span-size", "4KiB", "--log-size", "1MiB"];
        let lenders = [
            "--lender",
            "tcp://10.0.0.2:7420",
            "--lender",
            "tcp://10.0.0.3:7420",
        ];
        self.shared("create", "plan", &[&sizes[..], &lenders].concat())
    }
}

/// A server's process, killed when dropped.
pub struct SharedServer {
    pub child: std::process::Child,
    pub address: String,
}

impl SharedServer {
    /// Serves a region of the fixture, with these flags.
    pub fn start(place: &SharedFixture, region: &str, flags: &[&str]) -> SharedServer {
        SharedServer::run(place, region, &[&["--insecure"], flags].concat())
    }

    /// Serves it to nodes that have the key.
    pub fn start_with_key(place: &SharedFixture, region: &str, key: &Path) -> SharedServer {
        SharedServer::run(place, region, &["--key-file", key.to_str().unwrap()])
    }

    fn run(place: &SharedFixture, region: &str, flags: &[&str]) -> SharedServer {
        let mut command = netram();
        let path = place.path(region);
        let systemd = UnixDatagram::bind(place.path("notify")).unwrap();
        systemd.set_read_timeout(Some(PATIENCE)).unwrap();
        command
            .env("NOTIFY_SOCKET", place.path("notify"))
            .args([
                "shared",
                "serve",
                "--with-parent",
                "--listen",
                "tcp://127.0.0.1:0",
            ])
            .args(flags)
            .arg(path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = start(&mut command);
        let out = child.stdout.take().unwrap();
        let mut server = SharedServer {
            child,
            address: String::new(),
        };
        for line in BufReader::new(out).lines() {
            let line = line.unwrap();
            match line.strip_prefix("listening ") {
                Some(address) => server.address = address.to_owned(),
                None if line == "ready" => {
                    let mut told = [0; 16];
                    let length = systemd.recv(&mut told).expect("systemd is told");
                    assert_eq!(&told[..length], b"READY=1");
                    return server;
                }
                None => (),
            }
        }
        panic!("the server ended before it was ready");
    }
}

impl Drop for SharedServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
