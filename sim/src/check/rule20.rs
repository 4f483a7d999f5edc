//! Rule 20, *a peer's claims are bounded before they cost anything*: the members' answers take no more memory
//! than their windows have. A member that makes no progress leaves the view; one whose writer stood still
//! does not. A lender's word that it was fenced stops no writer unless it can be true. A client is refused
//! for its own use of a lender, never for another's.

use netram_proto::id::{Epoch, Incarnation, WriterId};
use netram_proto::journal::{JournalLenderStatus, JournalWriter, LenderRole, Recovery};
use netram_proto::owner::plays_back;
use netram_proto::wire::{ClientResource, Frame, FrameKind, RefusalReason};

use super::violation::fail;
use crate::world::World;

/// Checks a recovery after an answer. Each member has a window of `window` bytes.
pub(crate) fn recovery(recovery: &Recovery, window: u64) {
    let (read, most) = (recovery.bytes_read(), window * recovery.answers().count() as u64);
    if read > most {
        fail(
            20,
            format!("recovery has read {read} bytes of windows that hold {most} together"),
        );
    }
}

/// Checks that a writer which stood still, with all else well, kept its members.
pub(crate) fn kept_members(world: &World, process: usize, before: usize) {
    let Some(serving) = world.processes.serving(process) else {
        return;
    };
    let members = |role: LenderRole| matches!(role, LenderRole::Member);
    let lenders = serving.writer.status().lenders;
    let now = lenders.iter().filter(|lender| members(lender.role)).count();
    if now < before {
        fail(
            20,
            format!(
                "a writer stood still, and gave {} of its {before} members up for it",
                before - now
            ),
        );
    }
}

/// Checks that lender `lender`, which has made no progress for long, has left the view.
pub(crate) fn gave_up(world: &World, process: usize, lender: usize) {
    let Some(serving) = world.processes.serving(process) else {
        return;
    };
    let slot = world.lenders.address_of(lender);
    if slot.is_some_and(|slot| serving.writer.view().has(slot)) {
        fail(
            20,
            format!("lender {lender} answers, makes no progress, and is a member all the same"),
        );
    }
}

/// Whether the lender at address `slot`, or its memory at an address that it has left, is in the durable view
/// or in the one being stored.
pub(crate) fn is_member(writer: &JournalWriter, slot: usize, memory: Incarnation) -> bool {
    let is_member = |lender: &JournalLenderStatus| lender.role == LenderRole::Member;
    let lenders = writer.status().lenders;
    lenders
        .iter()
        .find(|lender| lender.index == slot)
        .is_some_and(is_member)
        || lenders
            .iter()
            .any(|lender| is_member(lender) && lender.incarnation == memory)
}

/// Checks a writer after a frame from the lender at address `slot`, before which `before` had fenced it. A
/// claim that names a lower epoch or the writer's own fence stops no writer, nor does a lender outside a view
/// that has members. A lie may make an earlier claim count, since nobody is left who could deny that.
pub(crate) fn believed_fence(
    (writer, id): (&JournalWriter, WriterId),
    before: Option<Epoch>,
    (slot, is_member): (usize, bool),
    frame: &Frame<'_>,
) {
    let said = &frame.header;
    let claims = said.kind == FrameKind::Refuse && said.flags == RefusalReason::Fenced as u8;
    if !claims || before.is_some() || writer.fenced().is_none() {
        return;
    }
    let is_claim = |lender: &JournalLenderStatus| {
        let refused = lender.refused.map(|refusal| refusal.reason);
        lender.index != slot && refused == Some(RefusalReason::Fenced)
    };
    let is_lie = said.epoch < writer.epoch() || plays_back(frame, writer.epoch(), id);
    let is_first = !writer.status().lenders.iter().any(is_claim);
    if is_lie && is_first || !is_member && !writer.view().is_empty() {
        fail(
            20,
            format!(
                "lender {slot}, {}, says that epoch {} fenced it, and stops the writer of epoch {}",
                if is_member { "a member" } else { "no member" },
                said.epoch,
                writer.epoch()
            ),
        );
    }
}

/// Checks the refusal of a client that would have `wanted` of a resource of lender `lender`: only its own use
/// counts.
pub(crate) fn over_limit(
    world: &mut World,
    lender: usize,
    name: &str,
    (resource, wanted): (ClientResource, u64),
) {
    let limit = limit_of(world, lender, name, resource);
    if wanted <= limit {
        fail(
            20,
            format!(
                "lender {lender} refuses client `{name}`, which would have {resource} = {wanted} and may have {limit}"
            ),
        );
    }
    world.kernel.hit("clients: refused over their limit");
}

/// Checks that a client which has `bytes` of memory of lender `lender` may have that.
pub(crate) fn granted(world: &World, lender: usize, name: &str, bytes: u64) {
    let limit = limit_of(world, lender, name, ClientResource::Memory);
    if bytes > limit {
        fail(
            20,
            format!("lender {lender} gives client `{name}` memory = {bytes}, and it may have {limit}"),
        );
    }
}

fn limit_of(world: &World, lender: usize, name: &str, resource: ClientResource) -> u64 {
    let clients = world.lenders[lender].clients.as_ref();
    clients.map_or(u64::MAX, |clients| clients.limit(name, resource))
}
