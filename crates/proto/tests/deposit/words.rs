//! Blocks of pages that stay where they are.

use netram_proto::deposit::{Blocks, Found, LenderSet, News, Page, Picked, Send, Ticket};
use netram_proto::limit::{DEPOSIT_LEASE, FRAME_BODY_BYTES_MAX, PAGE_BLOCKS};

use super::world::{Lender, World};

fn all() -> Blocks {
    Blocks::spaced(0, 1, PAGE_BLOCKS).unwrap()
}

fn asked(world: &mut World, page: u32, blocks: Blocks) -> Ticket {
    match world.depot.pick(Page(page), blocks) {
        Picked::Asked(ticket) => ticket,
        found => panic!("page {page} was found {found:?}"),
    }
}

#[test]
fn blocks_come_from_either_place_and_in_as_many_frames_as_they_need() {
    let mut world = World::new(2, &[64, 64]);
    (0..40).for_each(|page| world.put(page, page as u8));
    const { assert!(40 * PAGE_BLOCKS * 16 > 2 * FRAME_BODY_BYTES_MAX) };
    for dead in [0, 1] {
        let tickets: Vec<Ticket> = (0..40).map(|page| asked(&mut world, page, all())).collect();
        let few = asked(&mut world, 3, Blocks::listed(vec![255, 0]).unwrap());
        world.unlink(dead);
        world.settle();
        for (page, ticket) in tickets.iter().enumerate() {
            assert_eq!(world.gathered[ticket], vec![page as u8; 4096]);
        }
        assert_eq!(world.gathered[&few], [3; 32]);
        world.link(dead);
    }
    assert_eq!(world.depot.pick(Page(40), all()), Picked::Never);
}

#[test]
fn who_wanted_blocks_of_a_page_that_was_put_or_forgotten_looks_again() {
    let mut world = World::new(1, &[64]);
    (0..2).for_each(|page| world.put(page, 1));
    let tickets = [asked(&mut world, 0, all()), asked(&mut world, 1, all())];
    let sent = world.depot.poll(0, world.now).unwrap();
    let (header, body) = world.frame(0, sent);
    let version = world.depot.put(Page(0));
    world.aside.insert(Page(0), (version, vec![2; 4096]));
    world.depot.forget(Page(1));
    // What was asked comes, and nobody wants it any more.
    let (answer, body) = world.lenders[0].ask(header, &body);
    world.hear(0, &answer, &body).unwrap();
    world.settle();
    for ticket in tickets {
        assert!(world.news.contains(&News::Unpicked(ticket, None)));
        assert!(!world.gathered.contains_key(&ticket));
    }
    assert_eq!(world.depot.pick(Page(1), all()), Picked::Never);
    let ticket = asked(&mut world, 0, all());
    world.unlink(0);
    world.link(0);
    assert_eq!(world.gathered[&ticket], [2; 4096]);
}

#[test]
fn who_wanted_blocks_of_a_page_that_is_lost_learns_by_whom() {
    let mut world = World::new(2, &[64, 64]);
    world.put(5, 9);
    world.unlink(0);
    world.lenders[0] = Lender::new(77, 64);
    world.unlink(1);
    let ticket = asked(&mut world, 5, all());
    world.link(0);
    assert!(world.news.iter().all(|news| !matches!(news, News::Unpicked(..))));
    world.now = world.now + DEPOSIT_LEASE;
    world.depot.tick(world.now);
    world.settle();
    let both = LenderSet(3);
    assert_eq!(world.news.last(), Some(&News::Unpicked(ticket, Some(both))));
    assert_eq!(world.depot.pick(Page(5), all()), Picked::Lost(both));
}

#[test]
fn blocks_of_a_page_that_only_the_spill_file_has_come_with_their_page() {
    let mut world = World::apart(2, &[64], 64);
    let (lender, file) = (0, 1);
    [lender, file].into_iter().for_each(|which| world.link(which));
    world.put(5, 9);
    let given = asked(&mut world, 5, all());
    world.settle();
    assert_eq!(world.gathered[&given], [9; 4096]);
    // Who waits for the lender need not wait for it to come back.
    let ticket = asked(&mut world, 5, all());
    world.unlink(lender);
    assert_eq!(world.news.last(), Some(&News::Unpicked(ticket, None)));
    assert_eq!(world.depot.pick(Page(5), all()), Picked::Spilled);
    assert_eq!(world.depot.get(Page(5)), Found::Asked);
    world.settle();
    assert_eq!(world.came[&Page(5)], [9; 4096]);
    world.link(lender);
    asked(&mut world, 5, all());
}

#[test]
fn blocks_of_a_page_that_has_come_meanwhile_are_looked_for_in_it() {
    let mut world = World::new(2, &[64, 64]);
    world.put(5, 9);
    let ticket = asked(&mut world, 5, all());
    let picks_at = (0..2).find_map(|lender| Some((lender, world.depot.poll(lender, world.now)?)));
    let (slow, asked_slow) = picks_at.unwrap();
    // The other place has less on its way.
    assert_eq!(world.depot.get(Page(5)), Found::Asked);
    world.settle();
    assert_eq!(world.came[&Page(5)], [9; 4096]);
    assert_eq!(world.news.last(), Some(&News::Unpicked(ticket, None)));
    // What a liar gives when the page has been proven would never be found.
    let (header, body) = world.frame(slow, asked_slow);
    let (answer, body) = world.lenders[slow].ask(header, &body);
    world.hear(slow, &answer, &body).unwrap();
    assert!(!world.gathered.contains_key(&ticket));
}

#[test]
fn blocks_and_pages_take_turns() {
    let mut world = World::new(1, &[64]);
    (0..40).for_each(|page| world.put(page, page as u8));
    for page in 0..40 {
        asked(&mut world, page, all());
    }
    assert_eq!(world.depot.get(Page(3)), Found::Asked);
    let mut sent = Vec::new();
    while let Some(send) = world.depot.poll(0, world.now) {
        sent.push(matches!(send, Send::Gather(..)));
    }
    assert_eq!(sent, [true, false, true, true]);
}
