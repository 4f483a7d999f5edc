//! A lender's member with arbitrary frames from several clients.

use netram_proto::id::{Epoch, Incarnation, JournalId, Lsn};
use netram_proto::limit::{FRAME_BODY_BYTES_MAX, WINDOW_BYTES_MIN};
use netram_proto::member::{Member, MemberReply, MemberState, ReserveError, Window, copy_out};
use netram_proto::planted::FaultSwitch;
use netram_proto::wire::{ChainPoint, Frame, FrameHeader, FrameKind, RefusalReason, ScanStep, scan_step};

use crate::frames::record;
use crate::input::FuzzInput;

const JOURNAL: JournalId = JournalId(0xF00D);
/// Memory in bytes that the lender has for one journal.
const QUOTA: u64 = 2 * WINDOW_BYTES_MIN;

#[derive(Default)]
struct WindowBuffer(Vec<u8>);

impl Window for WindowBuffer {
    fn reserve(&mut self, bytes: u64) -> Result<(), ReserveError> {
        if bytes > QUOTA {
            return Err(ReserveError {
                refusal: RefusalReason::OverQuota,
                asked: bytes,
                limit: QUOTA,
            });
        }
        self.0 = vec![0; bytes as usize];
        Ok(())
    }

    fn release(&mut self) {
        self.0 = Vec::new();
    }

    fn capacity(&self) -> u64 {
        self.0.len() as u64
    }

    fn write(&mut self, at: Lsn, bytes: &[u8]) {
        assert!(bytes.len() <= self.0.len(), "what is written fits the window");
        let start = at.0 as usize % self.0.len();
        let first = bytes.len().min(self.0.len() - start);
        self.0[start..][..first].copy_from_slice(&bytes[..first]);
        self.0[..bytes.len() - first].copy_from_slice(&bytes[first..]);
    }

    fn piece(&self, at: Lsn, max: usize) -> &[u8] {
        let start = at.0 as usize % self.0.len();
        &self.0[start..][..max.min(self.0.len() - start)]
    }
}

struct MemberBench {
    member: Member,
    window: WindowBuffer,
    /// The rest of a record that was sent in part.
    pending: Vec<u8>,
    /// LSNs at which records of the window begin or end.
    places: Vec<Lsn>,
}

/// Frames in any order, by any writer and with any epoch. Some carry records that continue the log, because
/// the member takes no others. Now and then the lender's process is killed.
pub fn member(bytes: &[u8]) {
    let mut input = FuzzInput::new(bytes);
    let mut bench = MemberBench {
        member: Member::new(JOURNAL, Incarnation(42)),
        window: WindowBuffer::default(),
        pending: Vec::new(),
        places: Vec::new(),
    };
    for _ in 0..64 {
        if input.is_over() {
            break;
        }
        bench.step(&mut input);
    }
    bench.restart();
}

impl MemberBench {
    fn step(&mut self, input: &mut FuzzInput<'_>) {
        let state = *self.member.state();
        let base = state.received.0;
        let which = input.u8();
        let mut body = Vec::new();
        let mut header = FrameHeader::new(FrameKind::Append);
        (header.epoch, header.sender, header.lsn) = (state.epoch, state.writer.0, state.received);
        match which % 12 {
            0 => {
                header.kind = FrameKind::Fence;
                header.epoch = Epoch(state.epoch.0.saturating_add(1));
            }
            1 => {
                header.kind = FrameKind::Join;
                (header.lsn, header.mark) = (Lsn(u64::from(input.u8()) * 8), input.small());
                header.stable = Lsn(u64::from(state.generation.saturating_add(1)));
                body.extend_from_slice(&(WINDOW_BYTES_MIN * u64::from(input.u8() % 3)).to_le_bytes());
            }
            2 | 3 => body = self.records(input, &state),
            4 => body = std::mem::take(&mut self.pending),
            5 => {
                header.stable = Lsn(input.near(state.held.0));
                header.kind = FrameKind::Ping;
                header.flags = input.u8();
            }
            6 => {
                header.kind = FrameKind::Read;
                header.lsn = Lsn(input.near(state.trim.0));
                body.extend_from_slice(&input.u32().to_le_bytes());
            }
            7 => {
                header.kind = FrameKind::Leave;
                (header.lsn, header.mark) = (Lsn(state.window_epoch.0.into()), state.generation);
                header.flags = input.u8();
            }
            8 => return self.restart(),
            _ => {
                let kinds = [
                    FrameKind::Append,
                    FrameKind::Fence,
                    FrameKind::Join,
                    FrameKind::Ping,
                    FrameKind::Read,
                    FrameKind::Leave,
                    FrameKind::Status,
                    FrameKind::Ack,
                ];
                header = input.header(kinds[usize::from(which >> 5)], base);
                body = input.bytes().to_vec();
            }
        }
        self.send_frame(&header, &body);
    }

    /// Records that continue the log; the last may be cut, or have a changed byte.
    fn records(&mut self, input: &mut FuzzInput<'_>, state: &MemberState) -> Vec<u8> {
        let mut link = ChainPoint {
            lsn: state.held,
            chain: state.chain,
        };
        let mut body = Vec::new();
        if state.received != state.held || state.held > Lsn(1 << 61) {
            return std::mem::take(&mut self.pending);
        }
        let count = input.u8();
        for index in 0..=count % 3 {
            let payload = vec![index; usize::from(input.u8()) * if count & 128 != 0 { 60 } else { 1 }];
            let bytes = record(JOURNAL, link, state.epoch.0, Lsn(0), &payload);
            link.lsn = link.lsn.plus(bytes.len() as u64);
            link.chain = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            body.extend_from_slice(&bytes);
        }
        body.truncate(FRAME_BODY_BYTES_MAX);
        if count & 64 != 0 {
            self.pending = body.split_off(usize::from(input.u16()) % body.len());
        }
        if count & 32 != 0 && !body.is_empty() {
            let at = usize::from(input.u16()) % body.len();
            body[at] ^= 1 << (count & 7);
        }
        body
    }

    fn send_frame(&mut self, header: &FrameHeader, body: &[u8]) {
        let before = *self.member.state();
        let frame = Frame {
            header: *header,
            body,
        };
        let reply = self.member.handle(&frame, &mut self.window);
        let state = *self.member.state();
        assert!(state.epoch >= before.epoch, "a fence is never lowered");
        let changes_nothing = header.kind != FrameKind::Fence
            && (header.epoch, header.sender) != (before.epoch, before.writer.0);
        if changes_nothing || header.epoch < before.epoch {
            assert_eq!(state, before, "who has not fenced changes nothing");
        }
        self.check(&before, header);
        self.check_reply(&reply);
    }

    fn check(&mut self, before: &MemberState, header: &FrameHeader) {
        let state = *self.member.state();
        assert!(self.window.capacity() <= QUOTA);
        if !state.joined {
            return;
        }
        assert!(state.trim <= state.held && state.held <= state.received);
        assert!(state.received.since(state.trim) <= self.window.capacity());
        let same = before.joined
            && state.window_epoch == before.window_epoch
            && state.generation == before.generation;
        if same && state.held.0 >= before.held.0 && before.trim <= state.trim && state.trim <= before.held {
            self.check_records(before, state.held);
        }
        if !same || state.trim > before.held || state.held < before.held {
            // The window begins anew.
            self.places = vec![state.held, state.trim];
        }
        if same && header.kind != FrameKind::Append {
            assert!(state.held == before.held && state.received == before.received);
        }
    }

    /// Checks that newly acknowledged bytes are whole records that chain.
    fn check_records(&mut self, before: &MemberState, held: Lsn) {
        let mut link = ChainPoint {
            lsn: before.held,
            chain: before.chain,
        };
        let mut bytes = vec![0; held.since(before.held) as usize];
        copy_out(&self.window, before.held, &mut bytes);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let ScanStep::Record(header) = scan_step(rest, link, JOURNAL.into(), FaultSwitch::NONE) else {
                panic!("what is acknowledged at {link:?} is no record");
            };
            rest = &rest[header.length..];
            link = header.next_point();
            self.places.push(link.lsn);
        }
        assert!(held == before.held || link.chain == self.member.state().chain);
    }

    fn check_reply(&self, reply: &MemberReply) {
        let state = self.member.state();
        match reply {
            MemberReply::Data(header, bytes) => {
                assert!(*bytes <= FRAME_BODY_BYTES_MAX, "an answer fits a frame");
                assert!(state.trim <= header.lsn && header.lsn.plus(*bytes as u64) <= state.held);
                copy_out(&self.window, header.lsn, &mut vec![0; *bytes]);
            }
            MemberReply::Frame(header, body, bytes) => {
                assert!(*bytes <= body.len());
                if header.kind == FrameKind::Ack {
                    assert_eq!((header.lsn, header.stable), (state.held, state.received));
                }
            }
        }
    }

    /// Kills the lender's process and lets another take over its memory. If a writer made its window begin
    /// inside a record, the member cannot know; such a writer harms only its own window.
    fn restart(&mut self) {
        let state = *self.member.state();
        let again = Member::restore(JOURNAL, Incarnation(42), state, &self.window);
        if again.is_none() && state.joined && !self.places.contains(&state.trim) {
            self.member = Member::new(JOURNAL, Incarnation(43));
            self.window.release();
            return;
        }
        self.member = again.expect("what a member left bears out what it said");
        let expected = MemberState {
            received: state.held,
            ..state
        };
        assert_eq!(*self.member.state(), expected);
        self.pending.clear();
    }
}

pub(crate) fn member_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![
            0, 1, 8, 0, 1, 2, 0, 50, 3, 2, 9, 9, 9, 5, 120, 0, 6, 0, 255, 0, 0, 0, 8, 7, 0,
        ],
        vec![0, 1, 0, 0, 1, 2, 66, 20, 20, 20, 90, 0, 4, 2, 1, 9, 9, 0, 5, 0, 1],
        vec![
            0, 1, 0, 0, 2, 2, 130, 255, 255, 255, 2, 130, 255, 255, 255, 5, 150, 0, 3, 128, 255,
        ],
        vec![
            0, 1, 0, 0, 1, 2, 32, 7, 5, 0, 9, 4, 100, 1, 0, 100, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8,
        ],
    ]
}
