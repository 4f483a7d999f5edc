//! A replica that lags behind while writes never pause: it must become whole all the same.

use netram_block_machine::{ReplicaCondition, SourceStatus};
use netram_proto::time::Nanos;

use super::volume::{SimVolume, VolumeProgram};
use crate::check::fail;
use crate::data::ask::break_data;
use crate::event_loop;
use crate::process::ServingState;

/// Maximum number of consecutive writes until the replica is in service: many times the log's capacity.
const WRITES_MAX: u32 = 2000;
/// Minimum duration of the writes: the replica is away first, and is retried only every second or two.
const WRITING_MAX: Nanos = Nanos::from_ms(30_000);
/// Maximum log bytes of one write: twenty sectors, and the header.
const WRITE_BYTES_MAX: u64 = 11 * 1024;
impl VolumeProgram {
    /// Keeps the data lender away for so long that only a resync of blocks brings it back. Returns the pause
    /// between writes.
    fn leave_behind(&mut self, process: usize) -> Nanos {
        let mut world = self.world.borrow_mut();
        let until = world.kernel.now() + Nanos::from_ms(world.kernel.rng.pick(&[0, 500, 3000]));
        if let Some(data) = world.data.lender_mut() {
            data.away_until = until;
        }
        break_data(&mut world, process);
        // A replica that takes the log more slowly than it is written cannot follow: during a sync an eighth
        // of the log's capacity at most is written.
        let sync_us = world.kernel.profile.disk_us.1 + 2 * world.kernel.profile.latency_us.1;
        let slowest_us = sync_us * 8 * WRITE_BYTES_MAX / world.kernel.profile.capacity;
        Nanos::from_us(world.kernel.rng.pick(&[2_000, 5_000, 20_000]).max(slowest_us))
    }

    /// Writes without pause, with all else well: the replica must become whole. Whether it gets close enough
    /// for service depends on the pace.
    pub(super) fn write_on(&mut self, process: usize, volume: &SimVolume) {
        let pause = self.leave_behind(process);
        let (mut writes, began) = (0, self.world.borrow().kernel.now());
        while writes < WRITES_MAX || self.world.borrow().kernel.now().since(began) < WRITING_MAX {
            writes += 1;
            if !self.change(process, volume) {
                return;
            }
            event_loop::run_for(&mut self.world.borrow_mut(), pause);
            let _ = volume.apply_step();
            self.run_source_action(process, volume);
            let world = self.world.borrow();
            let Some(serving) = world.processes.serving(process) else {
                return;
            };
            let back = world
                .data
                .lender()
                .is_some_and(|data| data.away_until <= world.kernel.now());
            let status = serving.data.as_ref().map(|link| link.source.status());
            let whole = |status: SourceStatus| {
                status.connected
                    && status.resync.is_none()
                    && status.condition == Some(ReplicaCondition::Following)
            };
            if back && status.is_some_and(whole) {
                drop(world);
                self.count("data: replicas that became whole while writes went on");
                return;
            }
        }
        let world = self.world.borrow();
        let serving = world.processes.serving(process);
        let poisoned =
            |serving: &&ServingState| serving.poisoned.is_some() || serving.writer.fenced().is_some();
        let link = serving
            .filter(|serving| !poisoned(serving))
            .and_then(|serving| serving.data.as_ref());
        if let Some(link) = link {
            let status = link.source.status();
            let state = world.log_state(process);
            fail(
                12,
                format!(
                    "writes every {pause:?}, and the replica never becomes whole: {status:?}, {state:?}, todo {:?}",
                    link.action
                ),
            );
        }
    }
}
