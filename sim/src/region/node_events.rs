//! Events of a node: time passes, its machine wants something done, its transactions end.

use netram_proto::journal::ServerAck;
use netram_proto::time::Nanos;
use netram_shared_machine::message::RecordOutcome;
use netram_shared_machine::node::{NodeAction, WaitOutcome};
use netram_shared_machine::{NodeId, RecordNumber};

use super::bytes::{self, PayloadBytes};
use super::check::{
    RegionRule, check_acked, check_applied, check_closed, check_locks_held, check_memory, check_outcome,
    check_pinned, check_server_ack, check_waits, fail,
};
use super::hints::on_peer_action;
use super::journal_events::{pump, run_disk};
use super::kernel::Event;
use super::life::on_node_end;
use super::link_events::{connect_node, give_up_link};
use super::orphan::NEVER;
use super::orphans::{on_wanted, orphan_is_over};
use super::process::TxnPhase;
use super::world::World;

/// Interval at which timers are checked.
const TICK: Nanos = Nanos::from_ms(5);

pub(super) fn on_tick(world: &mut World, slot: usize, life: u64) {
    let now = world.local(slot);
    let Some(process) = world.slots[slot].alive(life) else {
        return;
    };
    process.node.on_tick(now);
    process.journal.writer.on_tick(now);
    let silent = process.node.is_link_silent();
    if silent {
        give_up_link(world, slot);
    }
    let unlinked = world.slots[slot]
        .process
        .as_ref()
        .is_some_and(|process| process.session.is_none());
    if unlinked && world.kernel.rng.chance(300) {
        connect_node(world, slot);
    }
    if let Some(process) = &mut world.slots[slot].process {
        process.tell_members(now);
    }
    settle(world, slot);
    check_waits(world, slot);
    world.kernel.at(TICK, Event::Tick { slot, life });
}

/// Begins everything that follows from an event.
pub(super) fn settle(world: &mut World, slot: usize) {
    if world.slots[slot].paused_until > world.kernel.now() {
        return;
    }
    loop {
        run_actions(world, slot);
        if !take_acks(world, slot) {
            break;
        }
    }
    run_disk(world, slot);
    pump(world, slot);
    check_memory(world, slot);
}

/// Reports the members' acknowledgements to the node's machine and to waiting transactions.
fn take_acks(world: &mut World, slot: usize) -> bool {
    let now = world.local(slot);
    let Some(process) = &mut world.slots[slot].process else {
        return false;
    };
    let Some(acked) = process.unreported_ack() else {
        return false;
    };
    let journal = process.journal.id;
    check_acked(world, slot, journal, acked);
    if let Some(process) = &mut world.slots[slot].process {
        process.report_ack(now, acked);
    }
    true
}

pub(super) fn run_actions(world: &mut World, slot: usize) {
    while let Some(process) = &mut world.slots[slot].process
        && let Some(action) = process.node.poll()
    {
        run_action(world, slot, action);
    }
}

fn run_action(world: &mut World, slot: usize, action: NodeAction<PayloadBytes>) {
    let now = world.local(slot);
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    match action {
        NodeAction::Send(message) => {
            let session = process.session;
            world.node_links.send_up(&mut world.kernel, session, &message);
        }
        NodeAction::Peer(straight) => on_peer_action(world, slot, straight),
        NodeAction::Open(joined) => {
            process.clear_region();
            let (end, version) = (process.journal.start, process.journal.first_view);
            let said = ServerAck { end, version };
            process.journal.writer.on_server_ack(said, now);
            world.history.assign_node(process.journal.id, joined.node);
            world.kernel.hit("region: joinings");
        }
        NodeAction::Page { offset, bytes } => bytes::put_page(&mut process.region, offset, &bytes),
        NodeAction::Whole => world.kernel.tell(|| format!("slot {slot} has the region")),
        NodeAction::Apply { payload, .. } => {
            check_pinned(world, slot);
            apply(world, slot, &payload);
        }
        NodeAction::Durable { number, end, view } => {
            check_server_ack(world, slot, number, end, view);
            let Some(process) = &mut world.slots[slot].process else {
                return;
            };
            process.journal.server_ack = process.journal.server_ack.max(number);
            let said = ServerAck { end, version: view };
            process.journal.writer.on_server_ack(said, now);
        }
        NodeAction::WaitEnded(waited) => on_wait_outcome(world, slot, waited),
        NodeAction::Expired => {
            process.pinned = None;
            world.kernel.hit("region: readers that expired");
        }
        NodeAction::Outcome { node, number, fate } => on_outcome(world, slot, node, number, fate),
        NodeAction::OrphanWanted { node, from } => on_wanted(world, slot, node, from),
        NodeAction::Rejoin => {
            process.pinned = None;
            process.fail_open(now);
            world.kernel.hit("region: nodes that began anew");
        }
        NodeAction::Ended(over) => on_node_end(world, slot, over),
    }
}

/// Applies a record of another node to a node's memory.
fn apply(world: &mut World, slot: usize, payload: &PayloadBytes) {
    let stamp = bytes::stamp(payload);
    world.kernel.tell(|| format!("slot {slot} applies {stamp:?}"));
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    check_applied(process, slot, &stamp);
    process.change(&stamp, payload);
    if process.is_whole() {
        check_closed(process, slot);
    }
}

fn on_wait_outcome(world: &mut World, slot: usize, waited: WaitOutcome) {
    let now = world.local(slot);
    let Some(process) = &mut world.slots[slot].process else {
        return;
    };
    let (id, held) = match waited {
        WaitOutcome::Acquired(id) => (id, true),
        WaitOutcome::Died(id, _) | WaitOutcome::TimedOut(id, _) | WaitOutcome::Lost(id) => (id, false),
    };
    let Some(txn) = process.txn_mut(id) else {
        return;
    };
    txn.phase = if held { TxnPhase::Ready } else { TxnPhase::Failed };
    let in_vain = txn.must_succeed && matches!(waited, WaitOutcome::TimedOut(..));
    if held {
        return check_locks_held(world, slot, id);
    }
    if in_vain {
        let what = format!("slot {slot}: no node gets the lock that a dead node held");
        fail(RegionRule::Ends, &what);
    }
    process.end_failed(now);
    world.kernel.hit(match waited {
        WaitOutcome::Died(..) => "region: transactions that died of a lock",
        WaitOutcome::TimedOut(..) => "region: transactions that waited in vain",
        _ => "region: transactions that lost their node",
    });
}

fn on_outcome(world: &mut World, slot: usize, node: NodeId, number: RecordNumber, fate: RecordOutcome) {
    check_outcome(world, node, number, fate);
    if number == NEVER && fate == RecordOutcome::Aborted {
        orphan_is_over(world, slot, node);
    }
    if fate != RecordOutcome::Open {
        world.slots[slot]
            .unknown_outcomes
            .retain(|asked| *asked != (node, number));
    }
}
