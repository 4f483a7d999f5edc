//! What Kubernetes does with a volume, from its creation to its end.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileTypeExt;

use tonic::Code;

use crate::api::volume_capability::access_mode::Mode;
use crate::api::*;
use crate::testbed::{MIB, Machine, block, mounted};

/// Writes a file durably.
fn write(path: &std::path::Path, text: &str) {
    let mut file = File::create(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_volume_goes_from_its_class_to_a_pod_and_back_and_each_step_may_be_repeated() {
    let Some(machine) = Machine::for_kubernetes("csi-life") else {
        return;
    };
    let usage = mounted(Mode::SingleNodeWriter);
    let volume = machine.create("pvc-1", |_| ()).unwrap();
    assert_eq!(volume, machine.create("pvc-1", |_| ()).unwrap());
    assert_eq!(
        (volume.volume_id.as_str(), volume.capacity_bytes),
        ("pvc-1", 64 * MIB)
    );
    let place = &volume.accessible_topology[0].segments;
    assert_eq!(place["topology.csi.netram.io/node"], "node-1");
    let settings = fs::read_to_string(machine.path("volumes/pvc-1/netram.toml")).unwrap();
    assert!(settings.contains("lenders"), "{settings}");

    for _ in 0..2 {
        machine.stage("pvc-1", &usage).unwrap();
    }
    for _ in 0..2 {
        machine.publish("pvc-1", "pod", &usage, false).unwrap();
    }
    write(&machine.path("pod/greeting"), "hello");
    let stats = machine.stats("pvc-1", "pod").unwrap();
    assert!(
        stats.iter().all(|usage| usage.total > 0 && usage.available > 0),
        "{stats:?}"
    );
    // A second pod of the same machine, which may only read.
    let other = machine.publish("pvc-1", "reader", &usage, true).unwrap();
    assert_eq!(fs::read_to_string(other.join("greeting")).unwrap(), "hello");
    assert!(File::create(other.join("more")).is_err(), "it refuses writes");
    let said = machine.unstage("pvc-1").unwrap_err();
    assert_eq!(said.code(), Code::FailedPrecondition);
    assert!(said.message().contains("still published at"), "{said}");
    assert_eq!(
        machine.delete("pvc-1").unwrap_err().code(),
        Code::FailedPrecondition
    );

    for target in ["reader", "pod", "pod"] {
        machine.unpublish("pvc-1", target).unwrap();
        assert!(!machine.path(target).exists());
    }
    for _ in 0..2 {
        machine.unstage("pvc-1").unwrap();
    }
    assert_eq!(machine.attached(), 0);
    machine.stage("pvc-1", &usage).unwrap();
    assert_eq!(
        fs::read_to_string(machine.path("stage-pvc-1/greeting")).unwrap(),
        "hello",
        "the file system is made once"
    );
    machine.unstage("pvc-1").unwrap();
    for _ in 0..2 {
        machine.delete("pvc-1").unwrap();
    }
    assert!(!machine.path("volumes/pvc-1").exists());
}

#[test]
fn a_block_volume_is_a_device_at_the_pods_path_and_grows_there() {
    let Some(machine) = Machine::for_kubernetes("csi-block") else {
        return;
    };
    let usage = block(Mode::SingleNodeWriter);
    machine
        .create("raw", |request| request.volume_capabilities = vec![usage.clone()])
        .unwrap();
    machine.stage("raw", &usage).unwrap();
    for _ in 0..2 {
        machine.publish("raw", "device", &usage, false).unwrap();
    }
    let device = machine.path("device");
    assert!(fs::metadata(&device).unwrap().file_type().is_block_device());
    assert_eq!(machine.stats("raw", "device").unwrap()[0].total, 64 * MIB);
    for _ in 0..2 {
        assert_eq!(machine.expand("raw", "device", 96 * MIB).unwrap(), 96 * MIB);
    }
    assert_eq!(
        machine.expand("raw", "device", 64 * MIB).unwrap(),
        96 * MIB,
        "it never shrinks"
    );
    assert_eq!(machine.stats("raw", "device").unwrap()[0].total, 96 * MIB);
    machine.unpublish("raw", "device").unwrap();
    assert!(!device.exists());
    machine.unstage("raw").unwrap();
    machine.delete("raw").unwrap();
}

#[test]
fn lists_come_in_pages_that_leave_no_volume_out() {
    let Some(machine) = Machine::for_kubernetes("csi-list") else {
        return;
    };
    for name in ["three", "one", "two"] {
        machine.create(name, |_| ()).unwrap();
    }
    let list = |starting_token: &str| {
        let request = ListVolumesRequest {
            max_entries: 1,
            starting_token: starting_token.to_owned(),
        };
        machine.controller(async |client| client.list_volumes(request).await)
    };
    let (mut token, mut seen) = (String::new(), Vec::new());
    loop {
        let page = list(&token).unwrap();
        seen.extend(
            page.entries
                .into_iter()
                .map(|entry| entry.volume.unwrap().volume_id),
        );
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, ["one", "three", "two"]);
    assert_eq!(list("two").unwrap_err().code(), Code::Aborted);
}
