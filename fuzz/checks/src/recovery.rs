//! A client's recovery, with one member that may answer arbitrarily.

use std::cell::RefCell;

use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn, WriterId};
use netram_proto::journal::{
    AssembleOptions, CommitRule, JoinId, LogFile, PeerAnswer, Recovery, View, ViewMember, assemble,
};
use netram_proto::limit::{FRAME_BODY_BYTES_MAX, LOG_BYTES_MIN, WINDOW_BYTES_MIN};
use netram_proto::planted::FaultSwitch;
use netram_proto::port::{IoError, StorageFile};
use netram_proto::time::{Nanos, Time};
use netram_proto::wire::{ChainPoint, Flag, Frame, FrameHeader, FrameKind};

use crate::frames::record;
use crate::input::FuzzInput;

const JOURNAL: JournalId = JournalId(0xF00D);
const EPOCH: Epoch = Epoch(2);
const JOIN: JoinId = JoinId {
    epoch: Epoch(1),
    generation: 1,
};

/// A file in memory.
#[derive(Debug, Default)]
pub struct MemoryFile(pub RefCell<Vec<u8>>);

impl StorageFile for MemoryFile {
    fn size(&self) -> Result<u64, IoError> {
        Ok(self.0.borrow().len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), IoError> {
        let bytes = self.0.borrow();
        let from = usize::try_from(offset)
            .ok()
            .and_then(|offset| bytes.get(offset..));
        let from = from.and_then(|from| from.get(..into.len())).ok_or(IoError::EOF)?;
        into.copy_from_slice(from);
        Ok(())
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), IoError> {
        self.0.borrow_mut()[offset as usize..][..from.len()].copy_from_slice(from);
        Ok(())
    }

    fn sync(&self) -> Result<(), IoError> {
        Ok(())
    }
}

struct RecoveryBench {
    recovery: Recovery,
    log: LogFile<MemoryFile>,
    /// Records that members hold beyond the local end.
    held: Vec<u8>,
    from: Lsn,
    first_honest: usize,
    now: Time,
    connected: [bool; 3],
}

/// Member 0 may lie; the others answer correctly when the input lets them.
pub fn recovery(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let mut bench = RecoveryBench::new(&mut input);
    for _ in 0..96 {
        if input.is_over() {
            break;
        }
        bench.step(&mut input);
        let most = 3 * WINDOW_BYTES_MIN;
        assert!(
            bench.recovery.bytes_read() <= most,
            "memory is bounded by what was lent"
        );
    }
    bench.end();
}

fn view(rule: CommitRule) -> View {
    let member = |number: u64| ViewMember {
        incarnation: Incarnation(10 + number),
        join: Some(JOIN),
        address: format!("unix:/lender-{number}"),
        domain: String::new(),
    };
    View {
        version: 3,
        epoch: Epoch(1),
        writer: WriterId(7),
        rule,
        counting: true,
        window_bytes: WINDOW_BYTES_MIN,
        members: (0..3).map(member).collect(),
        ..View::first(JOURNAL)
    }
}

impl RecoveryBench {
    fn new(input: &mut FuzzInput<'_>) -> RecoveryBench {
        let choice = input.u8();
        let file = MemoryFile::default();
        file.0
            .borrow_mut()
            .resize(LogFile::<MemoryFile>::file_bytes(LOG_BYTES_MIN) as usize, 0);
        let (log, _) = LogFile::create(file, JOURNAL, LOG_BYTES_MIN).expect("a log");
        let (mut link, mut held) = (ChainPoint::default(), Vec::new());
        let local = usize::from(choice & 3);
        let mut from = Lsn(0);
        for index in 0..local + usize::from(choice >> 2 & 3) {
            let bytes = record(JOURNAL, link, 1, Lsn(0), &[index as u8; 90]);
            if index < local {
                log.write(link.lsn, &bytes).expect("room");
                from = link.lsn.plus(bytes.len() as u64);
            } else {
                held.extend_from_slice(&bytes);
            }
            link.lsn = link.lsn.plus(bytes.len() as u64);
            link.chain = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        }
        let rule = match choice >> 4 & 3 {
            0 => CommitRule::Any,
            1 => CommitRule::AtLeast(2),
            _ => CommitRule::All,
        };
        let (grace, patience) = (Nanos::from_ms(500), Nanos::from_ms(2000));
        let recovery = Recovery::new(&view(rule), EPOCH, WriterId(9), from, Time(0), grace, patience);
        let recovery = recovery.with_addresses(["unix:/spare"]);
        RecoveryBench {
            recovery: if choice & 64 != 0 {
                recovery.probing()
            } else {
                recovery
            },
            log,
            held,
            from,
            first_honest: usize::from(choice >> 7),
            now: Time(0),
            connected: [false; 3],
        }
    }

    fn step(&mut self, input: &mut FuzzInput<'_>) {
        let which = input.u8();
        let index = usize::from(which & 3);
        match which >> 2 & 7 {
            0 => self.recovery.on_connected(index),
            1 => self.recovery.on_lost(index),
            2 => self.now = self.now + Nanos::from_ms(u64::from(input.u8())),
            // A frame of any kind, from the liar or a stranger.
            3 | 4 if index == 0 || index == 3 => self.lie(index, input),
            _ => self.answer(index, (index == 0 && self.first_honest == 0).then_some(input)),
        }
    }

    /// Takes the next request to the address and lets a member answer; the liar's answer is changed.
    fn answer(&mut self, index: usize, liar: Option<&mut FuzzInput<'_>>) {
        if let Some(connected) = self.connected.get_mut(index).filter(|connected| !**connected) {
            *connected = true;
            self.recovery.on_connected(index);
        }
        let Some(asked) = self.recovery.next_frame(index) else {
            return;
        };
        let life = if index < 3 { 10 + index as u64 } else { 99 };
        let end = self.from.plus(self.held.len() as u64);
        let mut header = FrameHeader {
            epoch: EPOCH,
            sender: life,
            mark: JOIN.generation,
            lsn: end,
            ..FrameHeader::new(FrameKind::Bound)
        };
        let mut body = Vec::new();
        match asked.header.kind {
            FrameKind::Bind => (),
            FrameKind::Fence => {
                (header.kind, header.flags) = (FrameKind::Fenced, Flag::KNOWN);
                body.extend_from_slice(&JOIN.epoch.0.to_le_bytes());
            }
            FrameKind::Read => {
                header.kind = FrameKind::Data;
                header.lsn = asked.header.lsn;
                let at = asked.header.lsn.since(self.from) as usize;
                body.extend_from_slice(self.held.get(at..).unwrap_or_default());
            }
            _ if asked.header.flags & Flag::PROBE != 0 => {
                (header.kind, header.flags, header.epoch) = (FrameKind::ProbeReply, Flag::KNOWN, JOIN.epoch);
                body.extend_from_slice(&7_u64.to_le_bytes());
                body.extend_from_slice(&JOIN.epoch.0.to_le_bytes());
            }
            _ => header.kind = FrameKind::Pong,
        }
        if let Some(input) = liar {
            match input.u8() % 16 {
                0 => header.lsn = Lsn(input.near(end.0)),
                1 => header.stable = Lsn(input.near(self.from.0)),
                2 => header.mark = input.small(),
                3 => header.flags = input.u8(),
                4 => header.sender = 10 + u64::from(input.small()),
                5 => header.epoch = Epoch(input.small()),
                6 => body.truncate(usize::from(input.u8())),
                7 => body.resize(FRAME_BODY_BYTES_MAX, 7),
                8 => {
                    let at = usize::from(input.u8());
                    if let Some(byte) = body.get_mut(at) {
                        *byte ^= 1 << (at & 7);
                    }
                }
                _ => (),
            }
        }
        let frame = Frame { header, body: &body };
        self.recovery.on_frame(index, &frame);
    }

    fn lie(&mut self, index: usize, input: &mut FuzzInput<'_>) {
        let kinds = [
            FrameKind::Bound,
            FrameKind::Fenced,
            FrameKind::Data,
            FrameKind::Pong,
            FrameKind::ProbeReply,
            FrameKind::Refuse,
            FrameKind::Ack,
            FrameKind::Withdraw,
        ];
        let kind = kinds[usize::from(input.u8() & 7)];
        let header = input.header(kind, self.from.0);
        let body = input.bytes();
        self.recovery.next_frame(index);
        self.recovery.on_frame(index, &Frame { header, body });
    }

    /// After the time limit: recovery refuses, or the log is whole.
    fn end(mut self) {
        let end = self.from.plus(self.held.len() as u64);
        self.now = self.now + Nanos::from_ms(10_000);
        let verdict = self.recovery.verdict(self.now).expect("all patience ends");
        let complete: Vec<bool> = self
            .recovery
            .answers()
            .map(|(_, answer)| answer == PeerAnswer::Complete)
            .collect();
        let answered = complete.iter().filter(|complete| **complete).count();
        if verdict.is_err() {
            return;
        }
        assert!(
            answered >= self.recovery.needed(),
            "no verdict without those who are needed"
        );
        if self.recovery.highest_epoch() > Epoch(0) {
            // It only asked: there are no bytes.
            return;
        }
        let local = self
            .log
            .scan(ChainPoint::default(), Lsn(LOG_BYTES_MIN), &mut |_| true);
        assert_eq!(local.end.lsn, self.from);
        let known = AssembleOptions {
            proof: Lsn(0),
            limit: Lsn(LOG_BYTES_MIN),
            accept_loss: false,
            local_durable: None,
        };
        let windows = self.recovery.windows();
        let Ok(taken) = assemble(&self.log, &local, &windows, known, FaultSwitch::NONE, &mut |_| {
            true
        }) else {
            return;
        };
        let again = self
            .log
            .scan(ChainPoint::default(), Lsn(LOG_BYTES_MIN), &mut |_| true);
        assert_eq!(again.end, taken.end, "what was taken is on the disk");
        assert!(taken.end.lsn >= self.from, "nothing local is lost");
        // An honest member has answered in full, so its records must be there, whatever the liar answered.
        if complete[1] || complete[2] {
            assert!(
                taken.end.lsn >= end,
                "an honest member's records end at {end:?}: {taken:?}"
            );
        }
    }
}

pub(crate) fn recovery_seeds() -> Vec<Vec<u8>> {
    // The address, and 5 in the bits above it: the member is asked and answers.
    let (liar, second, third) = (20, 21, 22);
    vec![
        vec![
            0x26, second, second, second, third, third, third, liar, 15, liar, 15, liar, 15,
        ],
        vec![
            0x06, liar, 15, liar, 0, 130, liar, 15, second, second, second, 8, 200,
        ],
        vec![0x5A, liar, 15, liar, 15, second, second, third, third],
        vec![
            0x2E, liar, 15, liar, 15, liar, 7, liar, 8, 40, second, second, second, 12, 1, 2, 100, 2, 1,
        ],
        vec![
            0x1F, 12, 5, 1, 100, 3, 0, 100, 1, 0, second, second, second, third, third, third,
        ],
    ]
}
