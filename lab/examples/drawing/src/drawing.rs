//! The drawing, as an object graph in shared memory.
//!
//! ```text
//! lock 0      heap     root --> group of author 1 --> group of author 2 ...      a layer
//! lock 1      heap                  |
//! lock 2      heap                  +--> stroke --> stroke ...                   newest first
//!                                          |
//!                                          +--> points
//! ```
//!
//! A layer is a persistent heap under one lock. A process that draws in a layer holds its lock; editors in
//! different layers do not wait for each other. A pointer is an offset in the region, so it is valid in every
//! process.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context;
use netram_heap::{BlockAccessError, BorrowedHeap, Heap, Ptr, Slice};
use netram_proto::port::Durability;
use netram_rvm::RestoreMode;
use netram_shared::{Node, Txn};
use netram_shared_machine::{LockId, LockMode};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Number of layers of the drawing: locks of the region.
pub(crate) const LAYERS: u32 = 3;
/// Size of a layer in bytes.
pub(crate) const LAYER_BYTES: u64 = 8 << 20;
/// Width and height of the drawing.
pub(crate) const SIZE: i16 = 1000;

/// Root of a layer's heap that points to its first group.
const GROUPS: usize = 0;

/// All strokes of one author in a layer.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Group {
    next: Ptr<Group>,
    strokes: Ptr<Stroke>,
    author: u32,
    /// Position of the group: moving it moves its strokes.
    at: DrawingPoint,
}

/// A line through some points.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Stroke {
    next: Ptr<Stroke>,
    points: Slice<DrawingPoint>,
    /// Number among all strokes of its author, from 1.
    number: u64,
}

/// A point of the drawing, or relative to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct DrawingPoint {
    pub(crate) x: i16,
    pub(crate) y: i16,
}

/// Visible part of a stroke.
pub(crate) struct VisibleStroke {
    pub(crate) author: u32,
    pub(crate) number: u64,
    pub(crate) points: Vec<DrawingPoint>,
}

/// Creates the empty layers, once in the region's life.
pub(crate) fn create(node: &Node) -> anyhow::Result<()> {
    for layer in 0..LAYERS {
        let mut txn = begin(node, layer, LockMode::Exclusive)?;
        txn.format_heap(LockId(layer))?;
        txn.commit(Durability::Remote)?;
    }
    Ok(())
}

/// Draws a stroke. When it returns, the stroke is safe and visible in every process.
pub(crate) fn draw(
    node: &Node,
    layer: u32,
    (author, number): (u32, u64),
    points: &[DrawingPoint],
) -> anyhow::Result<()> {
    let mut txn = begin(node, layer, LockMode::Exclusive)?;
    let heap = txn.heap(LockId(layer))?;
    let group = group_of(&mut txn, layer, author)?;
    let stroke = Stroke {
        next: heap.get(group)?.strokes,
        points: heap.alloc_slice(&mut txn, points)?,
        number,
    };
    let stroke = heap.alloc(&mut txn, &stroke)?;
    heap.edit(&mut txn).get_mut(group)?.strokes = stroke;
    txn.commit(Durability::Remote)?;
    Ok(())
}

/// Moves all strokes of an author in a layer with one small change.
pub(crate) fn shift(node: &Node, layer: u32, author: u32, to: DrawingPoint) -> anyhow::Result<()> {
    let mut txn = begin(node, layer, LockMode::Exclusive)?;
    let heap = txn.heap(LockId(layer))?;
    let group = group_of(&mut txn, layer, author)?;
    heap.edit(&mut txn).get_mut(group)?.at = to;
    txn.commit(Durability::Remote)?;
    Ok(())
}

/// Redraws an author's newest stroke in a layer, and frees its old points.
pub(crate) fn redraw(node: &Node, layer: u32, author: u32, points: &[DrawingPoint]) -> anyhow::Result<()> {
    let mut txn = begin(node, layer, LockMode::Exclusive)?;
    let heap = txn.heap(LockId(layer))?;
    let group = group_of(&mut txn, layer, author)?;
    let newest = heap.get(group)?.strokes;
    if !newest.is_null() {
        let mut stroke = heap.get(newest)?;
        heap.free(&mut txn, stroke.points.block())?;
        stroke.points = heap.alloc_slice(&mut txn, points)?;
        heap.set(&mut txn, newest, &stroke)?;
    }
    txn.commit(Durability::Remote)?;
    Ok(())
}

/// The whole drawing as it is now, read layer by layer under the locks.
pub(crate) fn current(node: &Node) -> anyhow::Result<Vec<VisibleStroke>> {
    let mut seen = Vec::new();
    for layer in 0..LAYERS {
        let txn = begin(node, layer, LockMode::Shared)?;
        let heap = txn.heap(LockId(layer))?;
        heap.check().with_context(|| format!("layer {layer}"))?;
        read_layer(&heap.borrowed_view(&node.region().read()), &mut seen)?;
        txn.commit(Durability::Remote)?;
    }
    Ok(seen)
}

/// The layers, for readers without locks.
pub(crate) fn layers(node: &Node) -> anyhow::Result<Vec<Arc<Heap>>> {
    let layer = |layer| Ok(begin(node, layer, LockMode::Shared)?.heap(LockId(layer))?);
    (0..LAYERS).map(layer).collect()
}

/// The whole drawing at one moment, without any lock: editors do not wait for viewers.
pub(crate) fn snapshot(node: &Node, layers: &[Arc<Heap>]) -> anyhow::Result<Vec<VisibleStroke>> {
    let reader = node.reader()?;
    let bytes = reader.read()?;
    let mut seen = Vec::new();
    for heap in layers {
        read_layer(&heap.borrowed_view(&bytes), &mut seen)?;
    }
    Ok(seen)
}

/// Number of strokes of each author.
pub(crate) fn count(seen: &[VisibleStroke]) -> BTreeMap<u32, u64> {
    let mut counts = BTreeMap::new();
    for stroke in seen {
        *counts.entry(stroke.author).or_default() += 1;
    }
    counts
}

fn begin(node: &Node, layer: u32, hold: LockMode) -> anyhow::Result<Txn<'_>> {
    let mut txn = node.begin(RestoreMode::Restore)?;
    txn.acquire(LockId(layer), hold)?;
    Ok(txn)
}

/// The author's group in a layer, created if missing.
fn group_of(txn: &mut Txn<'_>, layer: u32, author: u32) -> anyhow::Result<Ptr<Group>> {
    let heap = txn.heap(LockId(layer))?;
    let first: Ptr<Group> = heap.root(GROUPS)?;
    let mut at = first;
    while !at.is_null() {
        let group = heap.get(at)?;
        if group.author == author {
            return Ok(at);
        }
        at = group.next;
    }
    let group = Group {
        next: first,
        strokes: Ptr::NULL,
        author,
        at: DrawingPoint { x: 0, y: 0 },
    };
    let group = heap.alloc(txn, &group)?;
    heap.set_root(txn, GROUPS, group)?;
    Ok(group)
}

/// Reads a layer in place.
fn read_layer(layer: &BorrowedHeap<'_>, seen: &mut Vec<VisibleStroke>) -> Result<(), BlockAccessError> {
    let mut group: Ptr<Group> = layer.root(GROUPS)?;
    while !group.is_null() {
        let Group {
            next,
            mut strokes,
            author,
            at,
        } = *layer.get(group)?;
        while !strokes.is_null() {
            let stroke = layer.get(strokes)?;
            let points = layer.slice(stroke.points)?.iter();
            seen.push(VisibleStroke {
                author,
                number: stroke.number,
                points: points
                    .map(|point| DrawingPoint {
                        x: at.x.saturating_add(point.x),
                        y: at.y.saturating_add(point.y),
                    })
                    .collect(),
            });
            strokes = stroke.next;
        }
        group = next;
    }
    Ok(())
}
