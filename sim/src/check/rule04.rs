//! Rule 4, *fencing*: a fenced member accepts nothing from a lower epoch; a fenced writer acknowledges and
//! sends nothing; and once a newer epoch has recovered, the older one acknowledges nothing that the newer one
//! lacks.

use netram_proto::id::Lsn;
use netram_proto::wire::{Flag, FrameHeader, FrameKind};

use super::violation::fail;
use crate::hosts::NewerEpoch;
use crate::process::ServingState;
use crate::world::World;

/// Checks that a fenced writer acknowledges nothing more.
pub(crate) fn fenced(world: &mut World, serving: &mut ServingState) {
    if serving.writer.fenced().is_none() {
        return;
    }
    let acked = serving.writer.acked();
    match serving.acked_at_fence {
        None => {
            world.kernel.hit("writers fenced");
            serving.acked_at_fence = Some(acked);
        }
        Some(before) if acked > before => fail(
            4,
            format!("a fenced writer went on and acknowledged {acked} after {before}"),
        ),
        Some(_) => (),
    }
}

/// Checks a frame that a writer sends.
pub(crate) fn sends(_world: &World, process: usize, serving: &ServingState) {
    if serving.writer.fenced().is_some() {
        fail(4, format!("process {process} is fenced and still sends"));
    }
}

/// Checks that a writer calls its journal closed only when no lender will be asked for any of it.
pub(crate) fn closes(world: &World, process: usize, serving: &ServingState, sent: &FrameHeader) {
    if sent.kind != FrameKind::Leave || sent.flags & Flag::CLOSED_CLEAN == 0 {
        return;
    }
    let view = &world.hosts[world.processes[process].host].view;
    if view.counting || !view.members.is_empty() || serving.writer.stable() < serving.tail.lsn {
        fail(
            4,
            format!(
                "process {process} calls its journal closed, and goes on with view {}",
                view.version
            ),
        );
    }
}

/// Checks that a writer acknowledges `upto` without members that a newer epoch has taken over, unless that
/// epoch has the records.
pub(crate) fn acked(world: &World, process: usize, upto: Lsn) {
    let host = &world.hosts[world.processes[process].host];
    if let Some(NewerEpoch {
        fork,
        version,
        loss_accepted: false,
    }) = host.newer_epoch
        && upto > fork
        && upto > host.history.durable
        && host.view.version == version
    {
        fail(
            4,
            format!(
                "process {process} acknowledged {upto} by members; the newer epoch's log forked at {fork}"
            ),
        );
    }
}
