//! A lender killed at any moment loses nothing that it has acknowledged.
//!
//! The lender runs in a process of its own: this test binary, started again with the name of one test.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{START, TestWriter, WINDOW, config, memory_dir, receive, socket};
use netram_lender::{Lender, LenderConfig};
use netram_proto::id::Lsn;
use netram_proto::wire::{Flag, FrameKind};
use netram_transport::{NetAddress, Security, connect};
use tempfile::TempDir;

const STORE: &str = "NETRAM_TEST_KILL_DIR";

/// Runs in the process that is killed; not a test by itself.
#[test]
fn lender_process() {
    let Ok(path) = std::env::var(STORE) else { return };
    let path = std::path::PathBuf::from(path);
    let lender = Lender::start(LenderConfig {
        name: "test".to_owned(),
        domain: "mains-a".to_owned(),
        listen: vec![NetAddress::Unix(path.join("socket"))],
        memory: 1 << 20,
        chunk_bytes: 16 * 1024,
        journals_max: 64,
        store: Some(path.join("store")),
        ..LenderConfig::default()
    })
    .unwrap();
    lender.wait();
}

/// A lender's process, killed on drop.
struct LenderChild(Child);

impl LenderChild {
    fn start(dir: &TempDir) -> LenderChild {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kill::lender_process", "--nocapture"])
            .env(STORE, dir.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let address = NetAddress::Unix(socket(dir));
        crate::common::until("the lender listens", || {
            connect(&address, &Security::Insecure, Duration::from_secs(1)).is_ok()
        });
        LenderChild(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for LenderChild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes until the lender is killed. Returns the log, the acknowledged end, and the LSN that the writer last
/// declared stable.
fn write_until_killed(
    mut writer: TestWriter,
    mut process: Option<LenderChild>,
    appends: u32,
) -> (Vec<u8>, Lsn, Lsn) {
    let (mut log, mut acked) = (Vec::new(), START);
    let mut declared = START;
    for index in 0..u32::MAX {
        // Below the acknowledged bytes, at the start of a record, and eventually almost a whole window back.
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
        // A few appends are always in flight, so that the kill hits one at some point.
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
            // Kills from another thread, so that the kill happens at any point while appends go on.
            std::thread::spawn(move || process.map(LenderChild::kill));
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
    let address = NetAddress::Unix(socket(&dir));
    let mut incarnation = None;
    for round in 0..12_u32 {
        let process = LenderChild::start(&dir);
        let writer = TestWriter::join(&address, 7, 2 * round + 1);
        assert!(incarnation.is_none_or(|before| before == writer.incarnation));
        incarnation = Some(writer.incarnation);
        let (log, acked, declared) = write_until_killed(writer, Some(process), 100 + round * 37);

        let process = LenderChild::start(&dir);
        let mut reader = TestWriter::bind(&address, 7, 2 * round + 2);
        assert_eq!(Some(reader.incarnation), incarnation);
        let sealed = reader.fence();
        assert_eq!(
            sealed.header.flags,
            Flag::KNOWN,
            "the window is known after the kill"
        );
        let (trim, held) = (sealed.header.stable, sealed.header.lsn);
        assert!(held >= acked, "acknowledged up to {acked}, held up to {held}");
        assert!(trim <= declared, "trimmed up to {trim}, stable up to {declared}");
        let (from, end) = ((trim.0 - START.0) as usize, (held.0 - START.0) as usize);
        assert_eq!(reader.read(trim, end - from), log[from..end]);
        drop(process);
    }
}

#[test]
fn a_new_lender_beside_a_running_one_is_refused_its_store() {
    let dir = memory_dir();
    let process = LenderChild::start(&dir);
    let other = LenderConfig {
        listen: vec![NetAddress::Unix(dir.path().join("other"))],
        ..config(&dir)
    };
    let refused = Lender::start(other).err().map(|error| error.to_string());
    assert!(refused.is_some_and(|text| text.contains("another lender")));
    drop(process);
}
