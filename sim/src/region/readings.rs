//! Readings of dead nodes' journals by the server, and the end of telling their lenders.

use netram_proto::journal::{Recovery, RecoveryError, node_records};
use netram_proto::planted::FaultSwitch;
use netram_proto::time::Nanos;
use netram_proto::wire::CheckedRecord;
use netram_shared_machine::server::{DurableFact, NodeJournal as Known};
use netram_shared_machine::{NodeId, RecordNumber};

use super::bytes::PayloadBytes;
use super::check::{RegionRule, check_read, fail};
use super::nemesis::provoke_late_commit;
use super::queries::{ALL_MEMBERS_WAIT, QUERY_TIMEOUT, QueryKind, QueryOwner, ReadOutcome};
use super::query_events::start_query;
use super::server_events::{after_server, flush, kill_server, store_fact};
use super::world::World;

/// Delay after which a journal that could not be read is tried again.
const READ_AGAIN: Nanos = Nanos::from_ms(60);

/// Begins the readings that are due.
pub(super) fn read_due(world: &mut World) {
    let (now, boot, host) = (world.kernel.now(), world.server.boot, world.slots.len());
    for (node, known) in world.server.due_readings(now) {
        if let Some(reading) = world.server.readings.get_mut(&node) {
            reading.runs = true;
        }
        provoke_late_commit(world, node);
        let (view, end) = (&known.view, known.end.lsn);
        let mut recovery = Recovery::of_node(view, end, now, ALL_MEMBERS_WAIT, QUERY_TIMEOUT);
        recovery.plant(world.kernel.planted());
        let owner = QueryOwner::Server { boot, node };
        start_query(world, QueryKind::Read(recovery), owner, host, view);
    }
}

/// Handles the members' answers about a dead node's journal.
pub(super) fn on_server_read(world: &mut World, node: NodeId, (verdict, windows): ReadOutcome) {
    let Some(reading) = world.server.readings.get_mut(&node) else {
        return;
    };
    reading.runs = false;
    let known = reading.known.clone();
    if let Err(refusal) = verdict {
        return on_reading_refused(world, node, &known, &refusal);
    }
    let mut records: Vec<(RecordNumber, PayloadBytes)> = Vec::new();
    let mut number = known.kept;
    let (end, all) = node_records(
        &windows,
        known.end,
        known.view.epoch,
        known.view.journal.into(),
        FaultSwitch::NONE,
        &mut |_| true,
        &mut |record: CheckedRecord<'_>| {
            number = number.next();
            records.push((number, PayloadBytes::from(record.payload())));
        },
    );
    if all.is_err() {
        let what = "intact members returned less than they claimed to hold";
        fail(RegionRule::Survives, what);
    }
    world
        .kernel
        .tell(|| format!("node {node} is read from {} to {}", known.end.lsn, end.lsn));
    world.kernel.hit("region: journals read");
    if !records.is_empty() {
        world.kernel.hit("region: journals read that had records");
    }
    check_read(world, node, &records);
    if let Some(process) = world.server.process_mut() {
        process.on_recovered(node, records);
    }
    after_server(world);
    let permille = world.kernel.profile.crash_readings_permille;
    if !world.kernel.is_calm() && world.kernel.rng.chance(permille) {
        world.kernel.hit("region: readings cut off by the server's death");
        kill_server(world);
    }
}

fn on_reading_refused(world: &mut World, node: NodeId, known: &Known, refusal: &RecoveryError) {
    let due = world.kernel.now() + READ_AGAIN;
    let Some(reading) = world.server.readings.get_mut(&node) else {
        return;
    };
    let again = reading.failed;
    reading.failed = true;
    reading.due = due;
    world
        .kernel
        .tell(|| format!("node {node} cannot be read: {refusal}"));
    world.kernel.hit("region: readings refused");
    if again && accepts_loss(world, node, known, refusal) {
        return;
    }
    if let Some(process) = world.server.process_mut() {
        process.on_stuck(node);
    }
    after_server(world);
}

/// Handles the end of telling a dead node's lenders, as far as they could be reached.
pub(super) fn on_server_forget_done(world: &mut World, node: NodeId, all: bool) {
    if !all {
        world
            .kernel
            .hit("region: nodes that are gone, and some lender could not be told");
    }
    let now = world.server.local(world.kernel.now());
    if let Some(process) = world.server.process_mut() {
        process.on_forget_tried(now, node, all);
    }
    after_server(world);
}

/// With everything healed and too few members left for a proof, gives up the unproven records, as an
/// operator does with `netram shared merge` for a journal that cannot be read.
fn accepts_loss(world: &mut World, node: NodeId, known: &Known, refusal: &RecoveryError) -> bool {
    let (now, since) = (world.kernel.now(), world.kernel.calm_since());
    if since.is_none_or(|since| now.since(since) <= Nanos::from_ms(1500)) {
        return false;
    }
    let intact = world.lenders.intact(&known.view);
    if intact >= known.view.answers() {
        let what = format!("node {node} could be read of {intact} members, and is not: {refusal}");
        fail(RegionRule::Ends, &what);
    }
    world
        .kernel
        .tell(|| format!("the loss of what node {node} had is accepted"));
    world.kernel.hit("region: losses accepted");
    world.history.excuse(node);
    // The server is stopped for that and restarted, so all nodes report their state.
    let all = world.server.pending_writes();
    flush(world, all);
    store_fact(world, DurableFact::Gone { node });
    kill_server(world);
    true
}
