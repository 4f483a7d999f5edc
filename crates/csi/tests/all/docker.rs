//! What Docker and Podman do with a volume, by the protocol that both document.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::testbed::Machine;

/// Sends a request as Docker does. Returns the answer, or the error in it.
fn ask(machine: &Machine, method: &str, body: Value) -> Result<Value, String> {
    let body = body.to_string();
    let mut socket = UnixStream::connect(machine.socket()).unwrap();
    write!(
        socket,
        "POST /{method} HTTP/1.1\r\nHost: plugin\r\nAccept: application/vnd.docker.plugins.v1.2+json\r\n\
         Connection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut text = String::new();
    socket.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let answer: Value = serde_json::from_str(body).unwrap();
    let error = answer["Err"].as_str().unwrap_or_default().to_owned();
    assert_eq!(head.starts_with("HTTP/1.1 200"), error.is_empty(), "{text}");
    match error.as_str() {
        "" => Ok(answer),
        _ => Err(error),
    }
}

#[test]
fn a_volume_is_mounted_for_its_first_container_and_unmounted_with_its_last() {
    let Some(mut machine) = Machine::for_docker("csi-docker") else {
        return;
    };
    let activated = ask(&machine, "Plugin.Activate", Value::Null).unwrap();
    assert_eq!(activated["Implements"][0], "VolumeDriver");
    let mut options = json!(machine.class());
    options["size"] = "64MiB".into();
    for _ in 0..2 {
        ask(
            &machine,
            "VolumeDriver.Create",
            json!({ "Name": "db", "Opts": options }),
        )
        .unwrap();
    }
    ask(&machine, "VolumeDriver.Create", json!({ "Name": "db" })).unwrap();
    let mount = |machine: &Machine, id: &str| {
        let mounted = ask(machine, "VolumeDriver.Mount", json!({ "Name": "db", "ID": id })).unwrap();
        mounted["Mountpoint"].as_str().unwrap().to_owned()
    };
    let unmount =
        |machine: &Machine, id: &str| ask(machine, "VolumeDriver.Unmount", json!({ "Name": "db", "ID": id }));
    let place = mount(&machine, "one");
    fs::write(format!("{place}/greeting"), "hello").unwrap();
    assert_eq!(mount(&machine, "two"), place);
    let listed = ask(&machine, "VolumeDriver.List", json!({})).unwrap();
    assert_eq!(
        listed["Volumes"],
        json!([{ "Name": "db", "Mountpoint": place, "Status": {} }])
    );
    let said = ask(&machine, "VolumeDriver.Remove", json!({ "Name": "db" })).unwrap_err();
    assert!(said.contains("is attached"), "{said}");

    // The plugin may be killed: its successor knows both containers.
    machine.kill_driver();
    assert_eq!(fs::read_to_string(format!("{place}/greeting")).unwrap(), "hello");
    machine.start();
    unmount(&machine, "one").unwrap();
    assert_eq!(fs::read_to_string(format!("{place}/greeting")).unwrap(), "hello");
    unmount(&machine, "two").unwrap();
    assert_eq!(machine.attached(), 0);
    let path = ask(&machine, "VolumeDriver.Path", json!({ "Name": "db" })).unwrap();
    assert_eq!(path["Mountpoint"], "");

    assert_eq!(
        fs::read_to_string(format!("{}/greeting", mount(&machine, "three"))).unwrap(),
        "hello"
    );
    unmount(&machine, "three").unwrap();
    ask(&machine, "VolumeDriver.Remove", json!({ "Name": "db" })).unwrap();
    let said = ask(&machine, "VolumeDriver.Get", json!({ "Name": "db" })).unwrap_err();
    assert!(said.contains("there is no volume db"), "{said}");
}

#[test]
fn options_of_a_volume_are_checked_before_it_is_made() {
    let Some(machine) = Machine::for_docker("csi-options") else {
        return;
    };
    for (options, why) in [
        (json!({ "size": "large" }), "not one like 20GiB"),
        (json!({ "fsType": "ntfs" }), "use ext4, xfs, btrfs"),
        (json!({ "o": "uid=1" }), "there is no parameter o"),
    ] {
        let said = ask(
            &machine,
            "VolumeDriver.Create",
            json!({ "Name": "x", "Opts": options }),
        )
        .unwrap_err();
        assert!(said.contains(why), "{said}");
    }
    let said = ask(&machine, "GraphDriver.Init", json!({})).unwrap_err();
    assert!(said.contains("no method"), "{said}");
    let listed = ask(&machine, "VolumeDriver.List", json!({})).unwrap();
    assert_eq!(listed["Volumes"], json!([]));
}

#[test]
fn volumes_of_a_driver_in_a_container_are_the_machines_and_outlive_it() {
    let Some(mut machine) = Machine::with_container("csi-container") else {
        return;
    };
    let mut options = json!(machine.class());
    options["size"] = "64MiB".into();
    ask(
        &machine,
        "VolumeDriver.Create",
        json!({ "Name": "db", "Opts": options }),
    )
    .unwrap();
    let user = json!({ "Name": "db", "ID": "one" });
    let mounted = ask(&machine, "VolumeDriver.Mount", user.clone()).unwrap();
    let greeting = format!("{}/greeting", mounted["Mountpoint"].as_str().unwrap());
    fs::write(machine.on_machine(&greeting), "hello").unwrap();
    assert!(
        !std::path::Path::new(&greeting).exists(),
        "only the machine has the mount"
    );
    let scopes = fs::read_to_string(machine.path("scopes")).unwrap();
    assert!(
        scopes.contains("--scope") && scopes.contains("volume attach"),
        "{scopes}"
    );
    machine.kill_container();
    assert_eq!(
        fs::read_to_string(machine.on_machine(&greeting)).unwrap(),
        "hello"
    );
    ask(&machine, "VolumeDriver.Unmount", user).unwrap();
    ask(&machine, "VolumeDriver.Remove", json!({ "Name": "db" })).unwrap();
}
