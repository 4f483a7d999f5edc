use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, RawDir};

use crate::program;
use crate::server::SurvivingMount;

/// Each server is killed as it replies for the second time. So it first answers a request that the one before
/// it executed and did not answer, and then executes one that it does not answer.
#[test]
fn a_program_sees_what_it_would_if_no_server_had_been_killed() {
    let unkilled = tempfile::tempdir_in("/var/tmp").unwrap();
    let expected = program::run(unkilled.path());
    let Some(mut mount) = SurvivingMount::begin(Some(2)) else {
        return;
    };
    let (seen, servers) = mount.supervise(Duration::ZERO, program::run, |_| ());
    assert!(servers > 50, "{servers} servers were killed");
    assert_eq!(expected.differences(&seen), [], "after {servers} servers");
    let dir = mount.end();
    assert_eq!(
        list(&dir),
        list(unkilled.path()),
        "the directory has its files back"
    );
}

fn list(dir: &std::path::Path) -> BTreeSet<OsString> {
    fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect()
}

#[test]
fn a_listing_goes_on_after_a_kill_and_an_open_file_stays_open() {
    let Some(mut mount) = SurvivingMount::begin(None) else {
        return;
    };
    let dir = mount.dir();
    let name =
        |number: u32| format!("a file with a name that is long enough for a listing in parts {number}");
    for number in 0..200 {
        fs::write(dir.join(name(number)), [7; 100]).unwrap();
    }
    let open = fs::File::options()
        .read(true)
        .write(true)
        .open(dir.join(name(0)))
        .unwrap();
    let listed = rustix::fs::open(
        &dir,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .unwrap();
    let mut space = Vec::with_capacity(1 << 10);
    let (mut found, mut kills) = (Vec::new(), 0);
    let mut entries = RawDir::new(&listed, space.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        found.push(entry.unwrap().file_name().to_bytes().to_vec());
        if entries.is_buffer_empty() && kills < 5 {
            mount.kill();
            kills += 1;
            // Names that come and go do not move the others.
            fs::remove_file(dir.join(name(190 + kills))).unwrap();
            fs::write(dir.join(format!("another {kills}")), []).unwrap();
        }
    }
    assert_eq!(kills, 5);
    let distinct: BTreeSet<&Vec<u8>> = found.iter().collect();
    assert_eq!(distinct.len(), found.len(), "no name twice");
    for number in 0..190 {
        assert!(
            found.iter().any(|found| found == name(number).as_bytes()),
            "{number}"
        );
    }
    open.write_all_at(&[8; 50], 50).unwrap();
    let mut bytes = [0; 100];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!((bytes[49], bytes[50]), (7, 8));
    drop((open, listed));
    let dir = mount.end();
    assert_eq!(fs::read(dir.join(name(0))).unwrap(), bytes);
    assert!(
        list(&dir)
            .iter()
            .all(|name| !name.as_bytes().starts_with(b".netram"))
    );
}
