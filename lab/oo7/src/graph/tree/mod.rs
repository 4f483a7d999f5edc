//! Indexes: AVL trees in blocks.
//!
//! An operation copies the nodes that it visits and works on the copies. At the end it writes each changed
//! node once, from the first to the last changed byte, so that each node costs one declared range.

use std::cmp::Ordering;
use std::mem::offset_of;

use zerocopy::{FromZeros, IntoBytes};

use super::layout::{IndexRow, NodeRow, view};
use super::space::{BlockOwner, BlockTransaction};
use crate::error::Oo7Error;
use crate::text::TITLE_BYTES;

mod lookup;
#[cfg(test)]
mod tests;

use lookup::{compare, cycle_error, root};
pub(super) use lookup::{find, range};

/// Maximum depth of a walk, more than any tree in memory needs. It ends the walk in a damaged one.
const DEPTH_MAX: usize = 96;

/// Sort key of a tree.
#[derive(Clone, Copy)]
pub(super) enum IndexKey<'k> {
    /// The node's own number.
    Number(u64),
    /// The title of the document that the node's value names.
    Title(&'k [u8; TITLE_BYTES]),
}

/// Nodes that an operation has visited. Reused between operations to keep its allocation.
#[derive(Debug, Default)]
pub(super) struct VisitedNodes {
    nodes: Vec<NodeCopy>,
    path: Vec<(usize, ChildSide)>,
}

#[derive(Debug)]
struct NodeCopy {
    at: u64,
    node: NodeRow,
    /// The node in memory; `None` if it is new.
    before: Option<NodeRow>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChildSide {
    Left,
    Right,
}

impl NodeRow {
    fn child(&self, side: ChildSide) -> u64 {
        match side {
            ChildSide::Left => self.left.get(),
            ChildSide::Right => self.right.get(),
        }
    }

    fn set_child(&mut self, side: ChildSide, at: u64) {
        match side {
            ChildSide::Left => self.left.set(at),
            ChildSide::Right => self.right.set(at),
        }
    }
}

impl ChildSide {
    fn other(self) -> ChildSide {
        match self {
            ChildSide::Left => ChildSide::Right,
            ChildSide::Right => ChildSide::Left,
        }
    }

    /// Change of a node's balance when this side becomes higher by one.
    fn sign(self) -> i32 {
        match self {
            ChildSide::Left => -1,
            ChildSide::Right => 1,
        }
    }
}

/// Inserts a value under a key, unless there is one already.
pub(super) fn insert<G: BlockTransaction>(
    ground: &mut G,
    met: &mut VisitedNodes,
    index: u64,
    (key, value): (IndexKey<'_>, u64),
) -> Result<(), Oo7Error> {
    let mut tree = AvlTree::new(ground, met, index);
    if tree.descend(key)?.is_some() {
        return Ok(());
    }
    let mut node = NodeRow::new_zeroed();
    if let IndexKey::Number(number) = key {
        node.key.set(number);
    }
    node.value.set(value);
    let at = tree.allocate_node()?;
    tree.met.nodes.push(NodeCopy {
        at,
        node,
        before: None,
    });
    tree.link(tree.met.path.len(), at)?;
    tree.rebalance_after_insert()?;
    tree.write()
}

/// Removes a key.
pub(super) fn remove<G: BlockTransaction>(
    ground: &mut G,
    met: &mut VisitedNodes,
    index: u64,
    key: IndexKey<'_>,
) -> Result<(), Oo7Error> {
    let mut tree = AvlTree::new(ground, met, index);
    let Some(found) = tree.descend(key)? else {
        return Ok(());
    };
    let NodeRow { left, right, .. } = tree.met.nodes[found].node;
    let mut leaving = found;
    if left.get() != 0 && right.get() != 0 {
        // The next larger node's contents move here, and its block is freed.
        tree.met.path.push((found, ChildSide::Right));
        leaving = tree.copy(right.get())?;
        while tree.met.nodes[leaving].node.left.get() != 0 {
            tree.met.path.push((leaving, ChildSide::Left));
            leaving = tree.copy(tree.met.nodes[leaving].node.left.get())?;
        }
        let NodeRow { key, value, .. } = tree.met.nodes[leaving].node;
        let node = &mut tree.met.nodes[found].node;
        (node.key, node.value) = (key, value);
    }
    let NodeRow { left, right, .. } = tree.met.nodes[leaving].node;
    let below = if left.get() != 0 { left } else { right };
    tree.link(tree.met.path.len(), below.get())?;
    tree.rebalance_after_remove()?;
    let gone = tree.met.nodes.swap_remove(leaving).at;
    tree.write()?;
    tree.free_node(gone)
}

struct AvlTree<'t, G> {
    ground: &'t mut G,
    met: &'t mut VisitedNodes,
    index: u64,
}

impl<'t, G: BlockTransaction> AvlTree<'t, G> {
    fn new(ground: &'t mut G, met: &'t mut VisitedNodes, index: u64) -> AvlTree<'t, G> {
        met.nodes.clear();
        met.path.clear();
        AvlTree { ground, met, index }
    }

    /// Follows a key down and records the path. Returns its node.
    fn descend(&mut self, key: IndexKey<'_>) -> Result<Option<usize>, Oo7Error> {
        let mut at = root(self.ground.bytes(), self.index)?;
        while at != 0 {
            if self.met.path.len() > DEPTH_MAX {
                return Err(cycle_error(self.index));
            }
            let bytes = self.ground.bytes();
            let node: NodeRow = *view(bytes, at, "a node of an index")?;
            let order = compare(bytes, key, &node)?;
            self.met.nodes.push(NodeCopy {
                at,
                node,
                before: Some(node),
            });
            let place = self.met.nodes.len() - 1;
            let side = match order {
                Ordering::Equal => return Ok(Some(place)),
                Ordering::Less => ChildSide::Left,
                Ordering::Greater => ChildSide::Right,
            };
            self.met.path.push((place, side));
            at = node.child(side);
        }
        Ok(None)
    }

    /// The copy of a node, made on first use.
    fn copy(&mut self, at: u64) -> Result<usize, Oo7Error> {
        if let Some(place) = self.met.nodes.iter().position(|copied| copied.at == at) {
            return Ok(place);
        }
        let node: NodeRow = *view(self.ground.bytes(), at, "a node of an index")?;
        self.met.nodes.push(NodeCopy {
            at,
            node,
            before: Some(node),
        });
        Ok(self.met.nodes.len() - 1)
    }

    /// Attaches a subtree below the first `above` nodes of the path.
    fn link(&mut self, above: usize, at: u64) -> Result<(), Oo7Error> {
        match above.checked_sub(1) {
            Some(last) => {
                let (place, side) = self.met.path[last];
                self.met.nodes[place].node.set_child(side, at);
                Ok(())
            }
            // The root is the index's first field.
            None => self.ground.write(self.index, &at.to_le_bytes()),
        }
    }

    /// Adjusts balances upward after the subtree at the path's end became higher by one, until a node's other
    /// side compensates.
    fn rebalance_after_insert(&mut self) -> Result<(), Oo7Error> {
        for depth in (0..self.met.path.len()).rev() {
            let (place, side) = self.met.path[depth];
            match self.adjust_balance(place, side.sign()) {
                0 => return Ok(()),
                -1 | 1 => (),
                _ => {
                    let (top, _) = self.rotate(place, side)?;
                    return self.link(depth, top);
                }
            }
        }
        Ok(())
    }

    /// Adjusts balances upward after the subtree at the path's end became lower by one, until a node keeps
    /// its height.
    fn rebalance_after_remove(&mut self) -> Result<(), Oo7Error> {
        for depth in (0..self.met.path.len()).rev() {
            let (place, side) = self.met.path[depth];
            match self.adjust_balance(place, -side.sign()) {
                0 => (),
                -1 | 1 => return Ok(()),
                _ => {
                    let (top, lower) = self.rotate(place, side.other())?;
                    self.link(depth, top)?;
                    if !lower {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }

    /// Changes a node's balance towards one side; returns the new balance.
    fn adjust_balance(&mut self, place: usize, more: i32) -> i32 {
        let balance = &mut self.met.nodes[place].node.balance;
        balance.set(balance.get() + more);
        balance.get()
    }

    /// Rotates a node with the child on its heavy side. Returns the new subtree's root, and whether the
    /// subtree became lower.
    fn rotate(&mut self, place: usize, heavy: ChildSide) -> Result<(u64, bool), Oo7Error> {
        let sign = heavy.sign();
        let child = self.copy(self.met.nodes[place].node.child(heavy))?;
        let leaning = self.met.nodes[child].node.balance.get();
        if leaning != -sign {
            let even = leaning == 0;
            self.replace_child(place, child, heavy);
            self.balance(place, if even { sign } else { 0 });
            self.balance(child, if even { -sign } else { 0 });
            return Ok((self.met.nodes[child].at, !even));
        }
        let inner = self.copy(self.met.nodes[child].node.child(heavy.other()))?;
        let leaning = self.met.nodes[inner].node.balance.get();
        self.replace_child(child, inner, heavy.other());
        let risen = self.met.nodes[inner].at;
        self.met.nodes[place].node.set_child(heavy, risen);
        self.replace_child(place, inner, heavy);
        self.balance(place, if leaning == sign { -sign } else { 0 });
        self.balance(child, if leaning == -sign { sign } else { 0 });
        self.balance(inner, 0);
        Ok((risen, true))
    }

    /// Moves a node below its child on the given side; the parent is not updated.
    fn replace_child(&mut self, place: usize, child: usize, side: ChildSide) {
        let between = self.met.nodes[child].node.child(side.other());
        let at = self.met.nodes[place].at;
        self.met.nodes[place].node.set_child(side, between);
        self.met.nodes[child].node.set_child(side.other(), at);
    }

    fn balance(&mut self, place: usize, balance: i32) {
        self.met.nodes[place].node.balance.set(balance);
    }

    /// Allocates a block for a node: one that the index has unused, or a new one.
    ///
    /// Blocks freed to the heap stay taken until the transaction ends, and a traversal that moves every part
    /// in the index would need one for each.
    fn allocate_node(&mut self) -> Result<u64, Oo7Error> {
        let bytes = self.ground.bytes();
        let index: &IndexRow = view(bytes, self.index, "an index")?;
        let at = index.spare.get();
        if at == 0 {
            return self
                .ground
                .allocate(BlockOwner::Block(self.index), size_of::<NodeRow>());
        }
        let node: &NodeRow = view(bytes, at, "a node that waits")?;
        let next = node.left.get();
        self.ground.write(self.spare_at(), &next.to_le_bytes())?;
        Ok(at)
    }

    /// Keeps a block for the index's next allocation.
    fn free_node(&mut self, at: u64) -> Result<(), Oo7Error> {
        let index: &IndexRow = view(self.ground.bytes(), self.index, "an index")?;
        let next = index.spare;
        let left = at + offset_of!(NodeRow, left) as u64;
        self.ground.write(left, next.as_bytes())?;
        self.ground.write(self.spare_at(), &at.to_le_bytes())
    }

    fn spare_at(&self) -> u64 {
        self.index + offset_of!(IndexRow, spare) as u64
    }

    /// Writes the changed nodes.
    fn write(&mut self) -> Result<(), Oo7Error> {
        for NodeCopy { at, node, before } in &self.met.nodes {
            let bytes = node.as_bytes();
            let Some(before) = before else {
                self.ground.write(*at, bytes)?;
                continue;
            };
            let differs = |(old, new): (&u8, &u8)| old != new;
            let before = before.as_bytes();
            let first = before.iter().zip(bytes).position(differs);
            let last = before.iter().zip(bytes).rposition(differs);
            if let (Some(first), Some(last)) = (first, last) {
                self.ground.write(at + first as u64, &bytes[first..=last])?;
            }
        }
        Ok(())
    }
}
