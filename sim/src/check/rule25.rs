//! Rule 25, *risk is not understated*: what the writer says would survive a loss of memory is really on a
//! disk, or in the memory of a member that the loss spares. A member that died a moment ago counts as there,
//! as does one that a newer writer has taken over: this writer has not noticed.

use netram_proto::id::Lsn;
use netram_proto::journal::{DataAtRisk, MemoryLoss, ViewMember};

use super::rule01::as_joined;
use super::violation::fail;
use crate::hosts::ClientHost;
use crate::process::ServingState;
use crate::world::World;

/// Checks what the writer says of data that the platter lacks.
pub(crate) fn not_understated(world: &World, process: usize, serving: &ServingState) {
    let writer = &serving.writer;
    let host = &world.hosts[world.processes[process].host];
    let acked = writer.acked();
    if acked <= host.history.durable || writer.fenced().is_some() || host.newer_epoch.is_some() {
        return;
    }
    if writer.status().version != host.view.version {
        // A view was stored, and the writer is told with its next event.
        return;
    }
    for risk in writer.at_risk(world.kernel.now()) {
        let left = Lsn(acked.0 - risk.bytes);
        let copy = writer.replica_ack().is_some_and(|kept| left <= kept.lsn);
        if !copy && !survives(world, host, &risk, left) {
            fail(
                25,
                format!(
                    "process {process} says that a loss of memory of {} leaves all below {left} of {acked}; the platter has \
                     it below {}, and no member that is left has the rest",
                    risk.lost, host.history.durable
                ),
            );
        }
    }
}

fn survives(world: &World, host: &ClientHost, risk: &DataAtRisk, left: Lsn) -> bool {
    let server = world.server.as_ref().map(|server| server.merged_end.lsn);
    let on_disks = host.history.durable.max(server.unwrap_or_default());
    let has_machine = matches!(&risk.lost, MemoryLoss::Domain(name) if name != "d0");
    let spares = |member: &&ViewMember| {
        let index = world.lenders.lender_of(member);
        let domain = &world.lenders[index].domain;
        match &risk.lost {
            // It may have claimed any domain.
            _ if world.lenders.is_untrusted(index) => true,
            MemoryLoss::Machine => true,
            MemoryLoss::Domain(name) | MemoryLoss::MachineAndDomain(name) => domain != name,
            MemoryLoss::All => false,
        }
    };
    let mut members = host.view.members.iter().filter(spares);
    left <= on_disks || has_machine || members.any(|member| holds(world, host, member, left))
}

fn holds(world: &World, host: &ClientHost, member: &ViewMember, left: Lsn) -> bool {
    let index = world.lenders.lender_of(member);
    let (lender, state) = (&world.lenders[index], world.lenders[index].state());
    let is_there = lender.incarnation == member.incarnation && as_joined(member, &state);
    let has = state.joined && state.trim <= host.history.durable && state.held >= left;
    let is_taken_over = state.epoch > host.view.epoch;
    world.lenders.is_untrusted(index)
        || is_taken_over
        || world.lenders.has_lost_recently(index, world.kernel.now())
        || is_there && has
}
