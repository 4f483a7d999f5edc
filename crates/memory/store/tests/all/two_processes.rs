//! Only one process can open a log. A second one gets an error that names the first, and can open the log
//! after the first has ended in any way.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use netram_store::{JournalLayout, Store, StoreSettings};

const PLACE: &str = "NETRAM_TEST_SECOND_PLACE";

/// Keeps the log open until its standard input ends, which never happens.
#[test]
#[ignore = "helper process of the other test"]
fn holder() {
    let Some(directory) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    let _opened = Store::at(&directory.join("log"))
        .open(&StoreSettings::default())
        .unwrap();
    std::fs::write(directory.join("ready"), b"").unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn a_second_process_is_refused_until_the_first_is_gone() {
    for layout in [JournalLayout::Beside, JournalLayout::Directory] {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::create(&directory.path().join("log"), layout, 1 << 20).unwrap();
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "two_processes::holder", "--ignored", "--nocapture"])
            .env(PLACE, directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        while !directory.path().join("ready").exists() {
            if let Some(status) = holder.try_wait().unwrap() {
                panic!("the holder ended by itself: {status}");
            }
            std::thread::yield_now();
        }
        let refused = store.open(&StoreSettings::default()).unwrap_err().to_string();
        assert!(refused.contains(&format!("process {}", holder.id())), "{refused}");
        holder.kill().unwrap();
        holder.wait().unwrap();
        store.open(&StoreSettings::default()).unwrap();
    }
}
