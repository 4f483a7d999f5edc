//! A minimal writer, to drive a lender from a test.

pub(crate) mod child;
pub(crate) mod owner;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use netram_lender::{Lender, LenderConfig, StatusReport, operator_path};
use netram_proto::id::{Epoch, JournalId, Lsn, WriterId};
use netram_proto::limit::RECORD_HEADER_BYTES;
use netram_proto::port::RecordKind;
use netram_proto::wire::{self, Frame, FrameHeader, FrameKind, RecordHeader, RefusalReason, finish_record};
use netram_transport::{Link, LinkError, NetAddress, Security, connect};
use tempfile::TempDir;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const WINDOW: u64 = 64 * 1024;
pub(crate) const START: Lsn = Lsn(64);
pub(crate) const JOURNAL_NAME: &str = "db1:/var/lib/journal";

/// A directory in memory, for stores and sockets.
pub(crate) fn memory_dir() -> TempDir {
    tempfile::Builder::new()
        .prefix("netram-test-")
        .tempdir_in("/dev/shm")
        .unwrap()
}

pub(crate) fn config(dir: &TempDir) -> LenderConfig {
    config_in(dir.path())
}

fn config_in(dir: &Path) -> LenderConfig {
    LenderConfig {
        name: "test".to_owned(),
        domain: "mains-a".to_owned(),
        listen: vec![NetAddress::Unix(dir.join("socket"))],
        memory: 1 << 20,
        chunk_bytes: 16 * 1024,
        journals_max: 64,
        store: Some(dir.join("store")),
        ..LenderConfig::default()
    }
}

pub(crate) fn socket(dir: &TempDir) -> PathBuf {
    dir.path().join("socket")
}

pub(crate) fn start(dir: &TempDir) -> Lender {
    Lender::start(config(dir)).unwrap()
}

pub(crate) fn dial(address: &NetAddress) -> Link {
    connect(address, &Security::Insecure, PATIENCE).unwrap()
}

/// A frame as received, owned.
#[derive(Debug)]
pub(crate) struct ReceivedFrame {
    pub(crate) header: FrameHeader,
    pub(crate) body: Vec<u8>,
}

impl ReceivedFrame {
    pub(crate) fn refusal(&self) -> Option<RefusalReason> {
        (self.header.kind == FrameKind::Refuse).then(|| RefusalReason::from_byte(self.header.flags).unwrap())
    }
}

/// The next frame; an error when the lender has ended the session.
pub(crate) fn receive(link: &mut Link) -> Result<ReceivedFrame, LinkError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        link.flush()?;
        if let Some(packet) = link.receive()? {
            let frame = Frame::parse(packet).unwrap();
            return Ok(ReceivedFrame {
                header: frame.header,
                body: frame.body.to_vec(),
            });
        }
        assert!(Instant::now() < deadline, "the lender does not answer");
        std::thread::yield_now();
    }
}

pub(crate) fn send(link: &mut Link, header: FrameHeader, body: &[u8]) {
    loop {
        match link.send(&[&header.encode(body.len()), body]) {
            Ok(_) => return,
            Err(LinkError::Congested) => {
                link.flush().unwrap();
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// A writer of one journal at one lender.
pub(crate) struct TestWriter {
    pub(crate) link: Link,
    pub(crate) journal: JournalId,
    pub(crate) epoch: Epoch,
    pub(crate) writer: WriterId,
    /// Where the next record goes.
    pub(crate) at: wire::ChainPoint,
    pub(crate) stable: Lsn,
    pub(crate) incarnation: u64,
}

impl TestWriter {
    /// A writer that has not bound its journal.
    pub(crate) fn over(link: Link, journal: u128, epoch: u32) -> TestWriter {
        TestWriter {
            link,
            journal: JournalId(journal),
            epoch: Epoch(epoch),
            writer: WriterId(u64::from(epoch) + 1000),
            at: wire::ChainPoint { lsn: START, chain: 9 },
            stable: Lsn(0),
            incarnation: 0,
        }
    }

    /// Asks for the journal.
    pub(crate) fn ask_to_bind(&mut self) -> ReceivedFrame {
        let (header, journal) = (self.header(FrameKind::Bind), self.journal.0);
        self.ask(header, &journal.to_le_bytes())
    }

    /// Connects and binds.
    pub(crate) fn bind(address: &NetAddress, journal: u128, epoch: u32) -> TestWriter {
        let mut writer = TestWriter::over(dial(address), journal, epoch);
        let bound = writer.ask_to_bind();
        assert_eq!(bound.header.kind, FrameKind::Bound, "{bound:?}");
        assert_eq!(bound.body, b"mains-a");
        writer.incarnation = bound.header.sender;
        writer
    }

    /// Binds, fences and joins.
    pub(crate) fn join(address: &NetAddress, journal: u128, epoch: u32) -> TestWriter {
        let mut writer = TestWriter::bind(address, journal, epoch);
        assert_eq!(writer.fence().header.kind, FrameKind::Fenced);
        let joined = writer.join_window(WINDOW, 1);
        assert_eq!(joined.header.kind, FrameKind::Ack, "{joined:?}");
        writer
    }

    pub(crate) fn header(&self, kind: FrameKind) -> FrameHeader {
        FrameHeader {
            epoch: self.epoch,
            sender: self.writer.0,
            ..FrameHeader::new(kind)
        }
    }

    pub(crate) fn ask(&mut self, header: FrameHeader, body: &[u8]) -> ReceivedFrame {
        send(&mut self.link, header, body);
        receive(&mut self.link).unwrap()
    }

    pub(crate) fn fence(&mut self) -> ReceivedFrame {
        self.ask(self.header(FrameKind::Fence), &[])
    }

    pub(crate) fn join_window(&mut self, bytes: u64, generation: u64) -> ReceivedFrame {
        let mut header = self.header(FrameKind::Join);
        header.lsn = self.at.lsn;
        header.mark = self.at.chain;
        header.stable = Lsn(generation);
        self.ask(header, &[&bytes.to_le_bytes(), JOURNAL_NAME.as_bytes()].concat())
    }

    /// Frees the window of the first join.
    pub(crate) fn leave(&mut self) -> ReceivedFrame {
        let mut header = self.header(FrameKind::Leave);
        (header.lsn, header.mark) = (Lsn(self.epoch.0.into()), 1);
        self.ask(header, &[])
    }

    /// The next record of this journal.
    pub(crate) fn record(&mut self, payload: &[u8]) -> Vec<u8> {
        let header = RecordHeader::new(
            self.at,
            self.epoch,
            self.stable,
            RecordKind(16),
            false,
            payload.len(),
        );
        let mut bytes = vec![0; header.length];
        header.write(&mut bytes);
        bytes[RECORD_HEADER_BYTES..][..payload.len()].copy_from_slice(payload);
        let chain = finish_record(&mut bytes, self.journal.into());
        self.at = wire::ChainPoint {
            lsn: header.next(),
            chain,
        };
        bytes
    }

    /// Sends the next record without waiting for its answer. Returns its bytes.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Vec<u8> {
        let mut header = self.header(FrameKind::Append);
        header.lsn = self.at.lsn;
        header.mark = self.at.chain;
        header.stable = self.stable;
        let record = self.record(payload);
        send(&mut self.link, header, &record);
        record
    }

    /// Waits until everything sent is acknowledged.
    pub(crate) fn acked(&mut self) {
        loop {
            let ack = receive(&mut self.link).unwrap();
            assert_eq!(ack.header.kind, FrameKind::Ack, "{ack:?}");
            if ack.header.lsn == self.at.lsn {
                return;
            }
        }
    }

    /// Reads `length` bytes of the window, in as many frames as it takes.
    pub(crate) fn read(&mut self, from: Lsn, length: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let mut header = self.header(FrameKind::Read);
            header.lsn = from.plus(bytes.len() as u64);
            let data = self.ask(header, &((length - bytes.len()) as u32).to_le_bytes());
            assert_eq!(data.header.kind, FrameKind::Data, "{data:?}");
            assert!(!data.body.is_empty());
            bytes.extend(data.body);
        }
        bytes
    }
}

pub(crate) fn status(address: &NetAddress) -> StatusReport {
    status_over(&mut dial(address))
}

/// What the lender with its memory in `dir` tells its operator.
pub(crate) fn operators_status(dir: &TempDir) -> StatusReport {
    status(&NetAddress::Unix(operator_path(&dir.path().join("store"))))
}

pub(crate) fn status_over(link: &mut Link) -> StatusReport {
    send(link, FrameHeader::new(FrameKind::Status), &[]);
    let answer = receive(link).unwrap();
    assert_eq!(answer.header.kind, FrameKind::Report);
    StatusReport::from_frame_body(&answer.body).unwrap()
}

/// Waits until `holds` returns true, which other threads bring about.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::yield_now();
    }
}
