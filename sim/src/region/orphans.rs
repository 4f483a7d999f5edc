//! Orphan journals of earlier processes on a machine's disk. They are read, offered to the server, and
//! removed once it has all of them.

use netram_proto::id::{JournalId, WriterId};
use netram_proto::journal::ForgetNotice;
use netram_shared_machine::message::OrphanJournalId;
use netram_shared_machine::{NodeId, RecordNumber};

use super::check::check_orphan;
use super::node_events::run_actions;
use super::orphan::{NEVER, OrphanState, RegionOrphan};
use super::queries::{QueryKind, QueryOwner, ReadOutcome};
use super::query_events::start_query;
use super::world::World;

/// Reads orphan journals, and offers those that were read.
pub(super) fn offer_orphans(world: &mut World, slot: usize) {
    let now = world.kernel.now();
    let machine = &mut world.slots[slot];
    let Some(at) = machine.orphans.iter().position(|left| left.is_due(now)) else {
        return;
    };
    let left = &mut machine.orphans[at];
    left.retry_after(now, world.kernel.profile.offer_interval);
    // No one needs the journal of a node that is gone, and one whose members are fenced cannot be opened.
    if let Some(process) = &mut machine.process {
        process.node.ask_outcome(left.node, NEVER);
    }
    match &left.state {
        OrphanState::Unread => open_orphan(world, slot, at),
        OrphanState::Read(first, records) => {
            let last = RecordNumber(first.0 + records.len() as u64 - 1);
            let RegionOrphan { node, id, .. } = *left;
            let old = OrphanJournalId { node, journal: id };
            if let Some(process) = &mut machine.process {
                process.node.offer_orphan(old, last);
                world.kernel.hit("region: journals offered");
            }
        }
        OrphanState::Asking | OrphanState::Over => (),
    }
}

/// Handles the server's durable statement that it needs nothing of this node's journal. A process that stood
/// still may have joined a lender after the server told that lender that the node is gone, if the lender lost
/// its memory in between.
pub(super) fn orphan_is_over(world: &mut World, slot: usize, node: NodeId) {
    let Some(life) = world.slots[slot].life() else {
        return;
    };
    let mut its = world.slots[slot].orphans.iter_mut();
    let Some(left) = its.find(|left| left.node == node && left.state != OrphanState::Over) else {
        return;
    };
    let begun = left.state == OrphanState::Asking;
    left.state = OrphanState::Over;
    let (id, view) = (left.id, left.view());
    let Some(view) = view else {
        return orphan_is_told(world, slot, id, true);
    };
    if begun {
        let (network, lenders) = (&mut world.network, &mut world.lenders);
        world.queries.stop(&mut world.kernel, network, lenders, |query| {
            query.journal == id && matches!(query.owner, QueryOwner::Orphan { .. })
        });
    }
    let notice = ForgetNotice::deleted(
        id,
        (view.epoch, view.writer),
        ForgetNotice::ALL,
        &world.lenders.addresses(),
    );
    let owner = QueryOwner::Orphan { slot, life };
    start_query(world, QueryKind::Forget(notice), owner, slot, &view);
}

/// Handles the end of telling the lenders. `all`: every one was told. The others may keep a window until
/// their operator frees it.
pub(super) fn orphan_is_told(world: &mut World, slot: usize, journal: JournalId, all: bool) {
    world.slots[slot].orphans.retain(|left| left.id != journal);
    world.kernel.hit("region: journals left that were removed");
    if !all {
        world.history.keep_windows(journal);
    }
}

fn open_orphan(world: &mut World, slot: usize, at: usize) {
    let who = WriterId(world.kernel.rng.draw());
    let Some(life) = world.slots[slot].life() else {
        return;
    };
    let left = &mut world.slots[slot].orphans[at];
    let Some((recovery, view)) = left.open(who, world.kernel.now()) else {
        return;
    };
    let owner = QueryOwner::Orphan { slot, life };
    start_query(world, QueryKind::Read(recovery), owner, slot, &view);
}

/// Handles the members' answers about an orphan journal.
pub(super) fn orphan_is_read(
    world: &mut World,
    slot: usize,
    journal: JournalId,
    (verdict, windows): ReadOutcome,
) {
    let mut its = world.slots[slot].orphans.iter_mut();
    let Some(left) = its.find(|left| left.id == journal) else {
        return;
    };
    left.state = OrphanState::Unread;
    if let Err(refusal) = verdict {
        world.kernel.hit("region: journals left that could not be opened");
        return world
            .kernel
            .tell(|| format!("slot {slot} cannot open a journal: {refusal}"));
    }
    let from_members = left.read(&windows);
    world.kernel.hit("region: journals left that were opened");
    if from_members > 0 {
        world
            .kernel
            .hit("region: journals left whose members had more than the disk");
    }
    if let Some(left) = world.slots[slot].orphans.iter().find(|left| left.id == journal) {
        check_orphan(world, left);
    }
}

/// Handles the server's answer to an offer.
pub(super) fn on_wanted(world: &mut World, slot: usize, node: NodeId, from: Option<RecordNumber>) {
    let machine = &mut world.slots[slot];
    let Some(left) = machine.orphans.iter().find(|left| left.node == node) else {
        return;
    };
    let Some(process) = &mut machine.process else {
        return;
    };
    let Some(from) = from else {
        // The server answers so too if it only has all offered records. The outcome of a record that never
        // existed shows that no more will come.
        return process.node.ask_outcome(node, NEVER);
    };
    let OrphanState::Read(first, records) = &left.state else {
        return;
    };
    // The server has the records that are no longer in the log, or has lost them and reads them from the
    // members.
    for (index, payload) in records.iter().enumerate() {
        let number = RecordNumber(first.0 + index as u64);
        if number >= from && from >= *first {
            process.node.send_orphan_record(node, number, payload.clone());
        }
    }
    run_actions(world, slot);
}
