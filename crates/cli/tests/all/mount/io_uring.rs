//! A mount whose requests come by io_uring.

use std::fs;

use crate::mount::kills::{last_said, last_written, writer};
use crate::mount::{MountFixture, cannot_mount, wait_until};

const ENABLED: &str = "/sys/module/fuse/parameters/enable_uring";
const WORDS: [&str; 4] = ["--io-uring", "--threads", "2", "--passthrough"];

fn cannot_use() -> bool {
    if cannot_mount() {
        return true;
    }
    let enabled = fs::read_to_string(ENABLED).is_ok_and(|said| said.trim() == "Y");
    if !enabled {
        crate::common::skipped(format_args!("{ENABLED} is not Y (Linux 6.14 has it)"));
    }
    !enabled
}

/// The kernel does not send requests of its queues again, so the mount ends with its server; what was synced
/// is there after a recovery, as without io_uring.
#[test]
fn what_was_synced_by_io_uring_survives_its_server() {
    if cannot_use() {
        return;
    }
    let mut mounted = MountFixture::wrapped("ring", &[], None, &WORDS);
    let printed = mounted.directory.path().join("printed");
    fs::write(&printed, "0\n").unwrap();
    for round in 1..=3 {
        let from = last_said(&printed);
        let mut writes = writer(&mounted.dir(), from, &printed);
        wait_until("200 more syncs", || last_said(&printed) > from + 200);
        mounted.kill();
        // The kernel ends the requests of the writer.
        assert!(!writes.wait().unwrap().success(), "round {round}");
        let ran = mounted.recover();
        assert_eq!(ran.code, 0, "{}", ran.err);
        let (said, written) = (last_said(&printed), last_written(&mounted.dir()));
        assert!(written >= said && written <= said + 1, "{said}, {written}");
        fs::write(&printed, format!("{written}\n")).unwrap();
        mounted.mount_with(&WORDS.map(str::to_owned));
    }
    assert_eq!(last_written(&mounted.dir()), last_said(&printed));
    let ran = mounted.unmount();
    assert_eq!(ran.code, 0, "{}", ran.err);
}

/// Data of the largest request, both ways, and names of several threads at a time.
#[test]
fn large_and_many_requests_by_io_uring_are_answered() {
    if cannot_use() {
        return;
    }
    let mut mounted = MountFixture::wrapped("rings", &[], None, &WORDS);
    let dir = mounted.dir();
    let bytes: Vec<u8> = (0..3_000_001_u32).map(|at| (at * 7 % 251) as u8).collect();
    fs::write(dir.join("large"), &bytes).unwrap();
    std::thread::scope(|threads| {
        for thread in 0..8 {
            let dir = &dir;
            threads.spawn(move || {
                for number in 0..50 {
                    let path = dir.join(format!("{thread}-{number}"));
                    fs::write(&path, vec![thread; 5000]).unwrap();
                    fs::rename(&path, dir.join(format!("renamed-{thread}-{number}"))).unwrap();
                }
            });
        }
    });
    let ran = mounted.unmount();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(fs::read(dir.join("large")).unwrap() == bytes);
    assert_eq!(fs::read(dir.join("renamed-7-49")).unwrap(), [7_u8; 5000]);
    mounted.mount_with(&WORDS.map(str::to_owned));
    assert!(fs::read(dir.join("large")).unwrap() == bytes);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 401);
    mounted.unmount();
}

#[test]
fn a_replaced_server_and_io_uring_exclude_each_other() {
    let words = [
        "mount",
        "attach",
        "/tmp",
        "--on",
        "/nowhere",
        "--io-uring",
        "--restarts",
        "3",
    ];
    let ran = crate::common::finish(crate::common::netram().args(words));
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("--io-uring"), "{}", ran.err);
}
