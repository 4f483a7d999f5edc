//! Progress that must happen in the end: with all faults healed a journal opens, a commit finishes, and the
//! view grows back to its wanted size.

use netram_proto::id::Epoch;
use netram_proto::journal::RecoveryError;
use netram_proto::time::Nanos;

use super::rule01;
use super::violation::fail;
use crate::process::OpenFailure;
use crate::world::World;

/// Time after which a program gives up waiting.
pub(crate) const WAIT_MAX: Nanos = Nanos::from_ms(30_000);
/// Maximum number of calls that a program makes without an event between them. One that makes more would loop
/// for ever.
const CALLS_MAX: u32 = 1_000_000;

/// A program asked the log for its state.
pub(crate) fn called(world: &mut World) {
    if world.kernel.count_call() > CALLS_MAX {
        fail(
            0,
            String::from("a program asks and asks, and lets nothing happen"),
        );
    }
}

/// Fails the run: a program has waited as long as it will. A failed disk excuses that. If only members are
/// missing, so do lenders that obey another writer, which leave too few (seed 503563).
pub(crate) fn waited(world: &World, process: usize) {
    let Some(serving) = world.processes.serving(process) else {
        return;
    };
    let writer = &serving.writer;
    let lacks_members_only = writer.acked().min(writer.stable()) == writer.tail();
    let excused = lacks_members_only && is_deserted(world, process, writer.epoch());
    if serving.poisoned.is_none() && writer.fenced().is_none() && !excused {
        fail(
            0,
            format!(
                "process {process} waited {} ms and its disk has not failed",
                WAIT_MAX.ms()
            ),
        );
    }
}

/// Whether so many lenders obey another writer that the rest cannot be a view that counts.
fn is_deserted(world: &World, process: usize, epoch: Epoch) -> bool {
    let profile = &world.kernel.profile;
    let writer = world.processes[process].writer;
    let obeys = |lender: usize| {
        let state = world.lenders[lender].state();
        state.epoch < epoch || (state.epoch, state.writer) == (epoch, writer)
    };
    profile.can_count() && !profile.can_count_with(&obeys)
}

/// Checks that after healing the view has the wanted size, or all lenders if there are fewer.
pub(crate) fn grown_back(world: &World, process: usize) {
    has_wanted(world, process, world.kernel.profile.members_possible());
}

/// Checks that the view has `wanted` members, for which there are lenders.
pub(crate) fn has_wanted(world: &World, process: usize, wanted: usize) {
    let Some(serving) = world.processes.serving(process) else {
        return;
    };
    let have = serving.writer.view().len();
    if have < wanted {
        fail(
            0,
            format!(
                "there are lenders enough, yet the view has {have} of {wanted} members: {:?}",
                serving.writer.status()
            ),
        );
    }
}

/// Checks a refused opening with everything healed: too many members are lost, or the log is damaged.
pub(crate) fn refused(world: &mut World, host: usize, failure: &OpenFailure) {
    let view = &world.hosts[host].view;
    match failure {
        OpenFailure::Refused(RecoveryError::Missing { answered, needed, .. }) => {
            // A view whose store was cut off may be in the page cache but not on the platter. It may demand
            // more members, or name fewer of those that have everything (seed 6093678).
            let found = &world.hosts[host].cached_view;
            let intact = rule01::intact(world, view).min(rule01::intact(world, found));
            if intact >= view.answers().max(*needed) && !world.lenders.has_liars() {
                fail(
                    5,
                    format!(
                        "recovery found {answered} answers although {intact} of the {} members of view {} are intact and {} suffice",
                        view.members.len(),
                        view.version,
                        view.answers()
                    ),
                );
            }
            if world.kernel.profile.within_budget && !world.lenders.has_liars() && world.hosts.len() == 1 {
                fail(
                    5,
                    String::from("recovery refused although no more was lost than the rule allows"),
                );
            }
        }
        OpenFailure::Corrupt { at } => {
            if !world.hosts[host].damaged && !world.lenders.has_liars() && world.hosts.len() == 1 {
                fail(8, format!("recovery calls the log damaged at {at}; nothing was"));
            }
        }
        OpenFailure::Refused(RecoveryError::Fenced { .. })
            if world.hosts.len() > 1 || world.lenders.has_liars() => {}
        OpenFailure::Crashed => (),
        other => fail(
            0,
            format!("everything is healed, yet the journal does not open: {other:?}"),
        ),
    }
}

/// With everything healed and loss accepted, a journal opens.
pub(crate) fn refused_loss(world: &World, host: usize, failure: &OpenFailure) {
    let excused = world.lenders.has_liars() || world.hosts.len() > 1 || world.hosts[host].damaged;
    if *failure != OpenFailure::Crashed && !excused {
        fail(
            0,
            format!("loss was accepted, yet the journal does not open: {failure:?}"),
        );
    }
}

/// Checks that a first writer that still runs has learnt that it was fenced.
pub(crate) fn fenced(world: &mut World, first: usize, copy: usize) {
    let overtaken = world.hosts[copy].copied_from.is_none() && world.processes.living(copy).is_some();
    let Some(serving) = world.processes.serving(first) else {
        return;
    };
    if overtaken && serving.writer.fenced().is_none() && !world.lenders.has_liars() {
        fail(
            4,
            String::from("the first writer goes on and has not learnt that it was overtaken"),
        );
    }
    world.kernel.hit("first writers that learnt their fate");
}
