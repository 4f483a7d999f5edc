//! Rule 5, *recovery is provable or refused*: a journal that opens has everything that was ever acknowledged,
//! on the platter, before it serves. The members' answers are all that they will ever hold of the old epoch.
//!
//! Rules 6 and 7 are checked at the same moment: see [`super::rule06`].

use netram_proto::id::Lsn;
use netram_proto::journal::{PeerAnswer, PeerWindow, View};
use netram_proto::wire::ChainPoint;

use super::violation::fail;
use super::{rule06, rule16};
use crate::world::World;

/// Checks the answers that recovery takes as sufficient.
pub(crate) fn answered(
    world: &mut World,
    process: usize,
    view: &View,
    answers: &[PeerAnswer],
    windows: &[PeerWindow],
) {
    let complete: Vec<usize> = (0..answers.len())
        .filter(|&index| answers[index] == PeerAnswer::Complete)
        .collect();
    let needed = if view.counting {
        (view.members.len() + 1).saturating_sub(view.rule.copies(view.members.len()))
    } else {
        0
    };
    if complete.len() < needed {
        fail(
            5,
            format!(
                "recovery was content with {} of {needed} answers needed",
                complete.len()
            ),
        );
    }
    for (index, window) in complete.into_iter().zip(windows) {
        let member = &view.members[index];
        let number = world.lenders.lender_of(member);
        let lender = &world.lenders[number];
        if world.lenders.is_untrusted(number) {
            continue;
        }
        let state = lender.state();
        if lender.incarnation != member.incarnation {
            // The member may have lost its memory after it was read. If it lost it before, it could not have
            // answered.
            if !world.lenders.has_lost_recently(number, world.kernel.now()) {
                fail(
                    5,
                    format!("lender {number} counts as an answer with the memory of another life"),
                );
            }
            continue;
        }
        let read_to = window.from.plus(window.bytes.len() as u64);
        let taken_over = state.writer != world.processes[process].writer;
        if !taken_over {
            rule16::as_joined(number, member, &state);
        }
        if !taken_over && state.joined && read_to < state.held.max(window.from) {
            fail(
                5,
                format!(
                    "lender {number} holds up to {}, recovery read up to {read_to}",
                    state.held
                ),
            );
        }
    }
}

/// Checks a journal that is about to serve and ends at `end`.
pub(crate) fn recovered(
    world: &mut World,
    process: usize,
    end: ChainPoint,
    head: ChainPoint,
    accept_loss: bool,
) {
    let host = world.processes[process].host;
    rule06::genuine(world, host, head, end);
    let (acked, promised) = (
        world.hosts[host].history.acked,
        world.hosts.promised_to_copy(host),
    );
    // A node's own disk may lack the records that the region's server keeps. Above those the members have
    // everything.
    let elsewhere = world
        .server
        .as_ref()
        .is_some_and(|server| acked <= server.merged_end.lsn);
    let must = if elsewhere { Lsn(0) } else { acked.max(promised) };
    let decidable = world.kernel.profile.hostile.is_none();
    if end.lsn < must && !accept_loss && decidable {
        fail(
            5,
            format!(
                "recovery ended at {} and said nothing; {must} had been acknowledged",
                end.lsn
            ),
        );
    }
    if end.lsn < must {
        world.kernel.hit("losses that were accepted");
    }
    let replicated = world.data.exists();
    let World { kernel, hosts, .. } = world;
    hosts.adopt(kernel, host, (end, head.lsn), (accept_loss, replicated));
    on_platter(world, host, head.lsn, end.lsn);
}

/// Checks that everything recovered is on the platter before anything is served.
fn on_platter(world: &mut World, host: usize, head: Lsn, end: Lsn) {
    let from = head;
    if let Some(at) = world.hosts.platter_lacks(host, from, end) {
        fail(
            5,
            format!("the journal serves from {from} to {end}, and the platter has something else at {at}"),
        );
    }
    world.hosts[host].history.durable = end;
}
