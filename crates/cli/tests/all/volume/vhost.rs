//! `netram volume serve --vhost-user`, without a virtual machine: `make guest` boots one.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::{Started, VolumeFixture, until};
use crate::common::{netram, start};

#[test]
fn a_volume_is_served_to_virtual_machines_until_a_signal_and_then_closed() {
    let place = VolumeFixture::new();
    place.json(&["create", "db", "--size", "1MiB", "--journal-size", "4MiB"]);
    let both = ["serve", "db", "--vhost-user", "disk", "--listen", "unix:/nowhere"];
    let both = place.disk(&both).err;
    assert!(
        both.contains("--vhost-user") && both.contains("--listen"),
        "{both}"
    );
    let nowhere = place.refused(&["serve", "db", "--vhost-user", "/nowhere/disk"], 1);
    assert!(nowhere.contains("unix:/nowhere/disk"), "{nowhere}");
    let mut command = netram();
    command.args(["volume", "serve", "db", "--vhost-user", "disk"]);
    command.current_dir(place.directory.path());
    let mut server = Started(start(command.stdout(Stdio::piped())));
    let mut lines = BufReader::new(server.0.stdout.take().unwrap()).lines();
    let socket = place.path("disk");
    assert_eq!(
        lines.next().unwrap().unwrap(),
        format!("listening unix:{}", socket.display())
    );
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    assert_eq!(socket.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let front = |name: &str| place.json(&["status", "db"])["live"]["front"][name].clone();
    assert_eq!(
        (front("kind"), front("connections")),
        ("vhost-user".into(), 0.into())
    );
    let client = UnixStream::connect(&socket).unwrap();
    until("the connection is seen", || front("connections") == 1);
    // It says nothing, and nobody waits for it.
    kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
    assert!(server.0.wait().unwrap().success());
    drop(client);
    assert!(!socket.exists());
    assert_eq!(place.json(&["status", "db"])["in_use"], false);
}
