//! Bags of references: items are pushed and removed, and move when they outgrow their room.

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::layout::{Bag, view};
use super::space::{BlockOwner, BlockTransaction};
use crate::error::Oo7Error;

/// Room of a bag's first block, in items.
const CAPACITY_FIRST: u32 = 4;

/// Offset of a bag's header, and of the items that are part of the block around it; zero if there are none.
#[derive(Clone, Copy)]
pub(super) struct BagLocation {
    pub(super) header: u64,
    pub(super) inline: u64,
}

impl BagLocation {
    /// A bag whose items always have their own block.
    pub(super) fn detached(header: u64) -> BagLocation {
        BagLocation { header, inline: 0 }
    }
}

/// Adds a reference.
pub(super) fn push<G: BlockTransaction>(
    ground: &mut G,
    place: BagLocation,
    item: u64,
) -> Result<(), Oo7Error> {
    let Bag { items, count, room } = *view(ground.bytes(), place.header, "a bag")?;
    let (items, count, room) = (items.get(), count.get(), room.get());
    if count < room {
        ground.write(items + 8 * u64::from(count), &item.to_le_bytes())?;
        return set_count(ground, place.header, count + 1);
    }
    let room = (2 * room).max(CAPACITY_FIRST);
    let moved = ground.allocate(BlockOwner::Block(place.header), 8 * room as usize)?;
    let bag = Bag {
        items: U64::new(items),
        count: U32::new(count),
        room: U32::new(room),
    };
    let mut bytes = bag.items(ground.bytes())?.as_bytes().to_vec();
    bytes.extend(item.to_le_bytes());
    ground.write(moved, &bytes)?;
    let bag = Bag {
        items: U64::new(moved),
        count: U32::new(count + 1),
        ..bag
    };
    ground.write(place.header, bag.as_bytes())?;
    free_items(ground, place, items)
}

/// Removes one occurrence of a reference; the last one takes its place.
pub(super) fn remove<G: BlockTransaction>(
    ground: &mut G,
    place: BagLocation,
    item: u64,
) -> Result<(), Oo7Error> {
    let bytes = ground.bytes();
    let bag: &Bag = view(bytes, place.header, "a bag")?;
    let (items, count) = (bag.items.get(), bag.count.get());
    let found = bag.items(bytes)?;
    let position = found.iter().position(|found| found.get() == item);
    let (Some(position), Some(last)) = (position, found.last()) else {
        return Err(Oo7Error::Damaged {
            what: "a reference back",
            at: item,
        });
    };
    let (last, position) = (last.get(), position as u64);
    if position + 1 < u64::from(count) {
        ground.write(items + 8 * position, &last.to_le_bytes())?;
    }
    set_count(ground, place.header, count - 1)
}

/// Frees the items of a bag that is removed.
pub(super) fn discard<G: BlockTransaction>(ground: &mut G, place: BagLocation) -> Result<(), Oo7Error> {
    let bag: &Bag = view(ground.bytes(), place.header, "a bag")?;
    let items = bag.items.get();
    free_items(ground, place, items)
}

fn free_items<G: BlockTransaction>(ground: &mut G, place: BagLocation, items: u64) -> Result<(), Oo7Error> {
    if items != 0 && items != place.inline {
        ground.free(items)?;
    }
    Ok(())
}

fn set_count<G: BlockTransaction>(ground: &mut G, header: u64, count: u32) -> Result<(), Oo7Error> {
    let at = header + std::mem::offset_of!(Bag, count) as u64;
    ground.write(at, &count.to_le_bytes())
}
