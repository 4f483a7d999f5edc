//! Requests that are refused, and leave everything as it was.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;

use tonic::Code;

use crate::api::volume_capability::access_mode::Mode;
use crate::api::*;
use crate::testbed::{MIB, Machine, mounted, range};

/// Changes a request to create the volume `taken`.
type Change = fn(&mut CreateVolumeRequest);

/// Requests that cannot be met, and why.
const CASES: [(Code, &str, Change); 7] = [
    (Code::AlreadyExists, "another size", |request| {
        request.capacity_range = Some(range(65 * MIB));
    }),
    (Code::AlreadyExists, "other parameters", |request| {
        request.parameters.insert("rule".into(), "any".into());
    }),
    (Code::InvalidArgument, "no parameter copies", |request| {
        request.parameters.insert("copies".into(), "2".into());
    }),
    (Code::InvalidArgument, "one machine at a time", |request| {
        request.volume_capabilities = vec![mounted(Mode::MultiNodeMultiWriter)];
    }),
    (Code::OutOfRange, "at most", |request| {
        request.name = "large".into();
        request.capacity_range = Some(range(i64::MAX));
    }),
    (Code::ResourceExhausted, "--node-deployment", |request| {
        let place = ("topology.csi.netram.io/node".to_owned(), "node-2".to_owned());
        let segments = HashMap::from([place]);
        request.accessibility_requirements = Some(TopologyRequirement {
            requisite: vec![Topology { segments }],
            preferred: Vec::new(),
        });
    }),
    (Code::InvalidArgument, "--recovery-keys", |request| {
        request.name = "kept".into();
        let address = "tcp://127.0.0.1:1".to_owned();
        request.parameters.insert("dataLender".into(), address);
    }),
];

#[test]
fn requests_that_cannot_be_met_say_why() {
    let Some(machine) = Machine::for_kubernetes("csi-refused") else {
        return;
    };
    machine.create("taken", |_| ()).unwrap();
    for (code, why, change) in CASES {
        let said = machine.create("taken", change).unwrap_err();
        assert_eq!(said.code(), code, "{said}");
        assert!(said.message().contains(why), "{why}: {said}");
    }
    let said = machine
        .create("odd", |request| {
            request.parameters.insert("lenders".into(), "nowhere".into());
        })
        .unwrap_err();
    assert_eq!(said.code(), Code::InvalidArgument, "{said}");
    assert!(!machine.path("volumes/odd").exists());
    let deleted = machine.delete("../taken").map_err(|said| said.code());
    assert_eq!(deleted, Ok(()), "nothing has that id");
    assert!(machine.path("volumes/taken").exists());
}

#[test]
fn one_pods_volume_has_no_second_pod() {
    let Some(machine) = Machine::for_kubernetes("csi-alone") else {
        return;
    };
    let usage = mounted(Mode::SingleNodeSingleWriter);
    machine.create("alone", |_| ()).unwrap();
    let said = machine.publish("alone", "early", &usage, false).unwrap_err();
    assert!(said.message().contains("stage it first"), "{said}");
    machine.stage("alone", &usage).unwrap();
    machine.publish("alone", "first", &usage, false).unwrap();
    let said = machine.publish("alone", "second", &usage, false).unwrap_err();
    assert_eq!(said.code(), Code::FailedPrecondition, "{said}");
    assert!(!machine.path("second").exists());
    let open = File::create(machine.path("first/open")).unwrap();
    let said = machine.unpublish("alone", "first").unwrap_err();
    assert!(said.message().contains("fuser -vm"), "{said}");
    drop(open);
    machine.unpublish("alone", "first").unwrap();
    machine.unstage("alone").unwrap();
}

#[test]
fn a_file_system_that_is_gone_is_not_made_again() {
    // Whatever hides a file system, as an image of zeros in its place, a new one would destroy what a repair
    // could have brought back.
    let Some(machine) = Machine::for_kubernetes("csi-once") else {
        return;
    };
    let usage = mounted(Mode::SingleNodeWriter);
    machine.create("once", |_| ()).unwrap();
    machine.stage("once", &usage).unwrap();
    machine.unstage("once").unwrap();
    let attached = machine.netram(&["volume", "attach", "once"]);
    assert_eq!(attached.code, 0, "{}", attached.err);
    let mut device = File::options()
        .write(true)
        .open(machine.path("run/dev/once"))
        .unwrap();
    device.write_all(&vec![0; 1 << 20]).unwrap();
    device.sync_all().unwrap();
    drop(device);
    let said = machine.stage("once", &usage).unwrap_err();
    assert_eq!(said.code(), Code::FailedPrecondition, "{said}");
    assert!(said.message().contains("No other is made"), "{said}");
    machine.unstage("once").unwrap();
    machine.delete("once").unwrap();
}

#[test]
fn a_second_driver_of_the_same_volumes_is_refused() {
    let Some(machine) = Machine::for_kubernetes("csi-second") else {
        return;
    };
    let other = machine.path("other").display().to_string();
    let ran = machine.second(&other);
    assert_ne!(ran.code, 0);
    assert!(ran.err.contains("another netram-csi drives"), "{}", ran.err);
}
