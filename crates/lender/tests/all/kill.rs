//! A lender's process killed at any moment loses nothing that it has acknowledged.
//!
//! The lender runs in a process of its own: this test binary, started again with the name of one test.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{START, WINDOW, Writer, config, memory_dir, receive, socket};
use netram_lender::{Config, Lender};
use netram_proto::id::Lsn;
use netram_proto::wire::{Flag, FrameKind};
use netram_transport::{Address, Security, connect};
use tempfile::TempDir;

const STORE: &str = "NETRAM_TEST_KILL_DIR";

/// Not a test of its own: what the killed process runs.
#[test]
fn lender_process() {
    let Ok(path) = std::env::var(STORE) else { return };
    let path = std::path::PathBuf::from(path);
    let lender = Lender::start(Config {
        name: "test".to_owned(),
        domain: "mains-a".to_owned(),
        listen: vec![Address::Unix(path.join("socket"))],
        memory: 1 << 20,
        chunk_bytes: 16 * 1024,
        journals_max: 64,
        store: Some(path.join("store")),
        ..Config::default()
    })
    .unwrap();
    lender.wait();
}

/// A lender's process, killed with the test.
struct Process(Child);

impl Process {
    fn start(dir: &TempDir) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::lender_process", "--nocapture"])
            .env(STORE, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let address = Address::Unix(socket(dir));
        crate::common::until("the lender listens", || {
            connect(&address, &Security::Insecure, Duration::from_secs(1)).is_ok()
        });
        Process(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes until killed; returns the log, what was acknowledged of it, and what the writer declared stable last.
fn write_until_killed(mut writer: Writer, mut process: Option<Process>, appends: u32) -> (Vec<u8>, Lsn, Lsn) {
    let (mut log, mut acked) = (Vec::new(), START);
    let mut declared = START;
    for index in 0..u32::MAX {
        // Below the acknowledged bytes, at a record's start, and sooner or later nearly all of the window back.
        let behind = acked.0.saturating_sub(START.0 + WINDOW * 3 / 4) / 440 * 440;
        writer.stable = Lsn(START.0 + behind);
        let mut header = writer.header(FrameKind::Append);
        (header.lsn, header.stable, header.mark) = (writer.at.lsn, writer.stable, writer.at.chain);
        let record = writer.record(&[index as u8; 400]);
        log.extend_from_slice(&record);
        if writer
            .link
            .send(&[&header.encode(record.len()), &record])
            .is_err()
        {
            break;
        }
        declared = writer.stable;
        // A few appends are under way at any time, so that the kill hits one somewhere.
        if writer.at.lsn.since(acked) > 8 * 440 || index > appends {
            match receive(&mut writer.link) {
                Ok(ack) => {
                    assert_eq!(ack.header.kind, FrameKind::Ack, "{ack:?}");
                    acked = ack.header.lsn;
                }
                Err(_) => break,
            }
        }
        if index == appends {
            let process = process.take();
            // From another thread: the kill falls where it likes while appends go on.
            std::thread::spawn(move || process.map(Process::kill));
        }
    }
    while let Ok(ack) = receive(&mut writer.link) {
        acked = ack.header.lsn;
    }
    (log, acked, declared)
}

#[test]
fn every_acknowledged_byte_survives_a_kill() {
    let dir = memory_dir();
    let address = Address::Unix(socket(&dir));
    let mut incarnation = None;
    for round in 0..12_u32 {
        let process = Process::start(&dir);
        let writer = Writer::join(&address, 7, 2 * round + 1);
        assert!(incarnation.is_none_or(|before| before == writer.incarnation));
        incarnation = Some(writer.incarnation);
        let (log, acked, declared) = write_until_killed(writer, Some(process), 100 + round * 37);

        let process = Process::start(&dir);
        let mut reader = Writer::bind(&address, 7, 2 * round + 2);
        assert_eq!(Some(reader.incarnation), incarnation);
        let sealed = reader.seal();
        assert_eq!(
            sealed.header.flags,
            Flag::KNOWN,
            "the window is known after the kill"
        );
        let (trim, held) = (sealed.header.stable, sealed.header.lsn);
        assert!(held >= acked, "acknowledged to {acked}, held to {held}");
        assert!(trim <= declared, "given up to {trim}, stable to {declared}");
        let (from, end) = ((trim.0 - START.0) as usize, (held.0 - START.0) as usize);
        assert_eq!(reader.read(trim, end - from), log[from..end]);
        drop(process);
    }
}

#[test]
fn a_new_lender_beside_a_running_one_is_refused_its_store() {
    let dir = memory_dir();
    let process = Process::start(&dir);
    let other = Config {
        listen: vec![Address::Unix(dir.path().join("other"))],
        ..config(&dir)
    };
    let refused = Lender::start(other).err().map(|error| error.to_string());
    assert!(refused.is_some_and(|text| text.contains("another lender")));
    drop(process);
}
