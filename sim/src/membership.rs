//! Operators who change lenders, commit rule and number of members of the journal, whether a process has it
//! open or not. The settings file, here the profile, changes only if the open journal takes the order.

use netram_proto::journal::{CommitRule, JournalMembership, MembershipError};

use crate::process::events::settle;
use crate::process::life::with_serving;
use crate::profile::WorldProfile;
use crate::world::World;

/// An operator's order.
#[derive(Clone, Debug)]
pub(crate) struct MembershipOrder {
    /// Whether each address is in the settings.
    pub(crate) named: Vec<bool>,
    pub(crate) rule: CommitRule,
    pub(crate) wanted: usize,
}

impl MembershipOrder {
    /// The order that changes nothing.
    pub(crate) fn present(world: &World) -> MembershipOrder {
        MembershipOrder {
            named: world.lenders.named().to_vec(),
            rule: world.kernel.profile.rule,
            wanted: world.kernel.profile.wanted,
        }
    }

    fn membership(&self, min: usize) -> JournalMembership {
        let named = self.named.iter().enumerate().filter(|(_, named)| **named);
        JournalMembership {
            lenders: named.map(|(address, _)| format!("l{address}")).collect(),
            rule: self.rule,
            wanted: self.wanted,
            min,
        }
    }

    /// Whether a view of the named lenders can count, so that waits for members end.
    fn can_count(&self, world: &World) -> bool {
        let profile = WorldProfile {
            rule: self.rule,
            wanted: self.wanted,
            ..world.kernel.profile.clone()
        };
        let at = |lender: usize| {
            let mut addresses = (0..self.named.len()).filter(|&address| self.named[address]);
            addresses.any(|address| world.lenders.at_address(address) == Some(lender))
        };
        profile.can_count_with(&at)
    }
}

/// Gives a random order.
pub(crate) fn change(world: &mut World) {
    let mut order = MembershipOrder::present(world);
    let rng = &mut world.kernel.rng;
    for _ in 0..rng.between(1, 2) {
        match rng.below(5) {
            0..3 => {
                let address = rng.index(order.named.len());
                order.named[address] = !order.named[address];
            }
            3 => order.wanted = rng.between(1, 3) as usize,
            _ => order.rule = draw_rule(rng.below(3), rng.between(1, 3) as u8),
        }
    }
    let min = world.kernel.profile.min;
    order.wanted = order.wanted.max(min);
    if order.membership(min).check().is_ok() && order.can_count(world) {
        give(world, &order);
    }
}

pub(crate) fn draw_rule(kind: u64, copies: u8) -> CommitRule {
    match kind {
        0 => CommitRule::All,
        1 => CommitRule::Any,
        _ => CommitRule::AtLeast(copies),
    }
}

/// Gives `order` to the process that has the journal open, and changes the settings. Returns whether it was
/// taken.
pub(crate) fn give(world: &mut World, order: &MembershipOrder) -> bool {
    let membership = order.membership(world.kernel.profile.min);
    match world.processes.living(0) {
        Some(process) if world.processes.serving(process).is_some() => {
            let now = world.kernel.now();
            let taken = with_serving(world, process, |_, serving| {
                serving.writer.on_membership(&membership, now)
            });
            match taken {
                Some(Ok(())) => (),
                // The fence, or the disk's failure, ends this process sooner or later.
                Some(Err(MembershipError::Ended | MembershipError::NoneLeft)) | None => return false,
                Some(Err(refusal)) => panic!("{membership:?} was refused: {refusal}"),
            }
            world.kernel.hit("memberships changed while serving");
            follow(world, process);
            change_settings(world, order);
            settle(world, process);
        }
        // A process that recovers has read the settings already.
        Some(_) => return false,
        None => change_settings(world, order),
    }
    world.kernel.tell(|| format!("an operator orders {membership:?}"));
    true
}

fn change_settings(world: &mut World, order: &MembershipOrder) {
    world.lenders.set_named(&order.named);
    world.kernel.profile.rule = order.rule;
    world.kernel.profile.wanted = order.wanted;
}

/// Lets the process's slots lead to the addresses that its writer has for them.
fn follow(world: &mut World, process: usize) {
    with_serving(world, process, |world, serving| {
        for slot in serving.writer.take_disconnects().iter() {
            if let Some(conn) = world.network.slots().conn(process, slot) {
                world
                    .network
                    .close_here(&mut world.kernel, &mut world.lenders, conn);
            }
        }
        for slot in 0..serving.writer.lender_count() {
            let address = serving.writer.address(slot);
            if let Some(number) = address.strip_prefix('l').and_then(|number| number.parse().ok()) {
                world.network.slots_mut().lead(process, slot, number);
            }
        }
    });
}

/// Names all lenders again.
pub(crate) fn name_all(world: &mut World) {
    let mut order = MembershipOrder::present(world);
    if order.named.iter().all(|named| *named) {
        return;
    }
    order.named.fill(true);
    if !give(world, &order) {
        change_settings(world, &order);
    }
}
