//! Lenders join and leave an open journal one after the other under load, and its rule and number of members
//! change. At no moment may the durable view have fewer copies than both the old and the new settings ask
//! for, and every change is done in the end. Now and then the client crashes in the midst of one.

use netram_proto::time::Nanos;

use super::{drains, journal};
use crate::check::rule03;
use crate::membership::{self, MembershipOrder};
use crate::process::life::crash;
use crate::world::World;

/// Maximum time of a change for which there are enough lenders.
const CHANGE_MAX: Nanos = Nanos::from_ms(10_000);
/// Time between two looks at whether a change is done.
const PAUSE: Nanos = Nanos::from_ms(5);
/// Time in which all lenders join after an opening.
const START: Nanos = Nanos::from_ms(2000);

pub(super) fn run(world: &mut World) {
    let Some(mut process) = journal::open(world, 0) else {
        return;
    };
    drains::commit_for(world, process, START);
    for _ in 0..world.kernel.rng.between(3, 8) {
        let before = world.kernel.profile.wanted;
        let Some(order) = draw(world) else { continue };
        world.copies_promised = before.min(order.wanted);
        assert!(membership::give(world, &order), "nothing prevents a change here");
        if world.kernel.rng.chance(300) {
            let ms = world.kernel.rng.pick(&[0, 1, 5, 20, 200]);
            drains::commit_for(world, process, Nanos::from_ms(ms));
            world.kernel.hit("elastic: crashes in the midst of a change");
            world.copies_promised = 0;
            let cut = world.kernel.rng.chance(500);
            crash(world, process, cut);
            let Some(next) = journal::open(world, 0) else {
                return;
            };
            process = next;
            drains::commit_for(world, process, START);
        }
        let until = world.kernel.now() + CHANGE_MAX;
        while !rule03::is_as_ordered(world, process) && world.kernel.now() < until {
            drains::commit_for(world, process, PAUSE);
        }
        rule03::has_changed(world, process);
        world.copies_promised = order.wanted;
        let ms = world.kernel.rng.pick(&[0, 5, 300, 2000]);
        drains::commit_for(world, process, Nanos::from_ms(ms));
    }
    world.copies_promised = 0;
    membership::name_all(world);
    journal::settle_down(world, 0);
}

/// An order for which there are enough lenders.
fn draw(world: &mut World) -> Option<MembershipOrder> {
    let mut order = MembershipOrder::present(world);
    let min = world.kernel.profile.min;
    let rng = &mut world.kernel.rng;
    let address = rng.index(order.named.len());
    order.named[address] = !order.named[address] || rng.chance(200);
    let named = order.named.iter().filter(|named| **named).count();
    if named < min {
        return None;
    }
    if rng.chance(500) {
        order.wanted = rng.between(min as u64, named as u64) as usize;
    }
    order.wanted = order.wanted.min(named);
    if rng.chance(300) || order.rule.copies(order.wanted) > order.wanted {
        let copies = rng.between(1, order.wanted as u64) as u8;
        order.rule = membership::draw_rule(rng.below(3), copies);
    }
    Some(order)
}
