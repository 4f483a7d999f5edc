//! What is on its way over one connection: two lanes of packets, each in order and whole until the connection
//! breaks; then a tail of each is lost, and the rest may still arrive.

use std::collections::VecDeque;

use netram_proto::time::Time;

use crate::net::FrameDirection;
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
    /// Packets on their way up.
    pub(crate) fn packets_up(&self) -> usize {
        self.up.packets.len()
    }

    /// A packet that would arrive at `at` by itself. When it does: never before the one in front of it.
    pub(crate) fn push(&mut self, way: FrameDirection, packet: Vec<u8>, at: Time) -> Time {
        let lane = self.lane(way);
        lane.last = at.max(Time(lane.last.0 + 1));
        lane.packets.push_back(packet);
        lane.last
    }

    /// The next packet arrives. `None`: it was lost.
    pub(crate) fn pop(&mut self, way: FrameDirection) -> Option<Vec<u8>> {
        self.lane(way).packets.pop_front()
    }

    /// The connection breaks.
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
