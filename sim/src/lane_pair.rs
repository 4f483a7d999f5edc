//! Packets in transit over one connection: two lanes, each in order and whole until the connection breaks.
//! Then a tail of each is lost, and the rest may still arrive.

use std::collections::VecDeque;

use netram_proto::time::Time;

use crate::event::FrameDirection;
use crate::rng::Rng;

/// One direction.
#[derive(Clone, Debug, Default)]
struct PacketLane {
    packets: VecDeque<Vec<u8>>,
    last: Time,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct LanePair {
    up: PacketLane,
    down: PacketLane,
}

impl LanePair {
    /// Number of packets on their way up.
    pub(crate) fn packets_up(&self) -> usize {
        self.up.packets.len()
    }

    /// Adds a packet that would arrive at `at` by itself. Returns its arrival time, never before the packet
    /// in front of it.
    pub(crate) fn push(&mut self, way: FrameDirection, packet: Vec<u8>, at: Time) -> Time {
        let lane = self.lane(way);
        lane.last = at.max(Time(lane.last.0 + 1));
        lane.packets.push_back(packet);
        lane.last
    }

    /// Takes the next packet that arrives. `None`: it was lost.
    pub(crate) fn pop(&mut self, way: FrameDirection) -> Option<Vec<u8>> {
        self.lane(way).packets.pop_front()
    }

    /// Breaks the connection.
    pub(crate) fn cut(&mut self, rng: &mut Rng) {
        for way in [FrameDirection::Up, FrameDirection::Down] {
            let draw = rng.draw();
            let packets = &mut self.lane(way).packets;
            let left = draw % (packets.len() as u64 + 1);
            packets.truncate(left as usize);
        }
    }

    fn lane(&mut self, way: FrameDirection) -> &mut PacketLane {
        match way {
            FrameDirection::Up => &mut self.up,
            FrameDirection::Down => &mut self.down,
        }
    }
}
