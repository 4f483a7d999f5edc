//! Damage at rest: changes of a disk's bytes while no process has them open.

use netram_proto::id::{Epoch, Lsn};
use netram_proto::journal::LogFile;
use netram_proto::limit::SLOT_BYTES;
use netram_proto::port::RecordKind;
use netram_proto::wire::{ChainPoint, RecordHeader, finish_record};

use crate::disk::{PlatterFile, SECTOR_BYTES};
use crate::hosts::ClientHost;
use crate::kernel::SimKernel;
use crate::log_image::DATA_OFFSET;
use crate::profile::WorldFault;

/// Damages a host's log while no process has it open. Recovery must notice damage below the point that an
/// intact record or the superblock proves to have been durable; damage at or above the end must not
/// matter.
pub(crate) fn damage_log(kernel: &mut SimKernel, host: &mut ClientHost, in_use: bool, action: WorldFault) {
    if in_use {
        return;
    }
    let (head, durable, tail) = {
        let history = &host.history;
        (history.head, history.durable, history.tail())
    };
    if action == WorldFault::StaleBytes {
        leave_stale_bytes(kernel, host, tail);
        return;
    }
    if durable <= head {
        return;
    }
    let at = head.plus(kernel.rng.below(durable.since(head)));
    let capacity = kernel.profile.capacity;
    let offset = DATA_OFFSET + (at.0 % capacity) as usize;
    let start = Lsn(at.0 / SECTOR_BYTES as u64 * SECTOR_BYTES as u64);
    let file = host.log_file;
    match action {
        WorldFault::Unreadable => {
            kernel.hit("nemesis: sectors made unreadable");
            host.disk.borrow_mut().make_unreadable(file, offset);
            host.damaged = true;
        }
        _ if is_proven(host, start.plus(SECTOR_BYTES as u64)) => {
            kernel.hit("nemesis: sectors rotten");
            host.disk.borrow_mut().rot(file, offset);
            host.damaged = true;
            let history = &mut host.history;
            history.durable = history.durable.min(start.max(head));
        }
        _ => (),
    }
}

/// Damages one of two slots at rest. It spares slots after a cut-off or failed store: the other slot may
/// then be the older value, and recovery cannot tell (`docs/design/journal.md`).
pub(crate) fn damage_slot(kernel: &mut SimKernel, host: &ClientHost, in_use: bool) {
    let view_file = kernel.rng.chance(700);
    let slot = kernel.rng.index(2) * SLOT_BYTES;
    let rots = kernel.rng.chance(500);
    let at = host;
    let file = if view_file { at.view_file } else { at.log_file };
    {
        let disk = at.disk.borrow();
        let slots = &disk.durable(file)[..2 * SLOT_BYTES];
        let settled = slots[..SLOT_BYTES] == slots[SLOT_BYTES..]
            && disk.cached(file)[..2 * SLOT_BYTES] == *slots
            && disk.is_readable(file, 0..2 * SLOT_BYTES);
        if in_use || !settled {
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
    kernel.hit("nemesis: slots damaged");
}

/// Whether bytes on the platter beyond `end` prove that everything below `end` had been durable.
fn is_proven(host: &ClientHost, end: Lsn) -> bool {
    let disk = host.disk.borrow();
    let platter = PlatterFile(disk.durable(host.log_file));
    let Ok((_, _, superblock)) = LogFile::open(platter) else {
        return false;
    };
    superblock.stable >= end || host.view.base >= end
}

/// Leaves plausible bytes behind the end of a log that is wholly on the disk: an old record, or one of a
/// history that ended otherwise.
fn leave_stale_bytes(kernel: &mut SimKernel, host: &ClientHost, tail: Lsn) {
    let history = &host.history;
    let capacity = kernel.profile.capacity;
    let settled = history.acked == tail && history.durable == tail;
    if !settled || tail.0 < 512 || capacity.saturating_sub(tail.since(history.head)) < 2048 {
        return;
    }
    let bytes = if kernel.rng.chance(500) {
        other_history(kernel, tail)
    } else {
        let from = Lsn(kernel.rng.below(tail.0 / 8) * 8);
        let history = &host.history;
        let start = history
            .ends_between(from, tail)
            .first()
            .map_or(Lsn(0), |link| link.lsn);
        history.bytes(start, Lsn((start.0 + 1024).min(tail.0))).to_vec()
    };
    let offset = DATA_OFFSET + (tail.0 % capacity) as usize;
    let length = bytes.len().min(DATA_OFFSET + capacity as usize - offset);
    kernel.hit("nemesis: stale bytes behind the end");
    let file = host.log_file;
    host.disk.borrow_mut().plant(file, offset, &bytes[..length]);
}

/// A valid record of this journal for this position whose predecessor is not the one found here. An epoch
/// leaves such bytes when the record before them was torn.
fn other_history(kernel: &mut SimKernel, at: Lsn) -> Vec<u8> {
    let link = ChainPoint {
        lsn: at,
        chain: kernel.rng.draw() as u32,
    };
    let header = RecordHeader::new(link, Epoch(1), Lsn(0), RecordKind(16), false, 24);
    let mut record = vec![7; header.length];
    header.write(&mut record);
    finish_record(&mut record, kernel.journal().into());
    record
}
