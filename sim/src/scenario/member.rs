//! One lender with clients that hold the key and misbehave: frames in any order, gaps, overlaps, overruns,
//! bytes that are no records, old epochs, arbitrary lengths. Rules 2, 4, 10 and 11 must hold all the same.

use netram_proto::id::{Epoch, Incarnation, Lsn};
use netram_proto::limit::WINDOW_BYTES_MIN;
use netram_proto::port::RecordKind;
use netram_proto::wire::{ChainPoint, Flag, FrameHeader, FrameKind, RecordHeader, finish_record};

use crate::lender::{PacketOutcome, SimLender, packet_of};
use crate::rng::Rng;
use crate::world::World;

/// A client's idea of the log: some records in a chain.
struct ClientLog {
    start: ChainPoint,
    bytes: Vec<u8>,
    ends: Vec<ChainPoint>,
}

pub(super) fn run(world: &mut World) {
    let mut lender = SimLender::new(String::from("d1"), Incarnation(1));
    let frames = world.kernel.rng.between(20, 300);
    let mut log = new_log(world, ChainPoint::default());
    let mut epoch = Epoch(1);
    bind(world, &mut lender, 0);
    for conn in 0..frames as usize {
        match world.kernel.rng.below(100) {
            0..3 => epoch = Epoch(epoch.0 + world.kernel.rng.below(2) as u32),
            3..5 => {
                let start = log.ends[world.kernel.rng.index(log.ends.len())];
                log = new_log(world, start);
            }
            5 => {
                lender.kill();
                restart(world, &mut lender, conn);
            }
            6 => lender.crashes_in_append = true,
            _ => (),
        }
        let packet = draw_frame(world, &lender, &log, epoch);
        world.kernel.tell(|| format!("{packet:x?}"));
        let (journal, planted) = (world.kernel.journal(), world.kernel.planted());
        match lender.on_packet(0, &packet, journal, planted) {
            PacketOutcome::Reply(_) | PacketOutcome::Nothing => (),
            PacketOutcome::Ended => {
                lender.forget(0);
                bind(world, &mut lender, 0);
            }
            PacketOutcome::Died => restart(world, &mut lender, conn),
        }
        world.kernel.mark(9, lender.state().held.0);
        world.kernel.hit("frames of unruly clients");
    }
}

fn restart(world: &mut World, lender: &mut SimLender, number: usize) {
    let (journal, planted) = (world.kernel.journal(), world.kernel.planted());
    if !lender.start(journal, Incarnation(number as u64 + 2), planted) {
        world
            .kernel
            .hit("lenders of unruly clients restarted with memory that did not check");
    }
    bind(world, lender, 0);
}

fn bind(world: &mut World, lender: &mut SimLender, conn: usize) {
    let packet = packet_of(
        &FrameHeader::new(FrameKind::Bind),
        &world.kernel.journal().0.to_le_bytes(),
    );
    let (journal, planted) = (world.kernel.journal(), world.kernel.planted());
    lender.on_packet(conn, &packet, journal, planted);
}

fn new_log(world: &mut World, start: ChainPoint) -> ClientLog {
    let mut log = ClientLog {
        start,
        bytes: Vec::new(),
        ends: vec![start],
    };
    let mut link = start;
    for _ in 0..world.kernel.rng.between(1, 60) {
        let longest = world.kernel.rng.pick(&[10, 300, 6000]);
        let payload = world.kernel.rng.index(longest);
        let header = RecordHeader::new(link, Epoch(1), start.lsn, RecordKind(16), false, payload);
        let mut record = vec![world.kernel.rng.draw() as u8; header.length];
        header.write(&mut record);
        let chain = finish_record(&mut record, world.kernel.journal().into());
        link = ChainPoint {
            lsn: header.next(),
            chain,
        };
        log.bytes.extend_from_slice(&record);
        log.ends.push(link);
    }
    log
}

fn draw_frame(world: &mut World, lender: &SimLender, log: &ClientLog, epoch: Epoch) -> Vec<u8> {
    let state = lender.state();
    let rng = &mut world.kernel.rng;
    let epoch = if rng.chance(60) {
        Epoch(rng.below(4) as u32)
    } else {
        epoch
    };
    let who = if rng.chance(30) { 9 } else { 7 };
    let header = |kind| FrameHeader {
        epoch,
        sender: who,
        ..FrameHeader::new(kind)
    };
    let mut packet = match rng.below(40) {
        0 | 1 => packet_of(&header(FrameKind::Fence), &[]),
        2 => join(rng, header(FrameKind::Join), log),
        3..34 => append(rng, header(FrameKind::Append), log, &state),
        34 | 35 => {
            let stable = Lsn(state.trim.0 + rng.below(2 * (state.held.since(state.trim) + 1)));
            packet_of(
                &FrameHeader {
                    stable,
                    lsn: Lsn(rng.draw()),
                    ..header(FrameKind::Ping)
                },
                &[],
            )
        }
        36..39 => {
            let lsn = Lsn((state.trim.0 + rng.below(state.held.since(state.trim) + 9)).saturating_sub(4));
            let asked = rng.pick(&[1, 100, 60_000, u32::MAX]).to_le_bytes();
            packet_of(
                &FrameHeader {
                    lsn,
                    ..header(FrameKind::Read)
                },
                &asked,
            )
        }
        _ => packet_of(
            &FrameHeader {
                lsn: Lsn(u64::from(state.window_epoch.0)),
                mark: state.generation,
                ..header(FrameKind::Leave)
            },
            &[],
        ),
    };
    if rng.chance(40) {
        let at = rng.index(packet.len());
        packet[at] ^= 1 << rng.below(8);
    }
    packet
}

fn join(rng: &mut Rng, header: FrameHeader, log: &ClientLog) -> Vec<u8> {
    let link = log.ends[rng.index(log.ends.len())];
    let bytes = rng.pick(&[WINDOW_BYTES_MIN, WINDOW_BYTES_MIN, 1, 1 << 40]);
    let header = FrameHeader {
        lsn: link.lsn,
        mark: link.chain,
        stable: Lsn(rng.below(6)),
        ..header
    };
    packet_of(&header, &bytes.to_le_bytes())
}

fn append(
    rng: &mut Rng,
    header: FrameHeader,
    log: &ClientLog,
    state: &netram_proto::member::MemberState,
) -> Vec<u8> {
    let end = log.ends[log.ends.len() - 1].lsn;
    // Mostly what comes next; else anywhere in the log.
    let from = if rng.chance(700) && state.received >= log.start.lsn && state.received < end {
        state.received
    } else {
        log.ends[rng.index(log.ends.len())].lsn
    };
    let at = from.since(log.start.lsn) as usize;
    let rest = &log.bytes[at..];
    let longest = rng.pick(&[50, 500, 20_000, 60_000]);
    let bytes = &rest[..rng.index(longest + 1).min(rest.len())];
    let fresh = rng.chance(150);
    let chain = log
        .ends
        .iter()
        .find(|link| link.lsn == from)
        .map_or(0, |link| link.chain);
    let stable = if rng.chance(300) {
        from
    } else {
        Lsn(state.trim.0 + rng.below(100))
    };
    let header = FrameHeader {
        lsn: from,
        flags: if fresh { Flag::FRESH } else { 0 },
        mark: chain,
        stable,
        ..header
    };
    packet_of(&header, bytes)
}
