//! A home from creation to reopening, on real files and with a real lender.

use std::fs;
use std::path::Path;
use std::time::Duration;

use netram_lender::{Config, Lender};
use netram_proto::port::Durability;
use netram_rvm::{Allocation, Mode};
use netram_store::{Home, HomeError, Layout, Memory, Settings};
use netram_transport::Security;

const LOG_BYTES: u64 = 1 << 20;

fn commit(memory: &Memory, segment: &Path, value: u64) {
    let region = memory.map(segment.to_str().unwrap(), 0, 0).unwrap();
    let mut transaction = memory.begin(Mode::Restore);
    transaction.set(&region, 8, &value).unwrap();
    transaction.commit(Durability::Remote).unwrap();
}

fn found(memory: &Memory, segment: &Path) -> u64 {
    let region = memory.map(segment.to_str().unwrap(), 0, 0).unwrap();
    region.get(8).unwrap()
}

#[test]
fn what_was_committed_is_there_again_in_either_layout() {
    for layout in [Layout::Directory, Layout::Beside] {
        let folder = tempfile::tempdir().unwrap();
        let (path, segment) = (folder.path().join("bank.log"), folder.path().join("bank.data"));
        let home = Home::create(&path, layout, LOG_BYTES).unwrap();
        assert!(home.exists());
        let opened = home.open(&Settings::default()).unwrap();
        opened
            .memory
            .create_segment(segment.to_str().unwrap(), 8192, Allocation::Sparse)
            .unwrap();
        commit(&opened.memory, &segment, 7);
        drop(opened);

        let opened = Home::at(&path).open(&Settings::default()).unwrap();
        assert_eq!(found(&opened.memory, &segment), 7, "{layout:?}");
    }
}

#[test]
fn a_second_opening_is_refused_and_names_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let home = Home::create(&folder.path().join("bank.log"), Layout::Beside, LOG_BYTES).unwrap();
    let _opened = home.open(&Settings::default()).unwrap();
    let refused = home.open(&Settings::default()).unwrap_err().to_string();
    assert!(
        refused.contains(&format!("process {}", std::process::id())),
        "{refused}"
    );
}

#[test]
fn a_lost_segment_table_is_refused_while_the_log_needs_it() {
    let folder = tempfile::tempdir().unwrap();
    let (path, segment) = (folder.path().join("bank.log"), folder.path().join("bank.data"));
    let home = Home::create(&path, Layout::Beside, LOG_BYTES).unwrap();
    fs::remove_file(home.segments()).unwrap();
    let opened = home.open(&Settings::default()).unwrap();
    opened
        .memory
        .create_segment(segment.to_str().unwrap(), 8192, Allocation::Sparse)
        .unwrap();
    commit(&opened.memory, &segment, 7);
    drop(opened);
    fs::remove_file(home.segments()).unwrap();
    let refused = home.open(&Settings::default()).unwrap_err();
    assert!(matches!(refused, HomeError::TableMissing { .. }), "{refused}");
}

#[test]
fn a_new_log_knows_nothing_of_the_deleted_one() {
    let folder = tempfile::tempdir().unwrap();
    let (path, segment) = (folder.path().join("bank.log"), folder.path().join("bank.data"));
    let home = Home::create(&path, Layout::Beside, LOG_BYTES).unwrap();
    let opened = home.open(&Settings::default()).unwrap();
    opened
        .memory
        .create_segment(segment.to_str().unwrap(), 8192, Allocation::Sparse)
        .unwrap();
    commit(&opened.memory, &segment, 7);
    drop(opened);
    fs::remove_file(&path).unwrap();

    let home = Home::create(&path, Layout::Beside, LOG_BYTES).unwrap();
    let opened = home.open(&Settings::default()).unwrap();
    // Its last transactions went with it, as with every log.
    assert_eq!(found(&opened.memory, &segment), 0);
}

#[test]
fn the_settings_beside_the_log_find_the_lender() {
    let folder = tempfile::tempdir().unwrap();
    let (path, segment) = (folder.path().join("bank.log"), folder.path().join("bank.data"));
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let socket = format!("unix:{}", folder.path().join("lend.sock").display());
    let _lender = Lender::start(Config {
        listen: vec![socket.parse().unwrap()],
        security: Security::Insecure,
        memory: 64 << 20,
        store: Some(memory.path().join("lent")),
        ..Config::default()
    })
    .unwrap();
    let home = Home::create(&path, Layout::Beside, LOG_BYTES).unwrap();
    fs::write(
        home.settings_file(),
        format!("lenders = [\"{socket}\"]\ninsecure = true\none-domain = true\n"),
    )
    .unwrap();
    let opened = home.open(&home.settings().unwrap()).unwrap();
    opened
        .memory
        .log()
        .wait_for_members(Duration::from_secs(20))
        .unwrap();
    opened
        .memory
        .create_segment(segment.to_str().unwrap(), 8192, Allocation::Sparse)
        .unwrap();
    commit(&opened.memory, &segment, 7);
    assert_eq!(opened.memory.log().status().writer.blocked, None);
}
