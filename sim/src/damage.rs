//! Damage at rest: changes of a disk's bytes while no process has them open.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::journal::LogFile;
use netram_proto::limit::SLOT_BYTES;
use netram_proto::port::RecordKind;
use netram_proto::wire::{ChainPoint, RecordHeader, finish_record};

use crate::disk::{PlatterFile, SECTOR_BYTES};
use crate::log_image::DATA_OFFSET;
use crate::profile::WorldFault;
use crate::world::World;

impl World {
    /// Damages a host's log while no process has it open. Recovery must notice damage below the point that an
    /// intact record or the superblock proves to have been durable; damage at or above the end must not
    /// matter.
    pub(crate) fn damage(&mut self, host: usize, action: WorldFault) {
        if self.living(host).is_some() {
            return;
        }
        let (head, durable, tail) = {
            let history = &self.hosts[host].history;
            (history.head, history.durable, history.tail())
        };
        if action == WorldFault::StaleBytes {
            self.leave_stale_bytes(host, tail);
            return;
        }
        if durable <= head {
            return;
        }
        let at = head.plus(self.kernel.rng.below(durable.since(head)));
        let capacity = self.kernel.profile.capacity;
        let offset = DATA_OFFSET + (at.0 % capacity) as usize;
        let start = Lsn(at.0 / SECTOR_BYTES as u64 * SECTOR_BYTES as u64);
        let file = self.hosts[host].log_file;
        match action {
            WorldFault::Unreadable => {
                self.kernel.hit("nemesis: sectors made unreadable");
                self.hosts[host].disk.borrow_mut().make_unreadable(file, offset);
                self.hosts[host].damaged = true;
            }
            _ if self.proven(host, start.plus(SECTOR_BYTES as u64)) => {
                self.kernel.hit("nemesis: sectors rotten");
                self.hosts[host].disk.borrow_mut().rot(file, offset);
                self.hosts[host].damaged = true;
                let history = &mut self.hosts[host].history;
                history.durable = history.durable.min(start.max(head));
            }
            _ => (),
        }
    }

    /// Damages one of two slots at rest. It spares slots after a cut-off or failed store: the other slot may
    /// then be the older value, and recovery cannot tell (`docs/design/journal.md`).
    pub(crate) fn damage_slot(&mut self, host: usize) {
        let view_file = self.kernel.rng.chance(700);
        let slot = self.kernel.rng.index(2) * SLOT_BYTES;
        let rots = self.kernel.rng.chance(500);
        let at = &self.hosts[host];
        let file = if view_file { at.view_file } else { at.log_file };
        {
            let disk = at.disk.borrow();
            let slots = &disk.durable(file)[..2 * SLOT_BYTES];
            let settled = slots[..SLOT_BYTES] == slots[SLOT_BYTES..]
                && disk.cached(file)[..2 * SLOT_BYTES] == *slots
                && disk.is_readable(file, 0..2 * SLOT_BYTES);
            if self.living(host).is_some() || !settled {
                return;
            }
        }
        let mut disk = at.disk.borrow_mut();
        if rots {
            disk.rot(file, slot);
        } else {
            disk.make_unreadable(file, slot);
        }
        drop(disk);
        self.kernel.hit("nemesis: slots damaged");
    }

    /// Whether bytes on the platter beyond `end` prove that everything below `end` had been durable.
    fn proven(&self, host: usize, end: Lsn) -> bool {
        let host = &self.hosts[host];
        let disk = host.disk.borrow();
        let platter = PlatterFile(disk.durable(host.log_file));
        let Ok((_, _, superblock)) = LogFile::open(platter) else {
            return false;
        };
        superblock.stable >= end || host.view.base >= end
    }

    /// Leaves plausible bytes behind the end of a log that is wholly on the disk: an old record, or one of a
    /// history that ended otherwise.
    fn leave_stale_bytes(&mut self, host: usize, tail: Lsn) {
        let history = &self.hosts[host].history;
        let capacity = self.kernel.profile.capacity;
        let settled = history.acked == tail && history.durable == tail;
        if !settled || tail.0 < 512 || capacity.saturating_sub(tail.since(history.head)) < 2048 {
            return;
        }
        let bytes = if self.kernel.rng.chance(500) {
            self.other_history(tail)
        } else {
            let from = Lsn(self.kernel.rng.below(tail.0 / 8) * 8);
            let history = &self.hosts[host].history;
            let start = history
                .ends_between(from, tail)
                .first()
                .map_or(Lsn(0), |link| link.lsn);
            history.bytes(start, Lsn((start.0 + 1024).min(tail.0))).to_vec()
        };
        let offset = DATA_OFFSET + (tail.0 % capacity) as usize;
        let length = bytes.len().min(DATA_OFFSET + capacity as usize - offset);
        self.kernel.hit("nemesis: stale bytes behind the end");
        let file = self.hosts[host].log_file;
        self.hosts[host]
            .disk
            .borrow_mut()
            .plant(file, offset, &bytes[..length]);
    }

    /// A valid record of this journal for this position whose predecessor is not the one found here. An epoch
    /// leaves such bytes when the record before them was torn.
    fn other_history(&mut self, at: Lsn) -> Vec<u8> {
        let link = ChainPoint {
            lsn: at,
            chain: self.kernel.rng.draw() as u32,
        };
        let header = RecordHeader::new(link, Epoch(1), Lsn(0), RecordKind(16), false, 24);
        let mut record = vec![7; header.length];
        header.write(&mut record);
        finish_record(&mut record, self.kernel.journal().into());
        record
    }
}
